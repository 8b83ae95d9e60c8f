"""Grad modes, per thread: whether forward records, inference mode, where a backward runs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol, overload

from mpgrad.base.thread_state import PerThread
from mpgrad.recording.graph.context_decorator import ContextDecorator, F, MakeContext


class _Mode(PerThread):
    #: Whether operations are recorded; never in inference mode.
    enabled = True
    inference = False
    multithreading = True


GRAD_MODE = _Mode()


def is_grad_enabled() -> bool:
    """True if operations on this thread are recorded."""
    return GRAD_MODE.enabled


def is_inference_mode_enabled() -> bool:
    """True inside ``inference_mode()`` on this thread."""
    return GRAD_MODE.inference


def is_multithreading_enabled() -> bool:
    """False if ``set_multithreading_enabled(False)`` is in force on this thread."""
    return GRAD_MODE.multithreading


def _maker(kind: type[Any], value: bool) -> MakeContext:
    return lambda: kind(value)


# ---------------------------------------------------------------------- recording


class _GradMode(ContextDecorator):
    """Sets whether operations are recorded, and restores the earlier mode."""

    _value: bool

    def __init__(self) -> None:
        self._previous: list[bool] = []

    def __enter__(self) -> None:
        self._previous.append(GRAD_MODE.enabled)
        GRAD_MODE.enabled = self._value and not GRAD_MODE.inference

    def __exit__(self, *exc: object) -> None:
        GRAD_MODE.enabled = self._previous.pop()


if TYPE_CHECKING:

    class _Recording(Protocol):
        """The type of the classes below: a call without a function returns an instance, a call
        with a function returns the decorated function."""

        @overload
        def __call__(self) -> _GradMode: ...

        @overload
        def __call__(self, function: F) -> F: ...

    no_grad: _Recording
    enable_grad: _Recording

else:

    class no_grad(_GradMode):
        """Nothing is recorded inside: ``with no_grad():``, ``@no_grad()`` or ``@no_grad``.

        As a decorator it also holds while the body of a generator or coroutine runs, and only then.
        """

        _value = False

        def __new__(cls, function: Any = None) -> Any:
            # As a bare decorator it is called with the function and returns a function.
            return super().__new__(cls) if function is None else cls()(function)

    class enable_grad(no_grad):
        """Operations inside are recorded again, within an outer ``no_grad``.

        Without effect in inference mode: its tensors cannot take part in a graph.
        """

        _value = True


class set_grad_enabled(_GradMode):
    """Sets the mode at once; as a context manager, restores it at the end.

    Raises:
        TypeError: ``mode`` is not a bool.
    """

    def __init__(self, mode: bool) -> None:
        if not isinstance(mode, bool):
            raise TypeError(
                f"set_grad_enabled(): argument 'mode' must be bool, not {type(mode).__name__}"
            )
        super().__init__()
        self._value = mode
        self._before = GRAD_MODE.enabled
        GRAD_MODE.enabled = mode and not GRAD_MODE.inference

    def factory(self) -> MakeContext:
        return _maker(type(self), self._value)

    def __enter__(self) -> None:
        self._previous.append(self._before)
        GRAD_MODE.enabled = self._value and not GRAD_MODE.inference

    def __call__(self, function: F) -> F:
        GRAD_MODE.enabled = self._before  # as a decorator it must not act at definition
        return super().__call__(function)

    def __repr__(self) -> str:
        return f"set_grad_enabled(mode={self._value})"


# ---------------------------------------------------------------------- inference mode


class InferenceModes:
    """Attributes: ``entered``: the number of blocks of inference mode in all threads together.

    While it is 0, which is nearly always, a new tensor need not look up its thread.
    """

    __slots__ = ("_lock", "entered")

    def __init__(self) -> None:
        self.entered = 0
        self._lock = threading.Lock()

    def count(self, change: int) -> None:
        with self._lock:
            self.entered += change


INFERENCE_MODES = InferenceModes()


if TYPE_CHECKING:

    class _Inference(Protocol):
        @overload
        def __call__(self, mode: bool = True) -> _GradMode: ...

        @overload
        def __call__(self, mode: F) -> F: ...

    inference_mode: _Inference

else:

    class inference_mode(ContextDecorator):
        """Nothing is recorded inside, and tensors made inside never can be: so they are cheaper.

        Such an *inference tensor* has no version counter. Outside of the mode it may not be
        changed in place, saved for a backward, or made to require grad; ``clone()`` gives an
        ordinary tensor.
        ``inference_mode(False)`` within it records again. Use it as ``with inference_mode():``,
        ``@inference_mode()`` or ``@inference_mode``.

        Args:
            mode: whether the mode is on.
        """

        def __new__(cls, mode: Any = True) -> Any:
            return super().__new__(cls) if isinstance(mode, bool) else cls()(mode)

        def __init__(self, mode: bool = True) -> None:
            self._value = mode
            self._previous: list[tuple[bool, bool]] = []

        def factory(self) -> MakeContext:
            return _maker(type(self), self._value)

        def __enter__(self) -> None:
            self._previous.append((GRAD_MODE.enabled, GRAD_MODE.inference))
            GRAD_MODE.enabled, GRAD_MODE.inference = not self._value, self._value
            if self._value:
                INFERENCE_MODES.count(1)

        def __exit__(self, *exc: object) -> None:
            GRAD_MODE.enabled, GRAD_MODE.inference = self._previous.pop()
            if self._value:
                INFERENCE_MODES.count(-1)


# ---------------------------------------------------------------------- threads and processes


class set_multithreading_enabled(ContextDecorator):
    """With False, the whole of a backward runs on the calling thread, in this process.

    It acts at once; as a context manager, it restores the earlier setting at the end.
    """

    def __init__(self, mode: bool) -> None:
        self._value, self._before = mode, GRAD_MODE.multithreading
        GRAD_MODE.multithreading = mode

    def factory(self) -> MakeContext:
        return _maker(type(self), self._value)

    def __call__(self, function: F) -> F:
        GRAD_MODE.multithreading = self._before  # as a decorator it must not act at definition
        return super().__call__(function)

    def __enter__(self) -> None:
        GRAD_MODE.multithreading = self._value

    def __exit__(self, *exc: object) -> None:
        GRAD_MODE.multithreading = self._before
