"""CoordinatorProcess: the real Coordinator and Supervisor, with a check after every event.

Loop, watchdog, deadlines, Hellos and deaths are the coordinator's own. Only the transport, the
clock, the arena and the worker processes are the World's. After every event all tables are
recounted.
"""

from __future__ import annotations

import itertools
import math
import signal
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from mpgrad.base.handles import Block
from mpgrad.coordinator.coordinator import REPORT_AFTER_S, Coordinator
from mpgrad.coordinator.coordinator_process import start_workers
from mpgrad.coordinator.supervisor import FAILED_STARTS_MAX, Supervisor
from mpgrad.errors import ProtocolError
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.invariants import check_invariants
from mpgrad.shm.status_board import StatusBoard
from mpgrad.wire.endpoint import Endpoint
from mpgrad.wire.setup import CoordinatorSetup
from mpgrad.wire.transport import Arrival
from simulation.expectations import require
from simulation.faults import DEATHS_MAX
from simulation.replay import Outcome, outcome_of
from simulation.situations import DEAD_INCARNATION, Situations
from simulation.transport import nothing
from simulation.virtual_time import SLOW_DELAY_US
from simulation.worker_process import TIMEOUT_S, WorkerProcess

if TYPE_CHECKING:
    from simulation.world import World

#: The time after a deadline within which its workers are reaped.
REAPED_US_MAX = 4 * SLOW_DELAY_US
#: The longest time that a message waits until the coordinator has done a turn.
TURN_US = 20
#: The descriptor by which the coordinator notices its client's death.
CLIENT_PIDFD = 0


class Refused(Exception):
    """The coordinator refuses a frame that was not forged; its cause has the reason."""


class WatchedCoordinator(Coordinator):
    """A Coordinator that reports the frames it refuses, and checks that its board gets up to date
    though nothing arrives any more, and not more often than it says."""

    on_refusal: Callable[[Arrival, Exception], None]
    watch: Callable[[Any], list[Any]]
    _has_reported = False
    _reported_s = -math.inf

    def turn(self) -> None:
        self._has_reported = False
        super().turn()
        wait_ms = self.wait_ms()
        # Rounding a difference of two times may cost a millisecond.
        is_soon = wait_ms is not None and wait_ms <= 1000 * REPORT_AFTER_S + 1
        require(self._has_reported or is_soon, "the board stays as it was")

    def _handle(self, event: Any) -> None:
        self._perform(self.watch(event))

    def _report(self) -> None:
        super()._report()
        waited_s = self._clock() - self._reported_s
        require(waited_s > 0.99 * REPORT_AFTER_S, f"two reports within {waited_s} s")
        self._has_reported, self._reported_s = True, self._clock()

    def _cut_off(self, arrival: Arrival, error: Exception) -> None:
        self.on_refusal(arrival, error)
        super()._cut_off(arrival, error)


@cache
def status_board() -> StatusBoard:
    """One for all that this process simulates: each time the rows are cleared that are used."""
    return StatusBoard.create()


def simulated_setup(
    endpoint: Endpoint,
    cpu_workers: int,
    gpus: tuple[int, ...] = (),
    task_timeout_s: float | None = None,
) -> CoordinatorSetup:
    """What a coordinator is told that has no process and no memory of its own."""
    return CoordinatorSetup(
        endpoint=endpoint, client_pid=0, cpu_workers=cpu_workers, shm_limit=0, client_arena_fd=-1,
        engine_arena_fd=-1, worker_environment=b"", blas_threads=1, executable=b"", origin=b"",
        task_timeout_s=task_timeout_s, gpus=gpus,
    )  # fmt: skip


class CoordinatorProcess:
    """The coordinator process and, as their parent, the workers."""

    def __init__(self, world: World) -> None:
        self._world = world
        workers = world.options["workers"]
        gpus = tuple(world.device_of(workers + at) for at in range(world.options["gpus"]))
        setup = simulated_setup(world.endpoint, workers, gpus, TIMEOUT_S)
        clock = world.time.seconds
        supervisor = Supervisor(setup.cpu_workers, setup.gpus, world.board, self, clock)
        self._shell = WatchedCoordinator(setup, world.router, supervisor, world.memory, clock)
        self._shell.on_refusal, self._shell.watch = self._on_refusal, self._watch
        self._supervisor, self.core = supervisor, self._shell.state
        if world.seed % 2:
            self.core.message_part_bytes = 0  # every result inside a message goes at once
        #: For each event its instructions, or what it raised.
        self.outcomes: list[Outcome] = []
        world.router.on_arrival = self._wake
        self._is_awake = False
        #: The time of its next check, if nothing arrives before.
        self._alarm_us: float | None = None
        self._is_closing = False
        self.situations = Situations(self.core)
        self.workers: dict[str, WorkerProcess] = {}
        #: Peers that have sent a frame which must be refused.
        self.forgers: set[str] = set()
        #: Sessions that have returned everything that they held.
        self.empty_handed: set[str] = set()
        self._pidfds = itertools.count(CLIENT_PIDFD + 1)
        #: Dead peers, and memory of GPU workers whose death was reported to the core.
        self._gone: set[str] = set()
        self._lost_arenas: set[int] = set()
        #: Workers that are being killed: all of them; because of a deadline; and because they hung,
        #: with the task (None: stopped).
        self._fenced: set[str] = set()
        self._ended: set[str] = set()
        self._hung: dict[str, do.DispatchNodeTask | None] = {}
        #: Peers whose frames were refused.
        self._cut: set[str] = set()
        #: By slot.
        self._deaths: Counter[int] = Counter()
        #: The number of workers that died by their own fault since one was ready.
        self._failed_starts = 0

    def begin(self) -> None:
        """As ``bootstrap.main``."""
        workers, failure = start_workers(self._supervisor)
        self._shell.begin((CLIENT_PIDFD,), workers, failure)

    # ------------------------------------------------------------------ its loop

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            self._world.time.after(int(TURN_US * self._world.rng.random()), self._turn)

    def _turn(self) -> None:
        self._is_awake = False
        if not self._is_closing and not self._world.silence.is_now:
            self._shell.turn()
            self._set_alarm()

    def _set_alarm(self) -> None:
        """Set the time at which the real loop would wake up without an event."""
        wait_ms = self._shell.wait_ms()
        if wait_ms is not None:
            at_us = self._world.time.now + 1000 * wait_ms
            if self._alarm_us is None or at_us < self._alarm_us:
                self._alarm_us = at_us
                self._world.time.weakly_at(at_us, self._on_alarm, at_us)

    def _on_alarm(self, at_us: float) -> None:
        if self._alarm_us == at_us and not self._is_closing:
            self._alarm_us = None
            self._turn()

    def go_on(self) -> None:
        """It was silent."""
        self._turn()

    def die(self) -> None:
        """A session has killed it; the kernel kills the workers, and the other sessions see it."""
        self._is_closing = True
        for worker in self.workers.values():
            worker.die(-signal.SIGKILL, "was killed with the coordinator")
        for client in self._world.clients.values():
            client.lose_coordinator()

    # ------------------------------------------------------------------ events

    def _watch(self, event: Any) -> list[Any]:
        """Give an event to the core; recount its tables and check its instructions."""
        world = self._world
        world.note("->", event)
        self._before(event)
        self.situations.before(event)
        refused = world.memory.refusals
        outcome = outcome_of(self.core, event)
        self.outcomes.append(outcome)
        if isinstance(outcome, Exception):
            raise outcome
        instructions = outcome
        check_invariants(self.core)
        self.situations.after(event, instructions, is_memory_short=world.memory.refusals > refused)
        if len(world.log) % 16 == 0:
            world.memory.free_list.check()
        self._after(event, instructions)
        for instruction in instructions:
            world.note("  ", instruction)
            self._check_instruction(instruction)
        return instructions

    def _before(self, event: Any) -> None:
        expected = self._world.expected
        if isinstance(event, ev.GraphCancelled):
            expected.cancel(event.peer, event.graph)
        elif isinstance(event, ev.SessionClosed) and event.peer in self.empty_handed - self.forgers:
            kept = self.core.membership.members[event.peer].kept
            require(not kept, f"{event.peer} has let go of everything, except of {sorted(kept)}")
        elif isinstance(event, ev.WorkerJoined):
            self._failed_starts = 0
        elif isinstance(event, ev.WorkerUnavailable):
            is_planted = expected.has_given_up or self._failed_starts >= FAILED_STARTS_MAX
            require(is_planted, f"it gives up without need: {event.reason}")
            expected.has_given_up = True
        elif isinstance(event, ev.WorkerHung):
            self._check_hung(event)
        elif isinstance(event, ev.WorkerDied):
            self._check_lost(event)

    def _check_hung(self, event: ev.WorkerHung) -> None:
        """Check that the worker is stopped, or that its task never ends."""
        worker = self.workers[event.peer]
        stalled = worker.stalled
        if event.running is None:
            require(worker.is_stopped(), f"{event.peer} is well, and is taken for hung")
        else:
            key = None if stalled is None else (stalled.graph, stalled.task, stalled.attempt)
            require(key == event.running, f"{event.peer} hangs in {key}, not in {event.running}")

    def _check_lost(self, event: ev.WorkerDied) -> None:
        """Check that the coordinator describes a death correctly."""
        worker = self.workers[event.peer]
        require(not worker.is_alive, f"{event.peer} is taken for dead")
        was, key = worker.executing, None
        if was is not None:
            key = (was.graph, was.task, was.attempt)
        require(event.running == key, f"{event.peer} died in {key}, not in {event.running}")
        is_killed = worker.status == -signal.SIGKILL
        require(event.killed == is_killed, f"{event.peer} ended with status {worker.status}")
        if event.peer not in self._ended:
            self._world.expected.on_death(*self._blamed(event, was))
        self._lost_arenas.add(worker.arena)

    def _blamed(
        self, event: ev.WorkerDied, running: do.DispatchNodeTask | None
    ) -> tuple[ev.WorkerDied, do.DispatchNodeTask | None]:
        """What a death has to be counted as: a fence is the fault of the task that took too long,
        unless its reply has arrived since."""
        late = self._hung.get(event.peer)
        if late is None:
            return event, running
        key = (late.graph, late.task, late.attempt)
        is_open = key in self.core.membership.members[event.peer].flights
        return event._replace(killed=False), late if is_open else None

    def _after(self, event: Any, instructions: list[Any]) -> None:
        fences = [i.peer for i in instructions if isinstance(i, do.FenceWorker)]
        self._fenced.update(fences)
        if isinstance(event, ev.DeadlinePassed):
            self._ended.update(fences)
            self._world.time.after(REAPED_US_MAX, self._check_ended, event.graph)
        elif isinstance(event, ev.WorkerHung):
            member = self.core.membership.get(event.peer)
            if member is not None and member.hung is event:
                self._hung[event.peer] = event.running and self.workers[event.peer].stalled

    def _check_ended(self, graph: int) -> None:
        """Check, just after its deadline, that no worker has tasks of a cancelled graph."""
        late = [
            worker.peer
            for worker in self.core.membership.workers()
            if any(key.graph == graph for key in worker.flights)
        ]
        require(not late, f"{late} still run graph {graph} after its deadline")

    def _on_refusal(self, arrival: Arrival, error: Exception) -> None:
        """Check that the sender is a forger, or dead: others do not break the protocol."""
        self._world.note("shell", f"refuses a frame of {arrival.peer}: {error}")
        if not isinstance(error, ProtocolError):
            raise Refused from error
        if arrival.peer in self._gone:
            self.situations.seen[DEAD_INCARNATION] += 1
        elif arrival.peer not in self.forgers:
            raise Refused from error
        self._cut.add(arrival.peer)

    # ------------------------------------------------------------------ instructions

    def _check_instruction(self, instruction: do.CoordinatorInstruction) -> None:
        if isinstance(instruction, do.DispatchNodeTask | do.CompleteGraph):
            self._check_reachable(instruction)
        if isinstance(instruction, do.SetDeadline):
            late_us = 1000 * instruction.after_ms + 1_500_000
            self._world.time.after(late_us, self._check_ended, instruction.graph)
        if isinstance(instruction, do.CompleteGraph | do.FailGraph):
            self._check_ending(instruction)
        if isinstance(instruction, do.DispatchNodeTask):
            is_fenced = instruction.peer in self._fenced and instruction.peer in self.workers
            require(not is_fenced, f"{instruction.peer} is being killed")

    def _check_reachable(self, instruction: do.DispatchNodeTask | do.CompleteGraph) -> None:
        """Check that no process is told to read memory that is known to be lost."""
        slots = (
            instruction.inputs
            if isinstance(instruction, do.DispatchNodeTask)
            else (instruction.captures,)
        )
        arenas = {ref.arena for slot in slots for ref in slot if isinstance(ref, Block)}
        lost = sorted(arenas & self._lost_arenas)
        require(not lost, f"{instruction} names memory of dead workers: arenas {lost}")

    def _check_ending(self, end: do.CompleteGraph | do.FailGraph) -> None:
        """Check that nothing of a graph is left when it ends."""
        expected = self._world.expected
        expected.check_ending(end)
        program = expected.number_of(end.peer, end.graph)
        for worker in self.workers.values():
            require(
                not (worker.is_alive and worker.holds(program)),
                f"graph {end.graph} of {end.peer} ends, but {worker.peer} still holds tasks of it",
            )

    # ------------------------------------------------------------------ workers

    def start(self, peer: str, slot: int, device: int, arena: int) -> WorkerProcess:
        """As a Spawner."""
        world = self._world
        # At first only the last one may be refused: then the others still have work.
        may_fail = not peer.endswith(".1") or slot == self._supervisor.slots - 1
        if world.expected.has_given_up or (may_fail and world.dice.strikes("unavailable")):
            world.expected.has_given_up = True
            raise OSError("no more processes")
        worker = WorkerProcess(world, peer, slot, device, arena, next(self._pidfds))
        self.workers[peer] = worker
        if self.may_die(slot) and world.dice.strikes("die_at_start"):
            world.time.after(100, worker.die, 1, "died at start")
        else:
            world.time.after(world.rng.randint(100, 1000), worker.start)
        return worker

    def kill(self, slot: int | None) -> None:
        """Send SIGKILL to the worker of a slot or (None) to all of them."""
        for worker in list(self.workers.values()):
            if slot in (None, worker.slot) and self.may_die(worker.slot):
                worker.die(-signal.SIGKILL, "was killed from outside")

    def check_kill(self, peer: str) -> None:
        """Check that the coordinator has a reason to kill a worker."""
        is_meant = peer in self._fenced or peer in self._cut or self._is_closing
        require(is_meant, f"{peer} is killed for nothing")

    def may_die(self, slot: int) -> bool:
        """Whether one more death stays below the core's limit for giving up."""
        return self._deaths[slot] < DEATHS_MAX

    def on_worker_death(self, worker: WorkerProcess) -> None:
        """The kernel notices it at once, the coordinator a little later."""
        self._deaths[worker.slot] += worker.peer not in self._ended
        self._gone.add(worker.peer)
        time = self._world.time
        time.after(time.hand_over_us(), self._world.router.become_readable, worker.pidfd)

    def on_reaped(self, worker: WorkerProcess) -> None:
        is_ready = self.core.membership.get(worker.peer) is not None
        self._failed_starts += not is_ready and worker.status != -signal.SIGKILL

    def on_session_gone(self, peer: str) -> None:
        """A session has ended."""
        self._gone.add(peer)

    # ------------------------------------------------------------------ the end

    def let_all_go(self) -> None:
        for worker in list(self.workers.values()):
            worker.let_all_go()

    def close(self) -> None:
        """The engine is closed: all workers exit by themselves."""
        self._is_closing = True
        self._world.router.on_arrival = nothing  # its loop is over
        alive = [worker for worker in self.workers.values() if worker.is_alive]
        self._shell.close()
        forced = [worker.peer for worker in alive if worker.status != 0]
        require(not forced, f"{forced} did not stop when they were told to")
