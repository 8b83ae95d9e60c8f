"""compiled(): a function from generated source; tracebacks show its lines."""

from __future__ import annotations

import linecache
from typing import Any


def compiled(name: str, source: str, known: dict[str, Any], place: str) -> Any:
    """The function ``name`` that ``source`` defines.

    Args:
        name: of the function.
        source: Python source.
        known: the values of its free names; they are the function's globals, not a copy.
        place: the file name in tracebacks.
    """
    file = f"<{place}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), known)
    return known[name]


def forget(place: str) -> None:
    """Remove the lines of ``place`` from tracebacks, because its function is gone."""
    linecache.cache.pop(f"<{place}>", None)
