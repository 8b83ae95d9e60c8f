"""CostModel: how long rules take, learned from what ran before."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from mpgrad.scheduler import tuning

#: Entries that are kept; the table starts afresh beyond it.
ENTRIES_MAX = 100_000
#: Weight of the newest measurement: that of a mean of the last ``SAMPLES``.
NEWEST = 2.0 / (tuning.SAMPLES + 1)


class CostModel:
    """Microseconds per (rule, shapes), as an exponential mean of what was measured."""

    def __init__(self) -> None:
        self._measured: dict[Hashable, float] = {}
        #: Entries of one measurement, which may be of a rule that ran for the first time.
        self._cold: set[Hashable] = set()

    def get(self, key: Hashable) -> float | None:
        """The expected time in microseconds, or None if it never ran."""
        return self._measured.get(key)

    def observe(
        self, key: Hashable, measured_us: Sequence[float], guess: float | None = None
    ) -> None:
        """What the rules of one backward that share an entry took.

        They count together, by their mean: one after another, the last few of a thousand would
        decide. One counts as at most ``SURPRISE_MAX`` times what was expected: it may have been
        interrupted, and thousands of Nodes may share the entry. The first backward counts only
        until the second: what runs for the first time in a process takes many times as long.

        Args:
            key: rule and shapes.
            measured_us: microseconds, of each at least one run.
            guess: what was expected, for a rule that was never measured before; None if nobody
                could know.
        """
        before = self._measured.get(key)
        expected = guess if before is None else before
        if expected is not None:
            most = tuning.SURPRISE_MAX * expected
            measured_us = [min(microseconds, most) for microseconds in measured_us]
        mean = sum(measured_us) / len(measured_us)
        if before is None:
            if len(self._measured) >= ENTRIES_MAX:
                self._measured.clear()
                self._cold.clear()
            self._measured[key] = mean
            self._cold.add(key)
        elif key in self._cold:
            self._cold.discard(key)
            self._measured[key] = min(before, mean)
        else:
            # The weight that so many would have one after another.
            weight = 1.0 - (1.0 - NEWEST) ** len(measured_us)
            self._measured[key] = before + weight * (mean - before)

    def __len__(self) -> int:
        return len(self._measured)


class UsualTime:
    """What one graph usually takes.

    The shapes of a custom Function do not tell how long it takes: it may do a thousand times more
    in the next step, and a plan that makes one task of all its Nodes is a serial one then. The time
    is compared with what was usual, not with what was expected: graphs of very short Nodes alone
    are never learned, and would be a surprise for ever.
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
        is_noticeable = high - low > tuning.BACKWARD_MESSAGES * tuning.MESSAGE_US
        if high > tuning.FAR_OFF * low and is_noticeable:
            return True
        self._usual_us = usual_us + NEWEST * (took_us - usual_us)
        return False
