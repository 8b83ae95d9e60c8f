"""Leaving: how a process waits until nobody calls any more."""

from __future__ import annotations

from collections.abc import Callable

from mpgrad.distributed.carrier.messages import IdleAnswered, IdleReported
from mpgrad.distributed.futures import Future
from mpgrad.distributed.states.idle_rounds import IdleRounds, RankGone, RankReported
from mpgrad.errors import HostLost


class Leaving:
    """One process's part. Everything is called with the turn of the group (MemberThread).

    Args:
        rank: of this process.
        ranks: how many there are.
        lost: the ranks that have no process, and why; the service's.
        has_left: whether one of these has said farewell.
        reopens: one that has not comes back as another process.
        deliver: sends to a rank, this one included.
    """

    def __init__(
        self,
        rank: int,
        ranks: int,
        lost: dict[int, str],
        has_left: Callable[[int], bool],
        deliver: Callable[[int, IdleReported | IdleAnswered], None],
        *,
        reopens: bool,
    ) -> None:
        self._rank, self._ranks, self._lost, self._reopens = rank, ranks, lost, reopens
        self._has_left, self._deliver = has_left, deliver
        #: At rank 0.
        self._rounds, self._is_over = IdleRounds(ranks), False
        #: What this process has told, as long as it has no answer, and who waits for that.
        self._report: IdleReported | None = None
        self._answer = Future()

    def may_return(self, rank: int) -> bool:
        """Whether another process will take the place of one that has gone."""
        return self._reopens and not self._has_left(rank)

    def report(self, busy: int, answer: Future) -> None:
        """Tell rank 0 what this process has to do.

        Args:
            busy: how much it is.
            answer: gets True once nobody has anything to do, and False to have it told again; or a
                HostLost, if a process has gone, and none takes its place.
        """
        self._report, self._answer = IdleReported(busy), answer
        self._tell()

    def take_report(self, rank: int, busy: int) -> None:
        """At rank 0: what a rank has told."""
        for step in self._rounds.handle_event(RankReported(rank, busy)):
            self._is_over = step.is_last
            for to in range(self._ranks):
                if to not in self._lost:
                    self._deliver(to, IdleAnswered(step.is_last))
        if not self._is_over:
            self._give_up()

    def take_answer(self, message: IdleAnswered) -> None:
        """What rank 0 has found."""
        if self._report is not None:
            self._report = None
            self._answer.set_result(message.is_last)

    def gone(self, rank: int) -> None:
        """A rank's process has died or left."""
        self._rounds.handle_event(RankGone(rank))
        if not self._is_over:
            self._give_up()

    def returned(self, rank: int) -> None:
        """A rank has a process again."""
        if rank == 0:
            self._tell()

    def _tell(self) -> None:
        self._give_up()
        if self._report is not None and 0 not in self._lost:
            self._deliver(0, self._report)

    def _give_up(self) -> None:
        """If somebody has gone for good.

        Who has left may have known the end, which this process has not heard of yet: only rank 0
        can tell.
        """
        for rank, cause in self._lost.items():
            if self._report is None or self.may_return(rank):
                continue
            if 0 in (rank, self._rank) or not self._has_left(rank):
                self._report = None
                self._answer.set_exception(HostLost(rank, cause, "shutdown"))
