"""CostModel: how long rules take, learned from what ran before."""

from __future__ import annotations

from collections.abc import Hashable

#: Weight of the newest measurement.
NEWEST = 0.3
#: Entries that are kept; the table starts afresh beyond it.
ENTRIES_MAX = 100_000


class CostModel:
    """Microseconds per (rule, shapes), as an exponential mean of what was measured."""

    def __init__(self) -> None:
        self._measured: dict[Hashable, float] = {}

    def get(self, key: Hashable) -> float | None:
        """The expected time in microseconds, or None if it never ran."""
        return self._measured.get(key)

    def observe(self, key: Hashable, microseconds: float) -> None:
        """One more measurement."""
        before = self._measured.get(key)
        if before is None:
            if len(self._measured) >= ENTRIES_MAX:
                self._measured.clear()
            self._measured[key] = microseconds
        else:
            self._measured[key] = before + NEWEST * (microseconds - before)

    def __len__(self) -> int:
        return len(self._measured)
