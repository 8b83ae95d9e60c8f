"""RankPlacement: which hosts take part in a job, and which of its ranks each of them runs.

The launcher of host 0, which all others come to, keeps it. The number of ranks never changes; hosts
come and go. A host keeps what it was given until it is lost: so nothing is ever taken from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from mpgrad.distributed.states.host_membership import (
    HostGone,
    HostJoined,
    Participant,
    RefuseHost,
    RendezvousExpired,
    version_that_differs,
)

#: What a host asks for that leaves its number to host 0.
ANY = -1


class LastCallExpired(NamedTuple):
    """Enough hosts are there, and the time that others had to come is over."""


class RanksEnded(NamedTuple):
    """Ranks of a host have ended well."""

    incarnation: str
    ranks: tuple[int, ...]


class AssignRanks(NamedTuple):
    """Tell ``to`` to run these ranks, beside those that it has; none makes it a spare host."""

    to: Participant
    #: Its number, and how many hosts the job has begun with.
    host: int
    hosts: int
    ranks: tuple[int, ...]
    #: How many losses of hosts have led to this.
    losses: int


class DismissHost(NamedTuple):
    """Tell ``to`` that the job needs it no more."""

    to: Participant


PlacementEvent: TypeAlias = HostJoined | HostGone | LastCallExpired | RanksEnded | RendezvousExpired
PlacementAnswer: TypeAlias = AssignRanks | RefuseHost | DismissHost


@dataclass(eq=False)
class _Host:
    """A host that is there."""

    participant: Participant
    #: ANY until the job begins.
    number: int
    ranks: set[int] = field(default_factory=set)


class RankPlacement:
    """The hosts of one job.

    Args:
        own: host 0.
        hosts_min: without so many hosts nothing is started.
        hosts_max: no more take part.
        per_host: ranks that each host has where all are there; they give the number of ranks.
        restarts: what a lost host has run is started again elsewhere.
    """

    def __init__(
        self, own: HostJoined, *, hosts_min: int, hosts_max: int, per_host: int, restarts: bool
    ) -> None:
        self._own, self._min, self._max = own, hosts_min, hosts_max
        self._world_size, self._restarts = hosts_max * per_host, restarts
        #: In the order in which they came.
        self._hosts: dict[str, _Host] = {}
        #: Who has gone with ranks, in words: each of them may still run these.
        self._lost: dict[str, str] = {}
        #: Why the last one was refused, if one was.
        self._refused = ""
        #: How many hosts the job has begun with; 0 before that.
        self._begun_with = 0
        self._ended: set[int] = set()
        #: The ranks that no host runs, and that have not ended.
        self._unplaced: list[int] = list(range(self._world_size))
        self._admit(own)

    @property
    def has_begun(self) -> bool:
        """Whether ranks were assigned."""
        return self._begun_with > 0

    @property
    def has_quorum(self) -> bool:
        """Whether the job could begin and has not: others have the time of the last call."""
        return not self.has_begun and len(self._hosts) >= self._min

    @property
    def is_waiting(self) -> bool:
        """Whether ranks cannot run before another host comes."""
        return bool(self._unplaced) and len(self._hosts) < self._min

    @property
    def awaited(self) -> list[int]:
        """The numbers of the other hosts that still run ranks."""
        return [
            host.number
            for incarnation, host in self._hosts.items()
            if incarnation != self._own.member.incarnation and host.ranks - self._ended
        ]

    def handle_event(self, event: PlacementEvent) -> list[PlacementAnswer]:
        """Whom to tell what."""
        if isinstance(event, HostJoined):
            return self._join(event)
        if isinstance(event, HostGone):
            return self._lose(event.incarnation)
        if isinstance(event, RanksEnded):
            return self._end(event.ranks)
        if isinstance(event, LastCallExpired):
            return self._begin() if self.has_quorum else []
        return [
            RefuseHost(host.participant, self.why_incomplete(), is_timeout=True)
            for host in self._others()
        ]

    # ------------------------------------------------------------------ who comes

    def _join(self, event: HostJoined) -> list[PlacementAnswer]:
        incarnation = event.member.incarnation
        if incarnation in self._hosts:  # it says that it is still there
            return []
        reason = self._objection(event)
        if reason:
            self._refused = reason
            return [RefuseHost(event.member, reason, is_timeout=False)]
        host = self._admit(event)
        if not self.has_begun:
            return self._begin() if len(self._hosts) == self._max else []
        if host.number == ANY:
            host.number = self._free_number()
        if self._ended:
            return [DismissHost(host.participant)]
        return self._place() or [self._assignment(host, ())]

    def _admit(self, event: HostJoined) -> _Host:
        host = _Host(event.member, event.member.rank)
        self._hosts[event.member.incarnation] = host
        return host

    def _objection(self, event: HostJoined) -> str:
        member = event.member
        who = f"the host at {member.address}"
        if member.incarnation in self._lost:
            return f"{self._lost[member.incarnation]} was lost, and others run its ranks"
        differs = version_that_differs(event.versions, self._own.versions)
        if differs:
            return f"{who} has {differs[0]}, but host 0 has {differs[1]}"
        for host in self._hosts.values():
            if member.rank == host.number != ANY:
                return f"host number {member.rank} is taken, by {host.participant.address}"
        if not ANY <= member.rank < self._max:
            return f"host number {member.rank} is not below {self._max}"
        if len(self._hosts) == self._max:
            return f"the job has its {self._max} hosts, and no place for {who}"
        return ""

    def _begin(self) -> list[PlacementAnswer]:
        self._begun_with = len(self._hosts)
        for host in self._hosts.values():
            if host.number == ANY:
                host.number = self._free_number()
        hosts = sorted(self._hosts.values(), key=lambda host: host.number)
        cuts = [k * self._world_size // len(hosts) for k in range(len(hosts) + 1)]
        self._unplaced = []
        return [self._assignment(host, range(cuts[k], cuts[k + 1])) for k, host in enumerate(hosts)]

    def _free_number(self) -> int:
        taken = {host.number for host in self._hosts.values()}
        return min(number for number in range(self._max) if number not in taken)

    def _assignment(self, host: _Host, new: Sequence[int]) -> AssignRanks:
        host.ranks.update(new)
        return AssignRanks(
            host.participant, host.number, self._begun_with, tuple(new), len(self._lost)
        )

    # ------------------------------------------------------------------ who goes

    def _lose(self, incarnation: str) -> list[PlacementAnswer]:
        host = self._hosts.get(incarnation)
        if host is None or host.number == 0:
            return []
        del self._hosts[incarnation]
        running = host.ranks - self._ended
        if not running:
            return []
        self._lost[incarnation] = f"host {host.number} ({host.participant.address})"
        # Ranks that have ended cannot meet others again.
        if not self._restarts or self._ended:
            return []
        self._unplaced = sorted({*self._unplaced, *running})
        return self._place()

    def _place(self) -> list[PlacementAnswer]:
        """Give each rank without a host to the one that runs the fewest."""
        if not self._unplaced or self.is_waiting:
            return []
        given: dict[int, list[int]] = {}
        hosts = {host.number: host for host in self._hosts.values()}
        running = {number: len(host.ranks) for number, host in hosts.items()}
        for rank in self._unplaced:
            number = min(running, key=lambda number: (running[number], number))
            running[number] += 1
            given.setdefault(number, []).append(rank)
        self._unplaced = []
        return [self._assignment(hosts[number], ranks) for number, ranks in sorted(given.items())]

    def _end(self, ranks: Sequence[int]) -> list[PlacementAnswer]:
        self._ended.update(ranks)
        self._unplaced = []
        idle = [host for host in self._others() if not host.ranks - self._ended]
        return [DismissHost(host.participant) for host in idle]

    def _others(self) -> list[_Host]:
        return [host for host in self._hosts.values() if host.number != 0]

    def why_incomplete(self) -> str:
        """What hosts are missing, in words, and why those that were refused were."""
        numbers = {host.number for host in self._hosts.values()}
        came = ", ".join(host.participant.address for host in self._hosts.values())
        if self._lost:
            text = f"{', '.join(self._lost.values())} was lost, and no other host came instead"
        elif ANY in numbers or self._min < self._max:
            text = f"of {self._min} hosts only these came: {came}"
        else:
            missing = [str(k) for k in range(self._max) if k not in numbers]
            text = f"of {self._max} hosts these did not come: {', '.join(missing)}; there is {came}"
        return f"{text} ({self._refused})" if self._refused else text
