"""The names of ``torch.jit``, which return functions unchanged: there is no such compiler."""

from __future__ import annotations

from typing import Any


def script(obj: Any, *args: Any, **options: Any) -> Any:
    """``obj`` itself."""
    return obj


def trace(func: Any, *args: Any, **options: Any) -> Any:
    """``func`` itself."""
    return func


script_method = export = ignore = unused = script


def is_scripting() -> bool:
    """False."""
    return False


def is_tracing() -> bool:
    """False."""
    return False
