"""TaskHistory: the log of a World, with one short aligned line per entry."""

from __future__ import annotations

import hashlib
from typing import Any

from mpgrad.launch.event_text import brief, cut


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
