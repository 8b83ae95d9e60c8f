"""CostModel: how long rules take, learned from what ran before."""

from __future__ import annotations

from collections.abc import Hashable

#: Weight of the newest measurement.
NEWEST = 0.3
#: A measurement counts as at most so many times what was expected: a rule may have been interrupted
#: (by the garbage collector, by another process), and thousands of Nodes may share its entry.
SURPRISE_MAX = 4.0
#: Entries that are kept; the table starts afresh beyond it.
ENTRIES_MAX = 100_000


class CostModel:
    """Microseconds per (rule, shapes), as an exponential mean of what was measured."""

    def __init__(self) -> None:
        self._measured: dict[Hashable, float] = {}

    def get(self, key: Hashable) -> float | None:
        """The expected time in microseconds, or None if it never ran."""
        return self._measured.get(key)

    def observe(self, key: Hashable, microseconds: float, guess: float | None = None) -> None:
        """One more measurement.

        Args:
            key: rule and shapes.
            microseconds: how long the rule took.
            guess: what was expected, for a rule that was never measured before; None if nobody
                could know.
        """
        before = self._measured.get(key)
        if before is None:
            if guess is not None:
                microseconds = min(microseconds, SURPRISE_MAX * guess)
            if len(self._measured) >= ENTRIES_MAX:
                self._measured.clear()
            self._measured[key] = microseconds
        else:
            counted = min(microseconds, SURPRISE_MAX * before)
            self._measured[key] = before + NEWEST * (counted - before)

    def __len__(self) -> int:
        return len(self._measured)
