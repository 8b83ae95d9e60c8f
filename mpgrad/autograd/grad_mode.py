"""Whether forward records: ``no_grad``, ``enable_grad``, ``set_grad_enabled`` (per thread)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from mpgrad.autograd.thread_state import PerThread

F = TypeVar("F", bound=Callable[..., Any])


class _Mode(PerThread):
    enabled = True


_mode = _Mode()


def is_grad_enabled() -> bool:
    """True where operations on this thread are recorded."""
    return _mode.enabled


class _GradMode:
    """A context manager and decorator that sets the mode and restores what was before."""

    _value: bool

    def __init__(self) -> None:
        self._previous: list[bool] = []

    def __enter__(self) -> None:
        self._previous.append(_mode.enabled)
        _mode.enabled = self._value

    def __exit__(self, *exc: object) -> None:
        _mode.enabled = self._previous.pop()

    def __call__(self, function: F) -> F:
        value = self._value

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            previous = _mode.enabled
            _mode.enabled = value
            try:
                return function(*args, **kwargs)
            finally:
                _mode.enabled = previous

        return wrapper  # type: ignore[return-value]


class no_grad(_GradMode):
    """Nothing is recorded inside; use as ``with no_grad():`` or ``@no_grad()``."""

    _value = False

    def __new__(cls, function: Any = None) -> Any:
        self = super().__new__(cls)
        if function is not None:  # used as a bare decorator: @no_grad
            self.__init__()  # type: ignore[misc]
            return self(function)
        return self

    def __init__(self, function: Any = None) -> None:
        super().__init__()


class enable_grad(no_grad):
    """Operations inside are recorded again, within an outer ``no_grad``."""

    _value = True


class set_grad_enabled(_GradMode):
    """Sets the mode at once; as a context manager, restores it at the end."""

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self._value = bool(mode)
        self._before = _mode.enabled
        _mode.enabled = self._value

    def __enter__(self) -> None:
        self._previous.append(self._before)
        _mode.enabled = self._value

    def __call__(self, function: F) -> F:
        _mode.enabled = self._before  # as a decorator it must not act at definition
        return super().__call__(function)
