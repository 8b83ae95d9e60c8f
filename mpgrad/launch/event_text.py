"""Events and instructions as text: short enough to be read among others."""

from __future__ import annotations

from typing import Any

from mpgrad.base.handles import CLIENT_ARENA, CLIENT_DEVICE_ARENA, ENGINE_ARENA, Block
from mpgrad.scheduler.plan_tables import NodeTaskSpec

LINE_CHARACTERS = 170


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
