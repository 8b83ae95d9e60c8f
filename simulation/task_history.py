"""TaskHistory: the log of a World, with one short aligned line per entry."""

from __future__ import annotations

import hashlib
from typing import Any

from mpgrad.base.handles import CLIENT_ARENA, CLIENT_DEVICE_ARENA, ENGINE_ARENA, Block
from mpgrad.scheduler.plan_tables import NodeTaskSpec

LINE_CHARACTERS = 170


class TaskHistory:
    """Every event and every instruction in order: microsecond, process, description."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, str, tuple[Any, ...]]] = []

    def note(self, time_us: float, who: str, *what: Any) -> None:
        self.entries.append((time_us, who, what))

    def lines(self, last: int = 0) -> list[str]:
        """All entries as text, or the ``last`` ones."""
        return [_line(*entry) for entry in self.entries[-last:]]

    def digest(self) -> str:
        """A fingerprint of every field of every entry."""
        return hashlib.sha256(repr(self.entries).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.entries)


def _line(time_us: float, who: str, what: tuple[Any, ...]) -> str:
    """``what`` in brief: blocks as place and generation, bytes and tables by their length."""
    return cut(f"{time_us:>9,}  {who:<6} {' '.join(brief(part) for part in what)}")


def cut(line: str) -> str:
    """``line``, not too long to be read among others."""
    return line if len(line) <= LINE_CHARACTERS else f"{line[: LINE_CHARACTERS - 4]} ..."


def brief(thing: Any) -> str:
    """An event, an instruction or a part of one, without what only fills the line."""
    if isinstance(thing, str):
        return thing
    if isinstance(thing, bytes):
        return f"<{len(thing)} bytes>"
    if isinstance(thing, Block):
        known = {CLIENT_ARENA: "client", ENGINE_ARENA: "engine", CLIENT_DEVICE_ARENA: "client GPU"}
        arena = known.get(thing.arena, f"GPU memory {thing.arena}")
        return f"{arena}@{thing.offset}#{thing.generation}"
    if not isinstance(thing, tuple):
        return str(thing)
    fields = getattr(thing, "_fields", None)
    if fields is not None:
        inside = " ".join(
            f"{field}={brief(value)}" for field, value in zip(fields, thing, strict=True)
        )
        return f"{type(thing).__name__}({inside})"
    if thing and isinstance(thing[0], NodeTaskSpec):
        return f"<{len(thing)} tasks>"
    return f"({', '.join(map(brief, thing))})"
