"""compiled(): a function from generated source; tracebacks show its lines."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from typing import Any

#: How the names of such files begin.
WRITTEN = ("<call ", "<record ", "<backward ", "<rule ", "<guard of ", "<compiled ")


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


def listed(items: Sequence[str]) -> str:
    """The source of a tuple without its parentheses."""
    return ", ".join(items) + ("," if len(items) == 1 else "")


def forget(place: str) -> None:
    """Remove the lines of ``place`` from tracebacks, because its function is gone."""
    linecache.cache.pop(f"<{place}>", None)
