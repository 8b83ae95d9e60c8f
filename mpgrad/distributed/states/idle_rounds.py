"""IdleRounds: when no host has anything to do any more, as rank 0 finds out.

Nobody has anything to do once all have said so in two rounds: what one began, the next has seen.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

#: Rounds in which all have to be idle.
ROUNDS = 2


class RankReported(NamedTuple):
    """What a rank has to do."""

    rank: int
    busy: int


class RankGone(NamedTuple):
    """A rank has died: its successor has to report."""

    rank: int


class AnswerAll(NamedTuple):
    """A round is over: tell all whether it was the last one."""

    is_last: bool


IdleEvent: TypeAlias = RankReported | RankGone


class IdleRounds:
    """Kept by rank 0.

    Args:
        ranks: how many there are.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        #: Of this round: what each has to do.
        self._reports: dict[int, int] = {}
        self._idle = 0

    def handle_event(self, event: IdleEvent) -> list[AnswerAll]:
        """What follows."""
        if isinstance(event, RankGone):
            self._reports.pop(event.rank, None)
            self._idle = 0
            return []
        self._reports[event.rank] = event.busy
        if len(self._reports) < self._ranks:
            return []
        self._idle = 0 if any(self._reports.values()) else self._idle + 1
        self._reports.clear()
        return [AnswerAll(is_last=self._idle >= ROUNDS)]
