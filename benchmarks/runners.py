"""Runners: the same program run by mpgrad's engines and by torch, each behind one interface."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import mpgrad as mg
from benchmarks.gil_work import spin
from benchmarks.loads import loops_for
from benchmarks.peers.process import NOT_INSTALLED
from benchmarks.rounds import Contender, backward, forward_and_backward

#: Every workload is measured with two workers: the targets are for two cores.
WORKERS = 2
#: Milliseconds of a client's work between two backwards of a training loop.
OTHER_WORK_MS = 20.0


@dataclass
class Runner:
    """A way to run a program.

    Attributes:
        name: the row of the table.
        library: ``mpgrad`` or ``torch``, whose names are the same; None: not installed.
        same_bits: runners with the same text here must give the same bits.
        engine: for mpgrad.
        threads: for torch.
    """

    name: str
    library: Any
    same_bits: str = ""
    engine: mg.Engine | None = None
    threads: int = 1

    def select(self) -> None:
        """Make this runner the one that the next backward uses."""
        if (engine := self.engine) is not None:
            # An engine's `with` block closes it at the end; here several are alive at once.
            mg.set_engine(engine)
        if self.library not in (mg, None):
            self.library.set_num_threads(self.threads)

    def renew(self) -> None:
        """Start a new engine instead of this one."""
        if self.engine is not None:
            self.engine.close()
            self.engine = mg.Engine(mode=self.engine.mode, cpu_workers=self.engine.cpu_workers)

    @property
    def has_processes(self) -> bool:
        """Whether it has processes beside this one, which could be slow."""
        return self.engine is not None and self.engine.mode != "local"

    def contender(
        self,
        make: Callable[[Any], ForwardPass],
        repeats: int = 1,
        *,
        is_whole: bool = False,
        after: Callable[[], object] = bool,
    ) -> Contender:
        """Times ``backward()`` after the forward pass that ``make`` writes for a library.

        With ``is_whole`` the forward pass is timed, too. ``after``: untimed work before each
        forward pass.
        """
        if self.library is None:
            return Contender(self.name, None, remark=lambda: NOT_INSTALLED)
        work = make(self.library)

        def start() -> None:
            self.select()
            for leaf in work.leaves:
                leaf.grad = None
            after()

        def build() -> Any:
            start()
            return work.forward()

        def renew() -> None:
            assert self.engine is not None
            has_used_workers = self.engine.statistics().backwards_process > 0
            self.renew()
            if self.engine.mode == "auto" and has_used_workers:
                start_auto(self, made)

        made = Contender(
            self.name,
            forward_and_backward(work.forward, start, repeats)
            if is_whole
            else backward(build, repeats),
            lambda: [leaf.grad.numpy() for leaf in work.leaves],
            self.same_bits,
            self.remark,
            renew if self.has_processes else None,
        )
        return made

    def remark(self) -> str:
        """The modes that ``auto`` chose; other runners have no choice."""
        if self.engine is None or self.engine.mode != "auto":
            return ""
        counts = self.engine.statistics()
        return f"{counts.backwards_process} in workers, {counts.backwards_local} local, so far"


@dataclass(frozen=True)
class ForwardPass:
    """A forward pass that can run again and again, and the leaves whose gradients count.

    ``constants``: other tensors that it holds, such as the batch.
    """

    leaves: list[Any]
    forward: Callable[[], Any]
    constants: tuple[Any, ...] = ()


@contextmanager
def mpgrad_runners(*modes: str, workers: int = WORKERS) -> Iterator[list[Runner]]:
    """One runner per engine mode; the engines are closed at the end."""
    runners = [
        Runner(f"mpgrad {mode}", mg, "mpgrad", mg.Engine(mode=mode, cpu_workers=workers))
        for mode in modes
    ]
    try:
        yield list(runners)
    finally:
        mg.set_engine(None)
        for runner in runners:
            assert runner.engine is not None
            runner.engine.close()


def torch_runners(*threads: int) -> list[Runner]:
    """torch on the CPU, one runner for each number of threads."""
    torch = find_torch()
    return [Runner(f"torch {_threads(count)}", torch, threads=count) for count in threads]


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


@cache
def _other_loops() -> int:
    return loops_for(OTHER_WORK_MS)


def other_work() -> None:
    """``OTHER_WORK_MS`` of Python in this process; workers and threads have time to fall asleep."""
    spin(_other_loops())


@cache
def find_torch() -> Any:
    """The module, or None."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None


def start_auto(runner: Runner, contender: Contender, patience_s: float = 10.0) -> None:
    """Run until ``auto`` has chosen workers once: they start during its first backwards."""
    if runner.engine is None or contender.sample is None:
        return
    end = time.monotonic() + patience_s
    while runner.engine.statistics().backwards_process == 0 and time.monotonic() < end:
        contender.sample()
