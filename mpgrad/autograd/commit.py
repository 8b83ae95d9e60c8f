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

from mpgrad.autograd.freeze import FrozenGraph, LeafSink, ResultSink
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
