"""oom: memory runs out in several ways; each gives a clear error, then everything works again.

``python -m stress.oom WAY`` is one way, in a separate process whose limits it may lower.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import mpgrad as mg
from mpgrad.errors import SharedMemoryExhausted, WorkerLost
from stress.limited_group import entering, limited_group
from stress.run import Run, Verdict, count
from tests.leftovers import Leftovers, left_since

MIB = 1 << 20
#: The memory of the processes of one engine in a cgroup, where it is to run out.
GROUP_BYTES = 400 * MIB
#: The number of such rounds; one takes seconds, because ten workers are killed.
ROUNDS_PER_MACHINE = 10
#: The words of the error in that case.
TOLD = ("EatsBackward", "(pid ", "SIGKILL", "because memory ran out", " MiB", "Fewer workers")
NOT_TRIED = "not tried: the kernel's own killer, for no memory cgroup can be made here"


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=count, default=20, metavar="N", help="of each way")


def _perform(options: argparse.Namespace) -> Verdict:
    print(f"oom: --rounds {options.rounds}", flush=True)
    before = Leftovers.now()
    ends = {way: _in_a_process(way, options.rounds) for way in WAYS}
    with limited_group("memory", GROUP_BYTES) as group:
        if group is not None:
            rounds = max(1, options.rounds // ROUNDS_PER_MACHINE)
            ends["machine"] = _in_a_process("machine", rounds, group)
    left = left_since(before)
    failed = [f"{way}: {end}" for way, end in ends.items() if end != "fine"]
    words = ", ".join(f"{way} ({words.__doc__})" for way, words in WAYS.items())
    tried = f"; {rounds} of: {machine.__doc__}" if group is not None else f" ({NOT_TRIED})"
    return Verdict(
        not (failed or left),
        f"{options.rounds} rounds of each: {words}{tried}; each a clear error, and the next "
        f"backward is right: {'; '.join(failed) or 'yes'}; {left or 'nothing'} left",
    )


def _in_a_process(way: str, rounds: int, group: Path | None = None) -> str:
    """Its last line: "fine", or a description of the fault."""
    command = [sys.executable, "-m", "stress.oom", way, str(rounds)]
    if group is not None:
        command = entering(group, command)
    environment = {**os.environ, **ENVIRONMENT.get(way, {})}
    try:
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
    except subprocess.TimeoutExpired:
        return "hangs"
    said = (ended.stdout if ended.returncode == 0 else ended.stderr).strip().splitlines()
    return said[-1] if said else f"exit status {ended.returncode}"


def engine_arena(rounds: int) -> None:
    """the workers' arena is full"""
    with mg.Engine("process", cpu_workers=2, shm_limit=4 * MIB) as engine:
        for _ in range(rounds):
            with _Refused(SharedMemoryExhausted):
                _backward(1024)  # gradients of 8 MiB
            _check_small()
        _check_empty(engine)


def client_arena(rounds: int) -> None:
    """the client's arena is full"""
    with mg.Engine("process", cpu_workers=2) as engine:
        for _ in range(rounds):
            with _Refused(SharedMemoryExhausted):
                _fill()
            _check_small()
        _check_empty(engine)


def address_space(rounds: int) -> None:
    """the client may map no more memory: RLIMIT_AS"""
    with mg.Engine("process", cpu_workers=2) as engine:
        _check_small()
        before = resource.getrlimit(resource.RLIMIT_AS)
        with open("/proc/self/statm") as statm:
            mapped = int(statm.read().split()[0]) * resource.getpagesize()
        for _ in range(rounds):
            resource.setrlimit(resource.RLIMIT_AS, (mapped + 64 * MIB, before[1]))
            try:
                with _Refused(MemoryError):
                    _backward_here(1 << 24)
            finally:
                resource.setrlimit(resource.RLIMIT_AS, before)
            _check_small()
        _check_empty(engine)


def machine(rounds: int) -> None:
    """the kernel kills workers for want of memory, in a cgroup"""
    with mg.Engine("process", cpu_workers=2) as engine:
        for _ in range(rounds):
            x = mg.ones(3, requires_grad=True)
            try:
                _Eats.apply(x).sum().backward()
            except WorkerLost as error:
                missing = [word for word in TOLD if word not in str(error)]
                if missing or x.grad is not None:
                    raise RuntimeError(f"{missing} not in {error}") from None
            else:
                raise RuntimeError("no WorkerLost although memory is short")
            _check_small()
        figures = engine.statistics().engine_arena
        if figures is None or figures.live_blocks:
            raise RuntimeError(f"blocks are left: {figures}")


class _Eats(mg.Function):
    """Takes all available memory."""

    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        held = []
        while True:
            held.append(np.ones(MIB))


class _Refused:
    """The body must end with an error of this kind that names the requested bytes."""

    def __init__(self, kind: type[BaseException]) -> None:
        self._kind = kind

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        if error is None:
            raise RuntimeError(f"no {self._kind.__name__} although memory is short")
        return isinstance(error, self._kind)


def _backward(side: int) -> np.ndarray[Any, Any]:
    """The gradient of a product of two square matrices, computed in workers."""
    x = mg.tensor(np.full((side, side), 2.0), requires_grad=True)
    y = mg.tensor(np.ones((side, side)))
    mg.tanh(x * y).sum().backward()
    if x.grad is None:
        raise RuntimeError("a backward ended without an error and without a gradient")
    return x.grad.numpy()


def _backward_here(size: int) -> None:
    """A gradient that the client computes itself."""
    x = mg.tensor(np.ones(size), requires_grad=True)
    y = mg.tanh(x)
    y.register_hook(lambda grad: mg.from_numpy(grad.numpy() * 2))
    y.sum().backward()


def _check_small() -> None:
    found = _backward(64)
    if not np.allclose(found, 1 - np.tanh(2.0) ** 2, rtol=1e-12):
        raise RuntimeError("a wrong gradient after memory was short")


def _check_empty(engine: mg.Engine) -> None:
    figures = engine.statistics().engine_arena
    if figures is None or figures.live_blocks:
        raise RuntimeError(f"blocks are left: {figures}")
    if engine.statistics().restarts:
        raise RuntimeError("a worker died of it")


def _fill() -> None:
    held = []
    while True:
        held.append(mg.ones(1024, 1024) * 2.0)


WAYS: dict[str, Callable[[int], None]] = {
    "engine arena": engine_arena,
    "client arena": client_arena,
    "address space": address_space,
}

ENVIRONMENT = {"client arena": {"MPGRAD_SHM_LIMIT": str(96 * MIB)}}

OOM = Run(
    "oom",
    "arenas, address space, machine memory run out: clear errors, then the engine works again",
    _add_options,
    _perform,
)

if __name__ == "__main__":
    {**WAYS, "machine": machine}[sys.argv[1]](int(sys.argv[2]))
    print("fine")
