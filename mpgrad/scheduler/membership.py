"""Membership: the workers and sessions that can be given tasks, and what each holds."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from mpgrad.errors import ProtocolError
from mpgrad.handles import ENGINE_ARENA, Block, GradientRef

#: Tasks that a worker holds at most: one running, one prefetched, so that priority is decided here
#: and not in its queue. Of short tasks it may hold more: a message costs more than such a task.
WORKER_CREDIT = 2
SHORT_CREDIT = 16


class FlightKey(NamedTuple):
    """Names one dispatch for good: a retry has another attempt."""

    graph: int
    task: int
    attempt: int


class Flight(NamedTuple):
    """A task on its way: the blocks lent for its outputs, and what it reads."""

    blocks: tuple[Block | None, ...]
    inputs: tuple[tuple[GradientRef, ...], ...]
    #: True while it runs alone, because workers died under it before.
    is_suspect: bool
    is_short: bool

    def owned(self) -> frozenset[Block]:
        """The blocks that its reply may name."""
        lent = {block for block in self.blocks if block is not None}
        read = {ref for slot in self.inputs for ref in slot if isinstance(ref, Block)}
        return frozenset(lent | read)

    def check_reply(
        self, member: MemberRecord, outputs: tuple[GradientRef, ...], kept: tuple[Block, ...]
    ) -> None:
        """A reply may name only blocks that the task was lent or given.

        The client may also publish blocks of its own arena, which nobody counts.

        Raises:
            ProtocolError: it names another block.
        """
        owned = self.owned()
        for ref in (*outputs, *kept):
            if not isinstance(ref, Block) or ref in owned:
                continue
            if member.is_worker or ref.arena == ENGINE_ARENA:
                raise ProtocolError(f"{member.peer} names a block that is not its own: {ref}")


class MemberRecord:
    """One worker process or one client session, as long as that very incarnation lives."""

    def __init__(self, peer: str, *, is_worker: bool) -> None:
        self.peer = peer
        self.is_worker = is_worker
        #: Dispatched and not answered, in dispatch order.
        self.flights: dict[FlightKey, Flight] = {}
        #: Blocks that its user code still looks at, with how often each was reported.
        self.kept: Counter[Block] = Counter()

    @property
    def slot(self) -> int:
        """The worker's slot number: "w3.1" is the second process in slot 3."""
        return int(self.peer[1:].partition(".")[0])

    def has_credit(self, *, for_suspect: bool, for_short: bool) -> bool:
        """Whether it may be given one more task; a suspect needs a worker to itself."""
        if for_suspect:
            return not self.flights
        if any(flight.is_suspect for flight in self.flights.values()):
            return False
        only_short = for_short and all(flight.is_short for flight in self.flights.values())
        return len(self.flights) < (SHORT_CREDIT if only_short else WORKER_CREDIT)


class Membership:
    """All members by peer name, in the order in which they joined."""

    def __init__(self) -> None:
        self.members: dict[str, MemberRecord] = {}

    def join(self, peer: str, *, is_worker: bool) -> MemberRecord:
        self.members[peer] = MemberRecord(peer, is_worker=is_worker)
        return self.members[peer]

    def leave(self, peer: str) -> MemberRecord | None:
        return self.members.pop(peer, None)

    def get(self, peer: str) -> MemberRecord | None:
        return self.members.get(peer)

    def workers(self) -> list[MemberRecord]:
        return [member for member in self.members.values() if member.is_worker]

    def sessions(self) -> list[MemberRecord]:
        return [member for member in self.members.values() if not member.is_worker]

    def choose_worker(self, *, for_suspect: bool, for_short: bool) -> MemberRecord | None:
        """The least busy worker that may take a task; the lowest slot among equals."""
        free = [
            worker
            for worker in self.workers()
            if worker.has_credit(for_suspect=for_suspect, for_short=for_short)
        ]
        return min(free, key=lambda worker: (len(worker.flights), worker.slot), default=None)
