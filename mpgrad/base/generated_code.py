"""compiled(): a function from source that was made for one case; tracebacks show its lines."""

from __future__ import annotations

import linecache
from typing import Any


def compiled(name: str, source: str, known: dict[str, Any], place: str) -> Any:
    """The function ``name`` that ``source`` defines.

    Args:
        name: of the function.
        source: Python.
        known: what its free names stand for; the function's own globals, not copied.
        place: what a traceback calls the file.
    """
    file = f"<{place}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), known)
    return known[name]


def forget(place: str) -> None:
    """The lines of ``place`` are not shown any more: its function is gone."""
    linecache.cache.pop(f"<{place}>", None)
