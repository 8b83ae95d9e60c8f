"""Engine: the user's door to the executor, and which engine is current."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from mpgrad import config
from mpgrad.autograd import costs, engine_slot
from mpgrad.autograd.freeze import FrozenGraph, freeze
from mpgrad.autograd.higher_order.recording import has_only_operators, record, with_inputs_captured
from mpgrad.autograd.running.collector import collector_held
from mpgrad.engine.blas import blas_limit
from mpgrad.engine.choice import WORTH_A_LOOK_US, Choice, choose
from mpgrad.engine.idle_threads import let_idle_threads_sleep
from mpgrad.engine.local import run_local
from mpgrad.engine.placement import place
from mpgrad.engine.process import ProcessEngine
from mpgrad.engine.statistics import ArenaStatistics, EngineStatistics, Explanation, explain
from mpgrad.errors import EngineClosed
from mpgrad.scheduler.plan import plan
from mpgrad.shm.arena import client_arena, default_limit_bytes
from mpgrad.tensor import Tensor, gradient_edge

#: From this size on a local backward of operators holds the garbage collector off.
HELD_ABOVE_NODES = 1000

_MODES = ("auto", "local", "process")


class Engine:
    """Executes backward passes: here, in worker processes, or wherever that is faster.

    Use it as a context manager (engines nest, the innermost is current), or leave it alone: without
    one, a default engine in ``auto`` mode serves every backward.

    Args:
        mode: "local" runs everything in this process; "process" in worker processes; "auto" in
            workers where the predicted time is clearly shorter. Default: MPGRAD_ENGINE or "auto".
        cpu_workers: number of CPU workers; default MPGRAD_CPU_WORKERS or the available cores.
        gpus: which GPUs get a worker; GPU workers do not exist yet, so "auto" means none.
        shm_limit: bytes that the workers' shared arena may hold; default MPGRAD_SHM_LIMIT or a
            share of the machine's memory.
        blas_threads: BLAS threads wherever a rule runs, in workers and in ``local`` alike.
        recover: "worker" replaces workers that die and runs their tasks again; "all" also starts
            the engine again when the coordinator dies, and runs the backward once more (unless
            hooks or Functions have already run in this process: those never run twice).
        task_timeout: seconds that a worker may take for one NodeTask. If it takes longer, the
            worker is killed and the task run again; the second time the backward fails with
            ``errors.TaskTimedOut``. What runs in this process is not limited. Default: no limit.
        journal: when the engine's processes write their last events to a file for ``mpgrad
            replay``: after internal "errors", "always" (also when they end), or "off". Default:
            MPGRAD_JOURNAL or "errors"; MPGRAD_JOURNAL_DIR says where.

    Raises:
        ValueError: an argument is out of range.
        RuntimeError: "process" on a system other than Linux.
    """

    def __init__(
        self,
        mode: str | None = None,
        cpu_workers: int | None = None,
        gpus: str | tuple[int, ...] | list[int] = "auto",
        shm_limit: int | None = None,
        blas_threads: int = 1,
        recover: str = "worker",
        task_timeout: float | None = None,
        journal: str | None = None,
    ) -> None:
        self.mode = config.engine_mode() if mode is None else mode
        _check_choice("mode", self.mode, _MODES)
        _check_choice("recover", recover, ("worker", "all"))
        self.recover = recover
        self.task_timeout = _seconds("task_timeout", task_timeout)
        if gpus not in ("auto", "none", (), []):
            raise ValueError(f"Engine(gpus={gpus!r}): GPU workers are not supported yet")
        self.cpu_workers = _count(
            "cpu_workers", cpu_workers, config.cpu_workers() or config.default_cpu_workers(), 1024
        )
        self.blas_threads = _count("blas_threads", blas_threads, 1, 1024)
        limit = default_limit_bytes() if shm_limit is None else shm_limit
        self._shm_limit = _count("shm_limit", limit, limit, 1 << 50)
        if self.mode == "process" and sys.platform != "linux":
            raise RuntimeError(
                f'Engine(mode="process") needs Linux; this is {sys.platform}. Use mode="local".'
            )
        journal = config.journal() if journal is None else journal
        _check_choice("journal", journal, config.JOURNAL_MODES)
        self._journal = journal
        self._process = self._new_process_engine()
        self._local_count = 0
        self._local_failed = 0
        self._is_closed = False
        self._pid = os.getpid()
        _engines.add(self)

    # ------------------------------------------------------------------ life

    def __enter__(self) -> Engine:
        self._check_open()
        if self._effective_mode() == "process":
            self._process.start()
        _stack.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _stack.remove(self)
        self.close()

    def close(self) -> None:
        """End all processes. Tensors and ``.grad`` stay readable; a second call does nothing."""
        self._is_closed = True
        if self._pid == os.getpid():
            self._process.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineClosed(
                "this Engine is closed; make a new one, or leave its `with` block later"
            )
        if self._pid != os.getpid():
            self._restart_in_child()

    def _new_process_engine(self) -> ProcessEngine:
        return ProcessEngine(
            self.cpu_workers,
            self._shm_limit,
            self.blas_threads,
            recover=self.recover,
            task_timeout_s=self.task_timeout,
            journal=self._journal,
        )

    def _restart_in_child(self) -> None:
        """After a fork the processes belong to the parent; the child starts its own when needed."""
        self._process.abandon()
        self._process = self._new_process_engine()
        self._pid = os.getpid()

    # ------------------------------------------------------------------ one backward

    def execute(self, frozen: FrozenGraph) -> list[tuple[Any, bool]]:
        """Run a frozen graph; see ``autograd.engine_slot``."""
        self._check_open()
        choice = self._choose(frozen)
        if config.debug():
            _report(frozen, choice, self.cpu_workers)
        if choice.mode == "process":
            if self._effective_mode() == "process" or self._process.is_running:
                with self._timed("process", frozen):
                    return self._process.execute(frozen)
            self._start_in_background()  # `auto` does not wait for it
        with self._counted_locally(), self._timed("local", frozen):
            if len(frozen.nodes) >= HELD_ABOVE_NODES and has_only_operators(frozen):
                with collector_held():
                    return run_local(frozen)
            return run_local(frozen)

    def execute_recorded(
        self, frozen: FrozenGraph, seeds: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Run a frozen graph under ``create_graph``; see ``higher_order.recording``.

        Operators run wherever the engine would run them. A graph with hooks or custom Functions
        runs here: they get recorded tensors.
        """
        if has_only_operators(frozen):
            watched = with_inputs_captured(frozen)
            arrays = [array for array, _ in self.execute(watched)]
            captured = dict(zip(watched.spec.captures, arrays, strict=True))
            return record(frozen, seeds, captured)
        self._check_open()
        with self._counted_locally():
            return record(frozen, seeds)

    @contextmanager
    def _counted_locally(self) -> Iterator[None]:
        """A backward of this process: with as many BLAS threads as a worker has."""
        self._local_count += 1
        try:
            with blas_limit(self.blas_threads):
                yield
        except BaseException:
            self._local_failed += 1
            raise

    def _effective_mode(self) -> str:
        return "local" if engine_slot.is_local() or sys.platform != "linux" else self.mode

    def _choose(self, frozen: FrozenGraph) -> Choice:
        mode = self._effective_mode()
        if mode != "auto":
            return Choice(mode, f'Engine(mode="{self.mode}")')
        choice = choose(frozen, self.cpu_workers, self._process.plan)
        if choice.mode == "process" and frozen.may_recur:
            graph = self._process.prepare(frozen)
            return graph.experience.correct(choice, graph.plan.work_us)
        return choice

    @contextmanager
    def _timed(self, mode: str, frozen: FrozenGraph) -> Iterator[None]:
        """``auto`` remembers what a backward took, where one like it may come again."""
        started = perf_counter()
        yield
        if self.mode == "auto" and frozen.may_recur:
            took_us = (perf_counter() - started) * 1e6
            if took_us >= WORTH_A_LOOK_US:
                self._process.prepare(frozen).experience.note(mode, took_us)

    def _start_in_background(self) -> None:
        """Start the processes beside this and the next local backward."""
        let_idle_threads_sleep()
        if not any(thread.name == _starter_name(self) for thread in threading.enumerate()):
            threading.Thread(
                target=_start_quietly, args=(self._process,), name=_starter_name(self), daemon=True
            ).start()

    # ------------------------------------------------------------------ questions

    def explain(self, tensor: Tensor) -> Explanation:
        """Where each Node behind ``tensor`` would run and why; runs nothing.

        Raises:
            RuntimeError: ``tensor`` does not require grad.
        """
        if not tensor.requires_grad:
            raise RuntimeError(
                "element 0 of tensors does not require grad and does not have a grad_fn"
            )
        self._check_open()
        edges = [gradient_edge(tensor)]
        frozen = freeze(edges, [None], keep_graph=True, cost=costs.estimate)
        return _explain(frozen, self._choose(frozen), self.cpu_workers)

    def statistics(self) -> EngineStatistics:
        """Counters and memory figures as of now."""
        counters = self._process.counters
        processes = self._process.processes()
        arena = client_arena().statistics()
        return EngineStatistics(
            mode=self.mode,
            backwards_local=self._local_count,
            backwards_process=counters.backwards,
            failed=counters.failed + self._local_failed,
            tasks=dict(sorted(counters.tasks.items())),
            handed_bytes=counters.handed_bytes,
            copied_bytes=counters.copied_bytes,
            recoveries=counters.recoveries,
            restarts=processes.restarts if processes is not None else 0,
            protocol_errors=counters.protocol_errors
            + (processes.protocol_errors if processes is not None else 0),
            client_arena=ArenaStatistics(
                arena.used_bytes,
                arena.idle_bytes,
                arena.live_blocks,
                arena.peak_bytes,
                arena.limit_bytes,
            ),
            engine_arena=ArenaStatistics(*processes.arena) if processes is not None else None,
        )

    def worker_pids(self) -> list[int]:
        """Process ids of the workers, by slot; empty while none runs."""
        processes = self._process.processes()
        return [] if processes is None else list(processes.worker_pids)

    @property
    def coordinator_pid(self) -> int | None:
        """Process id of the coordinator; None while none runs."""
        return self._process.coordinator_pid

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<Engine mode={self.mode!r} cpu_workers={self.cpu_workers} {state}>"


def _explain(frozen: FrozenGraph, choice: Choice, workers: int) -> Explanation:
    placed, _ = place(frozen)
    return explain(placed, plan(placed.spec, workers=workers), choice.mode, choice.reason)


def _report(frozen: FrozenGraph, choice: Choice, workers: int) -> None:
    """MPGRAD_DEBUG=1 tells of each backward, 2 of each of its nodes."""
    text = f"{choice.mode} ({choice.reason})"
    if config.debug() >= 2:
        text = str(_explain(frozen, choice, workers))
    print(f"mpgrad: backward: {text}", file=sys.stderr)


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"Engine({name}={value!r}): it must be one of {', '.join(allowed)}")


def _count(name: str, value: int | None, default: int, largest: int) -> int:
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= largest:
        raise ValueError(f"Engine({name}={value!r}): it must be an integer from 1 to {largest:,}")
    return value


def _seconds(name: str, value: float | None) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and 0 < value < float("inf")):
        raise ValueError(f"Engine({name}={value!r}): it must be a positive number of seconds")
    return value


def _starter_name(engine: Engine) -> str:
    return f"mpgrad-starter-{id(engine)}"


def _start_quietly(process: ProcessEngine) -> None:
    # Whoever needs the processes starts them again and gets the error.
    with contextlib.suppress(Exception):
        process.start()


# ---------------------------------------------------------------------- the current engine

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
#: Engines that are inside their `with` block, innermost last; shared by all threads.
_stack: list[Engine] = []
_default: Engine | None = None
_default_lock = threading.Lock()


def current_engine() -> Engine:
    """The innermost engine in a ``with`` block, else the default one (made on first use)."""
    global _default
    if _stack:
        return _stack[-1]
    with _default_lock:
        if _default is None or _default._is_closed:
            _default = Engine()
        return _default


def _close_all() -> None:
    for engine in list(_engines):
        engine.close()


def _forget_lock_in_child() -> None:
    global _default_lock
    _default_lock = threading.Lock()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_lock_in_child)
engine_slot.install(current_engine)
