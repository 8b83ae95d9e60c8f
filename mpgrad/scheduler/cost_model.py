"""CostModel: how long rules take, learned from what ran before."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

#: Weight of the newest measurement.
NEWEST = 0.3
#: A measurement counts as at most so many times what was expected: a rule may have been interrupted
#: (by the garbage collector, by another process), and thousands of Nodes may share its entry.
SURPRISE_MAX = 4.0
#: Entries that are kept; the table starts afresh beyond it.
ENTRIES_MAX = 100_000
#: A graph suddenly takes another time if that is so many times more or less than usual, and the
#: difference is more than a message costs. (Compared with what was usual, not with what was
#: expected: graphs of very short Nodes alone are never learned, and would be a surprise for ever.)
FAR_OFF = 2.0
FAR_OFF_US = 1000.0


class CostModel:
    """Microseconds per (rule, shapes), as an exponential mean of what was measured."""

    def __init__(self) -> None:
        self._measured: dict[Hashable, float] = {}

    def get(self, key: Hashable) -> float | None:
        """The expected time in microseconds, or None if it never ran."""
        return self._measured.get(key)

    def observe(
        self, key: Hashable, measured_us: Sequence[float], guess: float | None = None
    ) -> None:
        """What the rules of one backward that share an entry took.

        They count together, by their mean: one after another, the last few of a thousand would
        decide.

        Args:
            key: rule and shapes.
            measured_us: microseconds, of each at least one run.
            guess: what was expected, for a rule that was never measured before; None if nobody
                could know.
        """
        before = self._measured.get(key)
        expected = guess if before is None else before
        if expected is not None:
            most = SURPRISE_MAX * expected
            measured_us = [min(microseconds, most) for microseconds in measured_us]
        mean = sum(measured_us) / len(measured_us)
        if before is None:
            if len(self._measured) >= ENTRIES_MAX:
                self._measured.clear()
            self._measured[key] = mean
        else:
            # The weight that so many would have one after another.
            weight = 1.0 - (1.0 - NEWEST) ** len(measured_us)
            self._measured[key] = before + weight * (mean - before)

    def __len__(self) -> int:
        return len(self._measured)


class UsualTime:
    """What one graph usually takes.

    The shapes of a custom Function do not tell how long it takes: it may do a thousand times more
    in the next step, and a plan that makes one task of all its Nodes is a serial one then.
    """

    __slots__ = ("_usual_us",)

    def __init__(self) -> None:
        self._usual_us: float | None = None

    def is_far_from(self, took_us: float) -> bool:
        """Note what the graph took this time; whether that is far from what was usual."""
        usual_us, self._usual_us = self._usual_us, took_us
        if usual_us is None:
            return False
        low, high = sorted((took_us, usual_us))
        if high > FAR_OFF * low and high - low > FAR_OFF_US:
            return True
        self._usual_us = usual_us + NEWEST * (took_us - usual_us)
        return False
