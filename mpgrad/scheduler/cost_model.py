"""CostModel: the expected times of rules, learned from earlier backwards."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from mpgrad.scheduler import tuning

#: The maximum number of entries. The table is cleared when it is full.
ENTRIES_MAX = 100_000
#: The weight of the newest measurement in a mean of the last ``SAMPLES``.
NEWEST = 2.0 / (tuning.SAMPLES + 1)


class CostModel:
    """Microseconds per (rule, shapes), as an exponential mean of the measurements."""

    def __init__(self) -> None:
        self._measured: dict[Hashable, float] = {}
        #: Entries with one measurement, which may include the first run of a rule.
        self._cold: set[Hashable] = set()

    def get(self, key: Hashable) -> float | None:
        """The expected time in microseconds, or None if the rule never ran."""
        return self._measured.get(key)

    def observe(
        self, key: Hashable, measured_us: Sequence[float], guess: float | None = None
    ) -> None:
        """Learn from the rules of one backward that share an entry.

        The mean of these runs counts once; otherwise the last few of a thousand runs would decide.
        It counts as at most ``SURPRISE_MAX`` times the expected time: a run may have been
        interrupted, and thousands of Nodes may share the entry. The first measurement counts only
        until the second: the first run in a process takes many times as long.

        Args:
            key: rule and shapes.
            measured_us: microseconds of each run, at least one.
            guess: the expected time of a rule without a measurement; None if there is no estimate.
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
            # The weight that as many single measurements would have.
            weight = 1.0 - (1.0 - NEWEST) ** len(measured_us)
            self._measured[key] = before + weight * (mean - before)

    def __len__(self) -> int:
        return len(self._measured)


class UsualTime:
    """The usual time of one graph.

    The shapes of a custom Function do not tell how long it takes: it may take a thousand times
    longer in the next step, and a plan that puts all its Nodes into one task is then serial.
    ``is_far_from`` compares with the usual time, not with the predicted one: graphs of very short
    Nodes are never learned, so each of their backwards would be far from the prediction.
    """

    __slots__ = ("_usual_us",)

    def __init__(self) -> None:
        self._usual_us: float | None = None

    def is_far_from(self, took_us: float) -> bool:
        """Record ``took_us``; whether that is far from the usual time."""
        usual_us, self._usual_us = self._usual_us, took_us
        if usual_us is None:
            return False
        low, high = (took_us, usual_us) if took_us < usual_us else (usual_us, took_us)
        is_noticeable = high - low > tuning.BACKWARD_MESSAGES * tuning.MESSAGE_US
        if high > tuning.FAR_OFF * low and is_noticeable:
            return True
        self._usual_us = usual_us + NEWEST * (took_us - usual_us)
        return False
