"""Membership: the workers and sessions that can run tasks, and what each of them holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from mpgrad.base.handles import Block, GradientRef, is_counted
from mpgrad.errors import ProtocolError
from mpgrad.scheduler.events import WorkerHung
from mpgrad.scheduler.graph_spec import ON_CPU

#: The number of tasks that a worker holds at most: one running and one prefetched, so that the
#: coordinator decides their priority. It may hold more short tasks, which cost less than a message.
WORKER_CREDIT = 2
SHORT_CREDIT = 16
#: The tasks that wait for a worker which holds their branches, before an idle one takes some of
#: them. That one has to make the branches again, which takes about as long as to differentiate two.
NEAR_WAITING_MAX = 2


class FlightKey(NamedTuple):
    """Identifies one dispatch; a retry has another attempt."""

    graph: int
    task: int
    attempt: int


class Flight(NamedTuple):
    """A dispatched task: the blocks lent for its outputs, and the inputs that it reads."""

    blocks: tuple[Block | None, ...]
    inputs: tuple[tuple[GradientRef, ...], ...]
    #: True while it runs alone, because workers have died while they ran it.
    is_suspect: bool
    is_short: bool
    #: The longest path behind the task (see ``NodeTaskSpec.behind``).
    behind: float = 0.0
    #: Expected run time in microseconds.
    cost_us: int = 0
    #: The number of times it will still publish outputs before it ends.
    publications: int = 0

    def owned(self) -> frozenset[Block]:
        """The blocks that its reply may name."""
        lent = {block for block in self.blocks if block is not None}
        read = {ref for slot in self.inputs for ref in slot if isinstance(ref, Block)}
        return frozenset(lent | read)

    def check_reply(
        self,
        member: MemberRecord,
        outputs: Iterable[tuple[int, GradientRef]],
        kept: tuple[Block, ...],
    ) -> None:
        """Check that a reply names only blocks that the task was lent or given.

        The client may also publish blocks of its own arena, which are not counted, and a GPU worker
        the blocks that it has just made in its own memory.

        Args:
            member: the sender of the reply.
            outputs: the outputs by number.
            kept: the blocks that user code still references.

        Raises:
            ProtocolError: the reply names another block.
        """
        # Nearly every output lies in the very block that was lent for it.
        others = [
            ref for number, ref in outputs if isinstance(ref, Block) and ref != self.blocks[number]
        ]
        others += kept
        owned = self.owned() if others else frozenset()
        for ref in others:
            is_own = ref in owned or ref.arena == member.arena
            if not is_own and (member.is_worker or is_counted(ref)):
                raise ProtocolError(f"{member.peer} names a block that is not its own: {ref}")


@dataclass
class MemberRecord:
    """One worker process or one client session, for the life of that incarnation."""

    peer: str
    is_worker: bool
    #: The device whose tasks it runs, and the arena of the blocks that it makes (GPU workers).
    device: int = ON_CPU
    arena: int = -1
    #: The highest generation of the blocks that it has made there.
    newest_generation: int = 0
    #: Tasks dispatched and not answered, in dispatch order. Only begin() and end() change it.
    flights: dict[FlightKey, Flight] = field(default_factory=dict)
    #: The number of suspects among them and of tasks that are not short; the longest path behind.
    suspects: int = 0
    long: int = 0
    behind: float = 0.0
    #: Their total expected run time in microseconds, and how many of them will still publish.
    load_us: int = 0
    publishing: int = 0
    #: Blocks that its user code still references, with the number of reports of each.
    kept: dict[Block, int] = field(default_factory=dict)
    #: It is being killed and gets no tasks. The reason, unless only a deadline has passed.
    is_fenced: bool = False
    hung: WorkerHung | None = None

    def __post_init__(self) -> None:
        self._slot = int(self.peer[1:].partition(".")[0]) if self.is_worker else -1

    @property
    def slot(self) -> int:
        """The worker's slot number: "w3.1" is the second process in slot 3."""
        return self._slot

    def keep(self, block: Block) -> None:
        """Its user code references ``block`` once more."""
        self.kept[block] = self.kept.get(block, 0) + 1

    def begin(self, key: FlightKey, flight: Flight) -> None:
        """A task is dispatched to this member."""
        self.flights[key] = flight
        self.suspects += flight.is_suspect
        self.long += not flight.is_short
        self.load_us += flight.cost_us
        self.publishing += flight.publications > 0
        self.behind = max(self.behind, flight.behind)

    def end(self, key: FlightKey) -> Flight:
        """A task is answered or lost."""
        flight = self.flights.pop(key)
        self.suspects -= flight.is_suspect
        self.long -= not flight.is_short
        self.load_us -= flight.cost_us
        self.publishing -= flight.publications > 0
        self.behind = max((left.behind for left in self.flights.values()), default=0.0)
        return flight

    @property
    def is_idle(self) -> bool:
        """Whether it has no task and may be given one."""
        return not self.flights and not self.is_fenced

    def note_publication(self, key: FlightKey) -> None:
        """The task has published outputs and goes on."""
        flight = self.flights[key]
        if flight.publications > 0:
            self.flights[key] = flight._replace(publications=flight.publications - 1)
            self.publishing -= flight.publications == 1

    def has_credit(self, *, for_suspect: bool, for_short: bool, priority: float) -> bool:
        """Whether it may be given one more task; a suspect needs a worker of its own.

        A long task does not wait at a worker if something more urgent will be ready when the worker
        has done what it holds: the rest of a chain would have to wait, or move to the cache of
        another worker. No task waits behind one that still publishes, because other workers should
        run what it publishes.
        """
        if self.is_fenced:
            return False
        held = len(self.flights)
        if held == 0:
            return True
        if for_suspect or self.suspects or self.publishing:
            return False
        if for_short:
            return held < (WORKER_CREDIT if self.long else SHORT_CREDIT)
        return held < WORKER_CREDIT and priority >= self.behind


@dataclass
class Membership:
    """All members by peer name, in the order in which they joined."""

    members: dict[str, MemberRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        #: The workers among them, by slot.
        self._workers = [member for member in self.members.values() if member.is_worker]
        self._workers.sort(key=lambda worker: worker.slot)

    def join(
        self, peer: str, *, is_worker: bool, device: int = ON_CPU, arena: int = -1
    ) -> MemberRecord:
        member = MemberRecord(peer, is_worker=is_worker, device=device, arena=arena)
        self.members[peer] = member
        if is_worker:
            self._workers.append(member)
            self._workers.sort(key=lambda worker: worker.slot)
        return member

    def leave(self, peer: str) -> MemberRecord | None:
        member = self.members.pop(peer, None)
        if member is not None and member.is_worker:
            self._workers.remove(member)
        return member

    def get(self, peer: str) -> MemberRecord | None:
        return self.members.get(peer)

    def workers(self) -> list[MemberRecord]:
        """All workers by slot; do not change the list."""
        return self._workers

    def owner_of(self, arena: int) -> MemberRecord | None:
        """The living worker that exports device memory under the number ``arena``."""
        return next((worker for worker in self._workers if worker.arena == arena), None)

    def sessions(self) -> list[MemberRecord]:
        return [member for member in self.members.values() if not member.is_worker]

    def worker_for_branch(
        self, slot: int, waiting: int, *, for_suspect: bool, priority: float
    ) -> MemberRecord | None:
        """Who may take one of the ``waiting`` tasks near the worker in ``slot``.

        That worker, if it has credit. An idle one, if there is none in the slot, or if the queue
        is so long that making a branch again is sooner done than waiting for it.
        """
        cpu = [worker for worker in self._workers if worker.device == ON_CPU]
        holder = next((w for w in cpu if w.slot == slot and not w.is_fenced), None)
        if holder is not None:
            if holder.has_credit(for_suspect=for_suspect, for_short=False, priority=priority):
                return holder
            if waiting <= NEAR_WAITING_MAX:
                return None
        idle = [worker for worker in cpu if not worker.flights and not worker.is_fenced]
        return idle[0] if idle else None

    def choose_worker(
        self, *, device: int, for_suspect: bool, for_short: bool, priority: float, near: str
    ) -> MemberRecord | None:
        """The least busy worker of ``device`` that may take a task.

        ``near``, the peer whose message is being handled, comes first if it is idle: its reply
        probably made the task ready, so its cache holds the inputs. Then comes the worker with
        fewer tasks, then the one with less work, then the lower slot.
        """
        nearest = self.members.get(near)
        if (
            nearest is not None
            and nearest.is_worker
            and nearest.is_idle
            and nearest.device == device
        ):
            return nearest
        best, fewest = None, SHORT_CREDIT if for_short else WORKER_CREDIT
        # This runs once or twice per message over all workers: a plain loop that stops at a worker
        # that is idle.
        for worker in self._workers:
            held = len(worker.flights)
            if held > fewest or worker.device != device:
                continue
            if held == fewest and (best is None or worker.load_us >= best.load_us):
                continue
            if worker.has_credit(for_suspect=for_suspect, for_short=for_short, priority=priority):
                best, fewest = worker, held
                if held == 0:
                    break
        return best
