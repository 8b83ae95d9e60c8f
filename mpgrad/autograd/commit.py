"""commit(): what becomes of the gradients that a backward captured: all of them, or none.

Workers only produce gradients. They are added to ``.grad`` here, when all of them are known, so
that a failed backward leaves every ``.grad`` as it was.
"""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mpgrad.autograd.freeze import FrozenGraph, LeafSink, ResultSink, RetainSink
from mpgrad.autograd.grad_mode import enable_grad
from mpgrad.ops.arithmetic import add
from mpgrad.ops.shape import clone
from mpgrad.storage import adopt
from mpgrad.tensor import Tensor


def results(
    frozen: FrozenGraph, captured: list[tuple[Any, bool]], count: int
) -> list[Tensor | None]:
    """The ``count`` results of ``grad()``; what else was captured is committed."""
    found: list[Tensor | None] = [None] * count
    for sink, (array, exclusive) in zip(frozen.sinks, captured, strict=True):
        if isinstance(sink, ResultSink) and array is not None:
            found[sink.number] = Tensor(array if exclusive else adopt(array))
    commit(frozen, captured)
    return found


def commit(frozen: FrozenGraph, captured: list[tuple[Any, bool]]) -> None:
    """Add the captured gradients to ``.grad``: first all checks, then all additions.

    Raises:
        RuntimeError: some leaf cannot take its gradient; nothing was changed.
    """
    todo = [
        (sink, array, exclusive)
        for sink, (array, exclusive) in zip(frozen.sinks, captured, strict=True)
        if array is not None and not isinstance(sink, ResultSink)
    ]
    for sink, _, _ in todo:
        if isinstance(sink, LeafSink):
            sink.accumulator.check()
    with _interrupts_deferred():
        for sink, array, exclusive in todo:
            if isinstance(sink, LeafSink):
                sink.accumulator.accumulate(array, exclusive=exclusive)
            else:
                _retain(sink.tensor, array)


# ---------------------------------------------------------------------- with create_graph


def recorded_results(
    frozen: FrozenGraph, gradients: list[Tensor | None], count: int
) -> list[Tensor | None]:
    """As :func:`results`, of gradients that know how they were computed."""
    found: list[Tensor | None] = [None] * count
    for sink, gradient in zip(frozen.sinks, gradients, strict=True):
        if isinstance(sink, ResultSink):
            found[sink.number] = gradient
    commit_recorded(frozen, gradients)
    return found


def commit_recorded(frozen: FrozenGraph, gradients: list[Tensor | None]) -> None:
    """As :func:`commit`; every ``.grad`` becomes a new tensor, which knows how it was computed.

    Raises:
        RuntimeError: some leaf cannot take its gradient; nothing was changed.
    """
    todo: list[tuple[Tensor, Tensor]] = []
    for sink, gradient in zip(frozen.sinks, gradients, strict=True):
        if gradient is None or isinstance(sink, ResultSink):
            continue
        if isinstance(sink, RetainSink):
            todo.append((sink.tensor, gradient))
        else:
            sink.accumulator.check()
            if sink.accumulator.variable._requires_grad:
                todo.append((sink.accumulator.variable, gradient))
    with _interrupts_deferred(), enable_grad():
        for tensor, gradient in todo:
            previous = tensor._grad
            tensor._grad = clone(gradient) if previous is None else add(previous, gradient)


def _retain(tensor: Tensor, array: Any) -> None:
    previous = tensor._grad
    tensor._grad = Tensor(adopt(array) if previous is None else previous._array + array)


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Let a Ctrl-C wait until the commit is over."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda *args: arrived.append(args))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if arrived and callable(before):
        before(*arrived[0])
    elif arrived:
        warnings.warn("an interrupt arrived while gradients were committed", stacklevel=2)
