"""Future: a value that another host or thread will give, with the names of ``torch.futures``."""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

from mpgrad.recording.graph.node import continue_sequence_from, upcoming_sequence_nr


class Future:
    """A value or an error that comes later."""

    def __init__(self, *, devices: Any = None) -> None:
        self._condition = threading.Condition()
        self._is_done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Future], None]] = []
        #: What the thread that completed it counted next: Nodes that use the value come later.
        self._sequence_nr = 0
        #: Completes it on the thread that waits, for at most so many seconds; None: others do.
        self._settle: Callable[[float | None], None] | None = None

    def __class_getitem__(cls, kind: Any) -> types.GenericAlias:
        """``Future[Tensor]`` is an annotation."""
        return types.GenericAlias(cls, kind)

    def __reduce__(self) -> Any:
        raise TypeError(
            "Can not pickle a Future: wait for its value, or return it from a function with "
            "rpc.functions.async_execution"
        )

    def done(self) -> bool:
        """Whether it has its value or error."""
        if self._settle is not None:
            self._settle(0.0)
        return self._is_done

    def wait(self, timeout: float | None = None) -> Any:
        """The value, once it is there.

        Args:
            timeout: seconds to wait at most.

        Raises:
            TimeoutError: it is not there by then.
            BaseException: the error, if that has come instead.
        """
        if self._settle is not None:
            self._settle(timeout)
        with self._condition:
            if not self._condition.wait_for(lambda: self._is_done, timeout):
                raise TimeoutError(f"the future has no value after {timeout} s")
        continue_sequence_from(self._sequence_nr)
        if self._error is not None:
            raise self._error
        return self._value

    def value(self) -> Any:
        """The value, which has to be there."""
        if not self.done():
            raise RuntimeError("Future is not done: value() was called before it was completed.")
        return self.wait()

    def set_result(self, result: Any) -> None:
        """Give it its value."""
        self._complete(result, None)

    def set_exception(self, result: BaseException) -> None:
        """Give it an error, which ``wait`` raises."""
        if not isinstance(result, BaseException):
            raise TypeError(f"{result!r} is of type {type(result)}, not an Exception.")
        self._complete(None, result)

    def _complete(self, value: Any, error: BaseException | None) -> None:
        with self._condition:
            if self._is_done:
                raise RuntimeError(
                    "Attempting to mark a completed Future as complete again. Note that a Future "
                    "can only be marked completed once."
                )
            self._sequence_nr = upcoming_sequence_nr()
            self._value, self._error, self._is_done = value, error, True
            callbacks, self._callbacks = self._callbacks, []
            self._condition.notify_all()
        for callback in callbacks:
            callback(self)

    def add_done_callback(self, callback: Callable[[Future], None]) -> None:
        """Call ``callback(self)`` when it is done: at once, or on the thread that completes it.

        Raises:
            TypeError: it is not callable.
        """
        _check_callable(callback)
        with self._condition:
            if not self._is_done:
                self._callbacks.append(callback)
                return
        callback(self)

    def then(self, callback: Callable[[Future], Any]) -> Future:
        """The future of what ``callback(self)`` returns, which is called when this one is done.

        Raises:
            TypeError: it is not callable.
        """
        _check_callable(callback)
        result = Future()
        result._settle = self._settle

        def continue_with(done: Future) -> None:
            try:
                value = callback(done)
            except BaseException as error:
                result.set_exception(error)
            else:
                result.set_result(value)

        self.add_done_callback(continue_with)
        return result


def _check_callable(callback: Any) -> None:
    if not callable(callback):
        raise TypeError(f"incompatible function arguments. {callback!r} is not callable")


def collect_all(futures: Sequence[Future]) -> Future:
    """The future of all of them, which is done when they are; its value is their list."""
    result, lock, left = Future(), threading.Lock(), len(futures)
    if not futures:
        result.set_result([])

    def count(_: Future) -> None:
        nonlocal left
        with lock:
            left -= 1
            is_last = left == 0
        if is_last:
            result.set_result(list(futures))

    def settle(timeout: float | None) -> None:
        for future in futures:
            if future._settle is not None:
                future._settle(timeout)

    for future in futures:
        future.add_done_callback(count)
    if any(future._settle is not None for future in futures):
        result._settle = settle
    return result


def wait_all(futures: Sequence[Future]) -> list[Any]:
    """The values of all, once they are there; the first error ends the wait.

    Raises:
        BaseException: the error of the first of them that has one.
    """
    outcome = Future()

    def look(future: Future) -> None:
        if future._error is not None:
            with contextlib.suppress(RuntimeError):  # another one had an error before
                outcome.set_exception(future._error)

    def end(_: Future) -> None:
        with contextlib.suppress(RuntimeError):
            outcome.set_result(None)

    for future in futures:
        future.add_done_callback(look)
    everything = collect_all(futures)
    outcome._settle = everything._settle
    everything.add_done_callback(end)
    outcome.wait()
    return [future.wait() for future in futures]
