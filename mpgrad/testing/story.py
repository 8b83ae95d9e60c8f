"""The log of a World as text: one aligned line per entry, short enough to read forty of them."""

from __future__ import annotations

from typing import Any

from mpgrad.handles import CLIENT_ARENA, Block
from mpgrad.scheduler.plan import NodeTaskSpec

LINE_CHARACTERS = 170


def story_line(time_us: int, who: str, what: tuple[Any, ...]) -> str:
    """``what`` in brief: blocks as place and generation, bytes and tables by their length."""
    line = f"{time_us:>9,}  {who:<6} {' '.join(_brief(part) for part in what)}"
    return line if len(line) <= LINE_CHARACTERS else f"{line[: LINE_CHARACTERS - 4]} ..."


def _brief(thing: Any) -> str:
    if isinstance(thing, str):
        return thing
    if isinstance(thing, bytes):
        return f"<{len(thing)} bytes>"
    if isinstance(thing, Block):
        arena = "client" if thing.arena == CLIENT_ARENA else "engine"
        return f"{arena}@{thing.offset}#{thing.generation}"
    if not isinstance(thing, tuple):
        return str(thing)
    fields = getattr(thing, "_fields", None)
    if fields is not None:
        inside = " ".join(
            f"{field}={_brief(value)}" for field, value in zip(fields, thing, strict=True)
        )
        return f"{type(thing).__name__}({inside})"
    if thing and isinstance(thing[0], NodeTaskSpec):
        return f"<{len(thing)} tasks>"
    return f"({', '.join(map(_brief, thing))})"
