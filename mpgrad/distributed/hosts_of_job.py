"""FirstHost and OtherHost: how the launchers of a job find each other, and share its ranks.

Host 0 listens at the endpoint that all of them were given, and decides. The others run what it
assigns to them. Neither knows sockets, processes or a clock; the simulation runs them as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from mpgrad.distributed.carrier.contract import (
    CarrierEvent,
    HostArrival,
    HostCarrier,
    HostDisconnected,
)
from mpgrad.distributed.carrier.messages import (
    Assignment,
    Dismissal,
    HostMessage,
    Join,
    RanksDone,
    Refusal,
    encode_head,
)
from mpgrad.distributed.rendezvous import AGAIN_S, MASTER, PATIENCE_S, joined, read
from mpgrad.distributed.states.host_membership import HostGone, RefuseHost, RendezvousExpired
from mpgrad.distributed.states.rank_placement import (
    AssignRanks,
    LastCallExpired,
    PlacementAnswer,
    RankPlacement,
    RanksEnded,
)
from mpgrad.errors import HostLost, RendezvousTimeout

#: What carriers call host 0, and another host, before the incarnation.
FIRST, OTHER = "first", "host"

#: Runs ranks here.
RunRanks: TypeAlias = Callable[[Assignment], None]


class JobTerms(NamedTuple):
    """What all hosts of a job agree on, and how long they wait for each other."""

    hosts_min: int
    hosts_max: int
    #: Ranks of each host where all are there.
    per_host: int
    #: Ranks of a lost host start again on others.
    restarts: bool
    #: Seconds until there are enough hosts; after that, seconds for more of them. The defaults are
    #: those of ``torchrun``.
    join_timeout_s: float = 600.0
    last_call_s: float = 30.0


class FirstHost:
    """The part of host 0.

    Args:
        carrier: listens at the endpoint.
        join: what this host says of itself.
        terms: of the job.
        master_port: where rank 0 is going to listen.
        run: is called with what this host has to run.
    """

    def __init__(
        self,
        carrier: HostCarrier,
        join: Join,
        terms: JobTerms,
        master_port: int,
        run: RunRanks,
    ) -> None:
        self.carrier, self._own, self._terms = carrier, join.incarnation, terms
        self._master_port, self._run = master_port, run
        self._placement = RankPlacement(
            joined(join),
            hosts_min=terms.hosts_min,
            hosts_max=terms.hosts_max,
            per_host=terms.per_host,
            restarts=terms.restarts,
        )
        #: What the carrier calls each host, by its incarnation.
        self._labels: dict[str, str] = {}
        self._connections = 0
        self._waits_until = self._last_call_until = math.inf

    @property
    def is_needed(self) -> bool:
        """Whether the job has not begun, or other hosts still run ranks."""
        return not self._placement.has_begun or bool(self._placement.awaited)

    def take(self, event: CarrierEvent) -> None:
        """What has come."""
        if not isinstance(event, HostArrival):
            incarnation = event.peer.partition(".")[2]
            if self._labels.get(incarnation) == event.peer:  # else it is known
                del self._labels[incarnation]
                self.carrier.disconnect(event.peer)
                self._perform(self._placement.handle_event(HostGone(incarnation)))
            return
        message = read(event)
        if isinstance(message, Join) and event.sender == f"{OTHER}.{message.incarnation}":
            if message.incarnation not in self._labels:
                self._connections += 1
                label = f"{self._connections}.{message.incarnation}"
                self._labels[message.incarnation] = label
                self.carrier.connect(label, message.address)
            self._perform(self._placement.handle_event(joined(message)))
        elif isinstance(message, RanksDone):
            self._end(event.sender.partition(".")[2], message.ranks)

    def look(self, now: float) -> None:
        """What follows from the time, which is looked at again and again.

        Raises:
            RendezvousTimeout: there are not enough hosts.
        """
        placement = self._placement
        self._waits_until = (
            min(self._waits_until, now + self._terms.join_timeout_s)
            if placement.is_waiting
            else math.inf
        )
        if now >= self._waits_until:
            why = placement.why_incomplete()
            self._perform(placement.handle_event(RendezvousExpired()))
            raise RendezvousTimeout(why)
        self._last_call_until = (
            min(self._last_call_until, now + self._terms.last_call_s)
            if placement.has_quorum
            else math.inf
        )
        if now >= self._last_call_until:
            self._perform(placement.handle_event(LastCallExpired()))

    def end(self, ranks: Sequence[int]) -> None:
        """Ranks of this host have ended well."""
        self._end(self._own, ranks)

    def _end(self, incarnation: str, ranks: Sequence[int]) -> None:
        self._perform(self._placement.handle_event(RanksEnded(incarnation, tuple(ranks))))

    def _perform(self, answers: list[PlacementAnswer]) -> None:
        for answer in answers:
            to = answer.to.incarnation
            if isinstance(answer, AssignRanks):
                self._tell(
                    to,
                    Assignment(
                        to,
                        answer.host,
                        answer.hosts,
                        answer.losses,
                        answer.ranks,
                        self._master_port,
                    ),
                )
            elif isinstance(answer, RefuseHost):
                self._tell(to, Refusal(answer.reason, answer.is_timeout))
            else:
                self._tell(to, Dismissal(to))

    def _tell(self, to: str, message: HostMessage) -> None:
        if to != self._own:
            self.carrier.send(self._labels[to], [encode_head(message)])
        elif isinstance(message, Assignment):
            self._run(message)


class OtherHost:
    """The part of any other host.

    Args:
        carrier: of this host.
        join: what this host says of itself.
        terms: of the job.
        endpoint: where host 0 listens.
        run: is called with what this host has to run.
    """

    def __init__(
        self, carrier: HostCarrier, join: Join, terms: JobTerms, endpoint: str, run: RunRanks
    ) -> None:
        self.carrier, self._join, self._run = carrier, join, run
        self._endpoint, self._patience_s = endpoint, terms.join_timeout_s + PATIENCE_S
        #: The name of host 0, once it has told this one what to run.
        self._first = ""
        self._ranks: set[int] = set()
        #: Whether host 0 may still have something to say.
        self.is_needed = True
        self._asks_at, self._waits_until = -math.inf, math.inf
        carrier.connect(MASTER, endpoint)

    def take(self, event: CarrierEvent) -> None:
        """What has come.

        Raises:
            HostLost: host 0 is lost.
            RendezvousTimeout: others did not come.
            RuntimeError: host 0 has refused this one, or takes it for lost.
        """
        if not isinstance(event, HostArrival):
            cause = "it cannot be reached"
            if isinstance(event, HostDisconnected):
                cause = event.cause
            if self._first and self.is_needed:
                raise HostLost(0, cause, "launcher")
        elif event.sender.startswith(FIRST):
            self._hear(event)

    def _hear(self, event: HostArrival) -> None:
        message = read(event)
        if self._first not in ("", event.sender):  # a former host 0
            return
        if isinstance(message, Refusal):
            kind = RendezvousTimeout if message.is_timeout else RuntimeError
            raise kind(f"host 0 refused this host: {message.reason}")
        # The address may have been another process's, for which this one is.
        if isinstance(message, Dismissal) and message.to == self._join.incarnation:
            self.is_needed = False
        if isinstance(message, Assignment) and message.to == self._join.incarnation:
            self._first = event.sender
            if self._ranks.isdisjoint(message.ranks):  # else it has come twice
                self._ranks.update(message.ranks)
                self._run(message)

    def look(self, now: float) -> None:
        """What follows from the time, which is looked at again and again.

        Raises:
            RendezvousTimeout: host 0 is not there.
        """
        if now >= self._asks_at:
            # Later ones say that it is still there: host 0 may take it for lost.
            self.carrier.send(MASTER, [encode_head(self._join)])
            self._asks_at = now + AGAIN_S
        self._waits_until = min(self._waits_until, now + self._patience_s)
        if now >= self._waits_until and not self._first:
            raise RendezvousTimeout(
                f"host 0 did not answer at {self._endpoint}: it did not come, or it has another key"
            )

    def end(self, ranks: Sequence[int]) -> None:
        """Ranks of this host have ended well."""
        self.carrier.send(MASTER, [encode_head(RanksDone(tuple(ranks)))])
