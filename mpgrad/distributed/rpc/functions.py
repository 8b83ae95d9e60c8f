"""``rpc.functions``: what is said of functions that other hosts call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from mpgrad.distributed.futures import Future

F = TypeVar("F", bound=Callable[..., Any])


def async_execution(fn: F) -> F:
    """``fn`` returns a Future; the caller gets its value, and no thread waits for it."""
    fn._mpgrad_async_execution = True  # type: ignore[attr-defined]
    return fn


def is_async(function: Callable[..., Any]) -> bool:
    """Whether ``async_execution`` was said of it."""
    return getattr(function, "_mpgrad_async_execution", False)


def checked_future(returned: Any) -> Future:
    """What such a function has returned.

    Raises:
        RuntimeError: it is no Future.
    """
    if not isinstance(returned, Future):
        raise RuntimeError(
            "Functions decorated with @rpc.functions.async_execution must return a Future, not "
            f"{returned!r}"
        )
    return returned
