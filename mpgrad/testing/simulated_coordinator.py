"""SimulatedCoordinator: the real CoordinatorState, and a shell without a process around it.

It does what ``coordinator/coordinator.py`` and its supervisor do: decode, let the core handle,
perform, start workers, see them die, cut off who breaks the protocol. After every event it has all
tables recounted.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from mpgrad.errors import ProtocolError
from mpgrad.handles import WORKER_DEVICE_ARENA, Block
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.coordinator_state import CoordinatorState
from mpgrad.scheduler.graph_spec import ON_CPU
from mpgrad.scheduler.invariants import check_invariants
from mpgrad.scheduler.journal import AllocatorRecorder, Journal
from mpgrad.testing.expectations import require
from mpgrad.testing.faults import DEATHS_MAX
from mpgrad.testing.simulated_worker import SimulatedWorker
from mpgrad.testing.situations import Situations
from mpgrad.testing.virtual_time import SLOW_DELAY_US
from mpgrad.wire.codec import decode, encode
from mpgrad.wire.schema import FROM_CLIENT, FROM_WORKER, EndSession, Hello

if TYPE_CHECKING:
    from mpgrad.testing.world import World


#: After a deadline the workers that it ends are buried within this time.
BURIAL_US_MAX = 2 * SLOW_DELAY_US


class SimulatedCoordinator:
    """The coordinator process and, as their parent, the workers."""

    def __init__(self, world: World) -> None:
        self._world = world
        recorder = AllocatorRecorder(world.memory)
        self.core = CoordinatorState(recorder)
        self.journal = Journal(
            self.core.handle_event, self.core.tables, recorder, world.journal_events
        )
        self.situations = Situations(self.core)
        self.workers: dict[str, SimulatedWorker] = {}
        #: Peers that have sent something which must be refused.
        self.forgers: set[str] = set()
        self._incarnations: Counter[int] = Counter()
        self._arenas = 0
        #: Memory of GPU workers whose death the core has been told.
        self._buried_arenas: set[int] = set()
        self._dead: set[str] = set()
        #: Workers that broke the protocol: nothing that they have sent counts any more.
        self._cut: set[str] = set()
        #: Workers that are being killed: all; because a deadline has passed; and because they hung,
        #: in which task (None: stopped).
        self._fenced: set[str] = set()
        self._ended: set[str] = set()
        self._hung: dict[str, do.DispatchNodeTask | None] = {}
        #: By slot.
        self._deaths: Counter[int] = Counter()

    # ------------------------------------------------------------------ messages

    def on_worker_frame(self, peer: str, frame: bytes) -> None:
        if peer in self._cut:
            return
        message = decode(frame, FROM_WORKER)
        if isinstance(message, Hello):
            if peer not in self._dead:
                worker = self.workers[peer]
                self._tell(ev.WorkerJoined(peer, worker.device, worker.arena))
        else:
            self._tell(message)

    def on_client_frame(self, peer: str, frame: bytes) -> None:
        message = decode(frame, FROM_CLIENT)
        if isinstance(message, Hello):
            if peer not in self._dead:
                self._tell(ev.SessionOpened(peer))
        elif isinstance(message, EndSession):
            self.on_session_gone(peer)
        else:
            self._tell(message)

    def on_session_gone(self, peer: str) -> None:
        """A session has taken its leave, or its connection broke."""
        if peer not in self._dead:
            self._dead.add(peer)
            self._tell(ev.SessionClosed(peer))

    def _tell(self, event: Any) -> None:
        """One event into the core, its tables recounted, its instructions performed."""
        world = self._world
        world.note("->", event)
        self.situations.before(event)
        refused = world.memory.refusals
        try:
            instructions = self.journal.handle_event(event)
        except ProtocolError as error:
            if event.peer not in self.forgers:
                raise
            world.note("shell", f"cuts off {event.peer}: {error}")
            self._cut_off(event.peer)
            check_invariants(self.core)
            return
        check_invariants(self.core)
        self.situations.after(event, instructions, is_memory_short=world.memory.refusals > refused)
        if len(world.log) % 16 == 0:
            world.memory.free_list.check()
        if isinstance(event, ev.DeadlinePassed):
            self._ended.update(fence.peer for fence in instructions)
            world.time.after(BURIAL_US_MAX, self._check_ended, event.graph)
        for instruction in instructions:
            world.note("  ", instruction)
            self._perform(instruction)

    def _check_ended(self, graph: int) -> None:
        """A moment after its deadline no worker has anything of a cancelled graph."""
        late = [
            worker.peer
            for worker in self.core.membership.workers()
            if any(key.graph == graph for key in worker.flights)
        ]
        require(not late, f"{late} still run graph {graph} after its deadline")

    def _cut_off(self, peer: str) -> None:
        if peer in self.workers:
            self._cut.add(peer)
            self.workers[peer].die("broke the protocol", killed=True)
        else:
            # Whatever it still computes is its own affair.
            self._world.clients[peer].is_alive = False
            self._world.time.after(0, self.on_session_gone, peer)

    def _check_reachable(self, instruction: do.DispatchNodeTask | do.CompleteGraph) -> None:
        """Nobody is sent to memory that is known to be gone."""
        slots = (
            instruction.inputs
            if isinstance(instruction, do.DispatchNodeTask)
            else (instruction.captures,)
        )
        arenas = {ref.arena for slot in slots for ref in slot if isinstance(ref, Block)}
        lost = sorted(arenas & self._buried_arenas)
        require(not lost, f"{instruction} names memory of dead workers: arenas {lost}")

    def _perform(self, instruction: do.CoordinatorInstruction) -> None:
        world = self._world
        if isinstance(instruction, do.DispatchNodeTask | do.CompleteGraph):
            self._check_reachable(instruction)
        if isinstance(instruction, do.StartWorker):
            world.time.after(world.rng.randint(50, 3000), self.start_worker, instruction.slot)
        elif isinstance(instruction, do.SetDeadline):
            passed = ev.DeadlinePassed(instruction.graph)
            world.time.after(1000 * instruction.after_ms, self._tell, passed)
        elif instruction.peer in world.clients:
            if isinstance(instruction, do.CompleteGraph | do.FailGraph):
                self._check_ending(instruction)
            world.clients[instruction.peer].lane.send(encode(instruction))
        elif isinstance(instruction, do.FenceWorker):
            self._fenced.add(instruction.peer)
            worker = self.workers[instruction.peer]
            world.time.after(world.rng.randint(0, 3), worker.die, "was fenced")
        elif isinstance(instruction, do.DispatchNodeTask):
            require(instruction.peer not in self._fenced, f"{instruction.peer} is being killed")
            worker = self.workers[instruction.peer]
            (worker.urgent if instruction.depth else worker.tasks).send(encode(instruction))
        else:
            self.workers[instruction.peer].control.send(encode(instruction))

    def _check_ending(self, end: do.CompleteGraph | do.FailGraph) -> None:
        """When a graph ends, nothing of it is anywhere any more."""
        expected = self._world.expected
        expected.check_ending(end)
        program = expected.number_of(end.peer, end.graph)
        for worker in self.workers.values():
            require(
                not (worker.is_alive and worker.holds(program)),
                f"graph {end.graph} of {end.peer} ends, but {worker.peer} still holds tasks of it",
            )

    # ------------------------------------------------------------------ workers

    def start_worker(self, slot: int) -> None:
        world = self._world
        if world.expected.has_given_up or world.dice.strikes("unavailable"):
            world.expected.has_given_up = True
            self._tell(ev.WorkerUnavailable("no more processes"))
            return
        self._incarnations[slot] += 1
        peer = f"w{slot}.{self._incarnations[slot]}"
        device, arena = world.device_of(slot), -1
        if device != ON_CPU:
            arena = WORKER_DEVICE_ARENA + self._arenas
            self._arenas += 1
        worker = self.workers[peer] = SimulatedWorker(world, peer, device, arena)
        if self.may_die(worker) and world.dice.strikes("die_at_start"):
            world.time.after(100, self._die_at_start, worker)
        else:
            world.time.after(world.rng.randint(100, 1000), worker.start)

    def _die_at_start(self, worker: SimulatedWorker) -> None:
        worker.die("died at start", killed=False)

    def kill(self, slot: int | None) -> None:
        """SIGKILL to the worker of a slot or (None) to all of them, whatever they do."""
        for worker in list(self.workers.values()):
            if slot in (None, worker.slot) and self.may_die(worker):
                worker.die("was killed from outside", killed=True)

    def on_hang(self, worker: SimulatedWorker, dispatch: do.DispatchNodeTask | None) -> None:
        """A worker's task takes too long, or (None) it is stopped; an idle one may be."""
        member = self.core.membership.get(worker.peer)
        if member is None or not member.flights or (dispatch is None and not self.may_die(worker)):
            return
        key = None if dispatch is None else (dispatch.graph, dispatch.task, dispatch.attempt)
        event = ev.WorkerHung(worker.peer, "hung", key)
        self._tell(event)
        if self.core.membership.members[worker.peer].hung is event:
            self._hung[worker.peer] = dispatch

    def may_die(self, worker: SimulatedWorker) -> bool:
        """Whether one more death stays below what the core takes for a hopeless case."""
        return self._deaths[worker.slot] < DEATHS_MAX

    def on_worker_death(
        self, worker: SimulatedWorker, event: ev.WorkerLost, running: do.DispatchNodeTask | None
    ) -> None:
        """The kernel knows at once, the shell a little later."""
        self._world.note(worker.peer, event.cause)
        self._deaths[worker.slot] += worker.peer not in self._ended
        self._world.time.after(self._world.time.hand_over_us(), self._bury, worker, event, running)

    def _bury(
        self, worker: SimulatedWorker, event: ev.WorkerLost, running: do.DispatchNodeTask | None
    ) -> None:
        self._dead.add(worker.peer)
        if self.core.membership.get(worker.peer) is None:
            # It was never ready: starting its slot again is the shell's business.
            delay = self._world.rng.randint(50, 3000)
            self._world.time.after(delay, self.start_worker, worker.slot)
            return
        if worker.peer not in self._ended:
            self._world.expected.on_death(*self._blamed(event, running))
        self._buried_arenas.add(worker.arena)
        self._tell(event)

    def _blamed(
        self, event: ev.WorkerLost, running: do.DispatchNodeTask | None
    ) -> tuple[ev.WorkerLost, do.DispatchNodeTask | None]:
        """What a death has to be counted as: a fence is the fault of the task that took too long,
        unless its reply has arrived since."""
        late = self._hung.get(event.peer)
        if late is None:
            return event, running
        key = (late.graph, late.task, late.attempt)
        is_open = key in self.core.membership.members[event.peer].flights
        return event._replace(killed=False), late if is_open else None

    def stop_workers(self) -> None:
        for worker in [w for w in self.workers.values() if w.is_alive]:
            worker.control.send(encode(do.ShutDown(worker.peer)))

    def check_stopped(self) -> None:
        require(
            not any(worker.is_alive for worker in self.workers.values()),
            "a worker did not stop when it was told to",
        )
        left = self._world.memory.device_blocks()
        require(left == 0, f"{left} blocks are left on GPUs")
