"""The names of ``torch.jit`` and ``torch.compiler``, which return functions unchanged."""

from __future__ import annotations

from typing import Any


def script(obj: Any, *args: Any, **options: Any) -> Any:
    """``obj`` itself."""
    return obj


def trace(func: Any, *args: Any, **options: Any) -> Any:
    """``func`` itself."""
    return func


script_method = export = ignore = unused = disable = script


def annotate(the_type: Any, the_value: Any) -> Any:
    """``the_value`` itself."""
    return the_value


def is_scripting() -> bool:
    """False."""
    return False


is_compiling = is_scripting


def is_tracing() -> bool:
    """False."""
    return False
