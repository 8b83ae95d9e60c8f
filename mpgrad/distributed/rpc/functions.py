"""``rpc.functions``: what is said of functions that other hosts call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def async_execution(fn: F) -> F:
    """``fn`` returns a Future; the caller gets its value, and no thread waits for it."""
    fn._mpgrad_async_execution = True  # type: ignore[attr-defined]
    return fn
