"""A handler of a signal runs a backward, or raises, at the place that the first argument names.

It prints what has gone wrong, and "done" at the end.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import zmq

import mpgrad as mg
from mpgrad.autograd.running import collector
from mpgrad.engine import blas
from mpgrad.engine.engine import Engine
from mpgrad.recording.tensors import tensor
from mpgrad.shm import arena

strikes: list[Any] = []


def gradient(times: float) -> list[float]:
    x = mg.ones(40_000, requires_grad=True)  # in the client's arena
    y = x * times
    for _ in range(collector.HELD_ABOVE):
        y = y + 1.0
    y.sum().backward()
    assert x.grad is not None
    return x.grad[::39_999].tolist()


def handler(*_: object) -> None:
    strikes.append(gradient(3.0))
    if sys.argv[2] == "raises":
        raise TimeoutError


def struck(right: Callable[..., Any]) -> Callable[..., Any]:
    """``right``, and at the first call the signal behind it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        found = right(*args, **kwargs)
        if not strikes and not was_struck:
            was_struck.append(True)
            signal.raise_signal(signal.SIGALRM)
        return found

    was_struck: list[bool] = []
    return call


def strike(owner: Any, name: str) -> Callable[[], None]:
    return lambda: setattr(owner, name, struck(getattr(owner, name)))


def in_limits() -> None:
    right = blas._libraries
    blas._libraries = lambda: [(count, struck(limit)) for count, limit in right()]


def in_collector() -> None:
    collector.gc = SimpleNamespace(  # type: ignore[assignment]
        isenabled=gc.isenabled, enable=gc.enable, disable=struck(gc.disable)
    )


def in_sockets() -> None:
    mg.set_engine(mg.Engine("process", cpu_workers=1))
    zmq.Context = struck(zmq.Context)  # type: ignore[assignment,misc]


PLACES = {
    "the limits of BLAS": in_limits,
    "the libraries of BLAS": strike(blas, "_libraries"),
    "the collector": in_collector,
    "the default engine": strike(Engine, "__init__"),
    "the part that runs backwards": strike(Engine, "_load"),
    "the arena": strike(arena, "_create_segment"),
    "a leaf": strike(tensor, "_inputs_of"),
    "sockets": in_sockets,
}


def main() -> None:
    signal.signal(signal.SIGALRM, handler)
    before = blas.blas_of_arrays()
    PLACES[sys.argv[1]]()
    if sys.argv[2] == "raises":
        try:
            gradient(1.0)
        except TimeoutError:
            print("raised")
    for times in (2.0, 5.0):
        found = gradient(times)
        assert found == [times] * 2, found
    assert strikes == [[3.0] * 2], strikes
    assert gc.isenabled(), "the collector stays off"
    assert blas.blas_of_arrays() == before, (before, blas.blas_of_arrays())
    print("done", flush=True)


if __name__ == "__main__":
    main()
