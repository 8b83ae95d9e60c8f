"""WorkerProcess: a real Worker without a process of its own, and the tasks that it runs.

Worker, core, codec and status board are those of a worker process. The simulated part is a
TaskRunner's use of shared memory: it reads the inputs while the task runs, writes the lent blocks,
passes blocks on unchanged, keeps views and releases them later. A task takes time, so the World
drives the Worker turn by turn; the Worker's own loop would wait for the task.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from mpgrad.base.exits import describe_exit
from mpgrad.base.handles import ENGINE_ARENA, Block, GradientRef
from mpgrad.base.processor_use import ProcessorUse
from mpgrad.coordinator.reaper import End
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.wire.schema import MESSAGES
from mpgrad.workers.worker import Reply, Worker
from simulation.branches import WorkerBranches
from simulation.expectations import require
from simulation.path_counts import Content, Value, pack
from simulation.simulated_memory import GARBAGE, UNKNOWN_BLOCK
from simulation.task_values import RuleRaised, is_on_host, run_program
from simulation.transport import MemoryDealer

if TYPE_CHECKING:
    from simulation.world import World

#: The engine's ``task_timeout_s``, and the time at which an endless task has surely been fenced.
TIMEOUT_S, FENCED_BY_US = 4.0, 6_500_000
TASK_US_MAX = 300
#: A task that takes far longer than the grace of a cancelled graph, and less than the timeout.
LENGTHY_US = 2_500_000
#: The longest time that a process is stopped: the coordinator's limit is shorter.
STOPPED_US_MAX = 6_000_000
#: The slowest task still ends long before a hang is assumed.
SLOW_FACTOR = 30
#: The first byte of the frames that answer a dispatch.
_REPLIES = frozenset(
    kind
    for kind, message in MESSAGES.items()
    if message in (ev.NodeTaskDone, ev.NodeTaskFailed, ev.NodeTaskDropped)
)


class FaultyDealer(MemoryDealer):
    """A worker's connection, which may send a reply twice, or break after a reply."""

    #: Set by the process whose connection it is.
    process: WorkerProcess

    def send(self, frames: Sequence[bytes], lane: str | None = None) -> None:
        world, sent = self.process.world, list(frames)
        replies = [frame for frame in frames if frame[0] in _REPLIES]
        sent += [frame for frame in replies if world.dice.strikes("duplicate_reply")]
        super().send(sent, lane)
        if any(self.process.may_die() and world.dice.strikes("crash_after_reply") for _ in replies):
            # The row that shows the running task is already empty.
            self.process.die(-signal.SIGSEGV, "crashed after its reply")


class WorkerProcess:
    """One incarnation; its Worker's Executor, and the Child of the coordinator's Supervisor.

    Args:
        world: the World that it belongs to.
        peer, slot: its name.
        device, arena: its GPU, and the number of the memory that it exports.
        pidfd: becomes readable when it dies.
    """

    send: Callable[[Any], None]

    def __init__(
        self, world: World, peer: str, slot: int, device: int, arena: int, pidfd: int
    ) -> None:
        self.world, self.peer, self.slot = world, peer, slot
        self.device, self.arena, self.pid, self.pidfd = device, arena, pidfd, pidfd
        #: Programs with gradients in that memory, once per block.
        self._made: dict[Block, int] = {}
        #: None until it has loaded all its modules.
        self.worker: Worker | None = None
        #: As in ``subprocess``; None while it lives.
        self.status: int | None = None
        self._is_stopped = False
        #: The time at which it continued after a SIGSTOP.
        self._went_on_us: float = 0
        #: Actions to do as soon as it continues.
        self._put_off: list[Callable[[], None]] = []
        #: The factor by which everything is slower on a busy host.
        self._slowness = SLOW_FACTOR if world.dice.strikes("slow") else 1
        #: The task that it is executing.
        self.executing: do.DispatchNodeTask | None = None
        #: The task that never ends by itself.
        self.stalled: do.DispatchNodeTask | None = None
        #: The publications of that task, and the lent blocks that it has written.
        self._published: dict[int, GradientRef] = {}
        self._written: list[Block] = []
        #: What the calls that it has run have recorded.
        self.branches = WorkerBranches(world.branches)
        #: Views that user code holds, with their content when it took them.
        self._kept: list[tuple[Block, Content]] = []

    @property
    def is_alive(self) -> bool:
        return self.status is None

    def may_die(self) -> bool:
        return self.world.coordinator.may_die(self.slot)

    def holds(self, program: int) -> bool:
        """Whether it runs or has prefetched a task of graph ``program``."""
        if self.worker is None:
            return False
        core = self.worker.state
        tasks = [task for _, _, task in core.waiting]
        if core.running is not None:
            tasks.append(core.running)
        return any(task.payload[0] == program for task in tasks)

    # ------------------------------------------------------------------ for its parent

    def kill(self) -> None:
        """SIGKILL takes effect a moment later."""
        world, late = self.world, self.stalled
        world.coordinator.check_kill(self.peer)
        if late is not None and world.dice.strikes("late_reply"):
            world.time.after(0, self._finish, late, LENGTHY_US)
        world.time.after(world.rng.randint(0, 3), self.die, -signal.SIGKILL, "was killed")

    def is_stopped(self) -> bool:
        return self._is_stopped

    def processor_use(self) -> ProcessorUse:
        return ProcessorUse(int(self.world.time.now) * 1000, 0)

    def has_ended(self, timeout_s: float) -> bool:
        """Let the others continue meanwhile."""
        time = self.world.time
        end_us = time.now + int(1e6 * timeout_s)
        while self.is_alive and time.now < end_us and time.step():
            pass
        return not self.is_alive

    def reap(self) -> End:
        while self.status is None:
            require(self.world.time.step(), f"{self.peer} is waited for, and does not end")
        self.world.coordinator.on_reaped(self)
        return End(self.status, describe_exit(self.status))

    def die(self, status: int, cause: str) -> None:
        """The process is dead; its last messages may be lost."""
        if not self.is_alive:
            return
        self.status = status
        self.branches.die(self.executing)
        if self.worker is not None:
            self.dealer.cut()
            self.dealer.close()
        if self.arena >= 0:
            self.world.expected.bereaved.update(self._made.values())
            self.world.memory.lose(self.arena)
        self.world.note(self.peer, cause)
        self.world.coordinator.on_worker_death(self)

    # ------------------------------------------------------------------ its loop

    #: The World runs the loop, so it never sleeps.
    waiting_fd = -1

    def wake(self) -> None:
        """Do nothing: user code has no threads here."""

    def look_after(self) -> None:
        """Do nothing: no user code runs here."""

    def start(self) -> None:
        """It has loaded all its modules."""
        if not self.is_alive or self._puts_off(self.start):
            return
        endpoint, board = self.world.endpoint, self.world.board
        self.worker = Worker(endpoint, self.peer, self.slot, board, self)
        self.worker.greet()

    def dealer_for(self, lanes: tuple[str, ...]) -> FaultyDealer:
        """Its connection, made by its Worker."""
        self.dealer = FaultyDealer(self.world.router, self.peer, lanes, self._on_arrival)
        self.dealer.process = self
        return self.dealer

    def _on_arrival(self) -> None:
        """Wake up if it sleeps; during a task it does not listen."""
        if self.is_alive and self.executing is None and not self._puts_off(self._on_arrival):
            self._turn(None)

    def _turn(self, finished: Reply | None) -> None:
        assert self.worker is not None
        dispatch = self.worker.turn(finished)
        if not self.is_alive:
            return
        if self.worker.is_stopped:
            self.worker.close()
            self.die(0, "left")
        elif dispatch is not None:
            self._begin(dispatch)

    def run(self, dispatch: do.DispatchNodeTask) -> tuple[Reply, tuple[Block, ...]]:
        raise AssertionError("the World runs the tasks")

    def release(self, blocks: tuple[Block, ...]) -> None:
        for block in blocks:
            del self._made[block]
            self.world.memory.free_on_device(block)

    def release_branches(self, numbers: tuple[int, ...]) -> None:
        self.branches.release(numbers)

    # ------------------------------------------------------------------ running a task

    def _begin(self, dispatch: do.DispatchNodeTask) -> None:
        assert self.worker is not None
        world = self.world
        world.note(self.peer, "run", dispatch)
        world.expected.on_begin(self.peer, self.device, dispatch)
        self.worker.begin(dispatch)
        self.executing, self._published, self._written = dispatch, {}, []
        for slot in dispatch.inputs:
            for ref in slot:
                if isinstance(ref, Block) and world.memory.is_lost(ref):
                    # CUDA does not let a process survive that reads it.
                    self.die(-signal.SIGKILL, "read the memory of a dead process")
                    return
                if isinstance(ref, Block):
                    world.memory.check_live(ref)
        longest = LENGTHY_US if world.dice.strikes("lengthy") else TASK_US_MAX * self._slowness
        duration = 1 + int(longest * world.rng.random())
        duration += self.branches.missing(dispatch) * TASK_US_MAX
        points = self._count_publications(dispatch)
        for point, at in enumerate(sorted(world.rng.randint(0, duration) for _ in range(points))):
            world.time.after(at, self._progress, dispatch, point)
        if world.dice.strikes("stop"):
            world.time.after(int(1.2 * duration * world.rng.random()), self.stop)
        if self.may_die() and world.dice.strikes("crash_before_reply"):
            world.time.after(world.rng.randint(0, duration), self._crash, dispatch)
        elif self.may_die() and world.dice.strikes("stall"):
            self.stalled = dispatch
            world.time.after(FENCED_BY_US, self._check_fenced, dispatch)
        else:
            world.time.after(duration, self._finish, dispatch, duration)

    def _crash(self, dispatch: do.DispatchNodeTask) -> None:
        if self.is_alive:
            for block in dispatch.blocks:
                is_free = block is not None and block not in self._written
                if block is not None and is_free and self.world.rng.random() < 0.5:
                    self.world.memory.write(block, GARBAGE)
            self.die(-signal.SIGSEGV, "crashed in its task")

    def _check_fenced(self, dispatch: do.DispatchNodeTask) -> None:
        if not self.is_alive or self.executing is not dispatch:
            return
        fenced_by_us = self._went_on_us + FENCED_BY_US
        is_due = fenced_by_us <= self.world.time.now and not self._is_stopped
        require(not is_due, f"{self.peer} hangs in {dispatch}, and nobody minds")
        self.world.time.at(
            max(fenced_by_us, self.world.time.now + 1_000_000), self._check_fenced, dispatch
        )

    # ------------------------------------------------------------------ stopped

    def stop(self) -> None:
        """SIGSTOP; SIGCONT comes after a while."""
        world = self.world
        if self.is_alive and self.may_die() and not self._is_stopped:
            self._is_stopped = True
            world.note(self.peer, "is stopped")
            longest = world.rng.choice((STOPPED_US_MAX // 100, STOPPED_US_MAX))
            world.time.after(world.rng.randint(1000, longest), self._go_on)

    def _go_on(self) -> None:
        if self.is_alive:
            self._is_stopped, self._went_on_us = False, self.world.time.now
            self.world.note(self.peer, "goes on")
            put_off, self._put_off = self._put_off, []
            for action in put_off:
                action()

    def _puts_off(self, action: Callable[..., None], *arguments: Any) -> bool:
        """Whether ``action`` has to wait until the process continues."""
        if self._is_stopped:
            self._put_off.append(partial(action, *arguments))
        return self._is_stopped

    # ------------------------------------------------------------------ a task ends

    def _finish(self, dispatch: do.DispatchNodeTask, duration_us: int) -> None:
        if not self.is_alive or self.executing is not dispatch:
            return
        if self._puts_off(self._finish, dispatch, duration_us):
            return
        if self._reads_lost_memory(dispatch):
            self.die(-signal.SIGKILL, "read the memory of a dead process")
            return
        assert self.worker is not None
        self.executing = self.stalled = None
        released = self._let_go()
        reply: Reply
        key = (dispatch.graph, dispatch.task, dispatch.attempt)
        try:
            values = dict(enumerate(run_program(self.world, dispatch)))
            self.branches.differentiate(dispatch)
            outputs = self._publish(dispatch, values)
            if outputs and self._forges():
                outputs = (*outputs[:-1], self._foreign_block(dispatch))
            kept = self._keep(dispatch, self._written)
            self.branches.record(dispatch)
            reply = ev.NodeTaskDone(self.peer, *key, outputs, kept, duration_us)
        except RuleRaised as error:
            kept = self._keep(dispatch, [])
            reply = ev.NodeTaskFailed(self.peer, *key, error.text, kept, error.step)
        self.worker.end(released)
        self._turn(reply)

    def _reads_lost_memory(self, dispatch: do.DispatchNodeTask) -> bool:
        return any(
            isinstance(ref, Block) and self.world.memory.is_lost(ref)
            for slot in dispatch.inputs
            for ref in slot
        )

    def _count_publications(self, dispatch: do.DispatchNodeTask) -> int:
        """The number of times the task publishes outputs before it ends or fails."""
        number, task = dispatch.payload
        _, _, graph, plan = self.world.expected.programs[number]
        if plan.groups[task][0].piece_of is not None:
            return 0  # it runs no rule
        count = 0
        for member in plan.groups[task]:
            count += 1 if member.node in graph.raising else member.publishes
            if member.node in graph.raising:
                break
        return count

    def _progress(self, dispatch: do.DispatchNodeTask, point: int) -> None:
        """Publish the outputs so far at one of the task's points."""
        if not self.is_alive or self._puts_off(self._progress, dispatch, point):
            return
        if self._reads_lost_memory(dispatch):
            self.die(-signal.SIGKILL, "read the memory of a dead process")
            return
        stages: list[dict[int, Value | None]] = []
        with suppress(RuleRaised):
            run_program(self.world, dispatch, stages.append)
        if len(stages) <= point:  # what it reads has changed meanwhile
            return
        before = set(self._published)
        refs = self._publish(dispatch, stages[point])
        fresh = {
            number: refs[number]
            for number in stages[point]
            if number not in before and number not in dispatch.published
        }
        if not fresh:
            return
        self._published.update(fresh)
        if self._forges():
            fresh[max(fresh)] = self._foreign_block(dispatch)
        key = (dispatch.graph, dispatch.task, dispatch.attempt)
        progress = ev.NodeTaskProgress(self.peer, *key, tuple(fresh.items()))
        self.send(progress)
        if self.world.dice.strikes("duplicate_progress"):
            self.send(progress)
        if self.may_die() and self.world.dice.strikes("crash_after_progress"):
            self._crash(dispatch)

    def _publish(
        self, dispatch: do.DispatchNodeTask, values: Mapping[int, Value | None]
    ) -> tuple[GradientRef, ...]:
        """References to the outputs that have not been published, in lent blocks or elsewhere.

        Earlier publications are sometimes named again.
        """
        world, refs = self.world, []
        program = world.expected.programs[dispatch.payload[0]]
        for number, block in enumerate(dispatch.blocks):
            value = values.get(number)
            ref: GradientRef
            if number in self._published:
                ref = self._published[number] if world.rng.random() < 0.5 else None
            elif value is None or number in dispatch.published:
                ref = None
            elif program.is_on_device(dispatch.payload[1], number):
                ref = self._leave_on_device(value, dispatch.payload[0])
            elif block is None:
                ref = pack(value.content)
            elif is_on_host(value.source) and world.rng.random() < 0.7:
                ref = value.source  # passed on unchanged; the lent block stays unused
            else:
                world.memory.write(block, value.content)
                world.flips.on_write(block, dispatch.payload[0])
                self._written.append(block)
                ref = block
            refs.append(ref)
        return tuple(refs)

    def _leave_on_device(self, value: Value, program: int) -> Block:
        """A block of this worker's own GPU, or one on another GPU with the same content."""
        if value.source is not None and not is_on_host(value.source):
            return value.source
        block = self.world.memory.make_on_device(self.arena, 8, value.content)
        self._made[block] = program
        return block

    def _foreign_block(self, dispatch: do.DispatchNodeTask) -> Block:
        """A block that does not belong to the task."""
        own = {*dispatch.blocks, *self._published.values()}
        own.update(ref for slot in dispatch.inputs for ref in slot)
        counted = self.world.coordinator.core.leases.counts()
        others = [block for block in counted if block not in own]
        return self.world.rng.choice(others) if others else UNKNOWN_BLOCK

    def _forges(self) -> bool:
        """Whether the next message names a block of another task."""
        if self.may_die() and self.world.dice.strikes("forge"):
            self.world.coordinator.forgers.add(self.peer)
            return True
        return False

    def _keep(self, dispatch: do.DispatchNodeTask, written: list[Block]) -> tuple[Block, ...]:
        """User code keeps some inputs and outputs for a while."""
        world = self.world
        inputs = [ref for slot in dispatch.inputs for ref in slot if isinstance(ref, Block)]
        kept = tuple(
            block
            for block in [*inputs, *written]
            if block.arena == ENGINE_ARENA and world.rng.random() < 0.08
        )
        self._kept += [(block, world.memory.read(block)) for block in kept]
        return kept

    def let_all_go(self) -> None:
        """Release everything at once; a real process would wait for its next task."""
        if self._kept and self.worker is not None and self.is_alive:
            blocks = tuple(block for block, _ in self._kept)
            self._kept.clear()
            self.send(ev.BlocksReleased(self.peer, blocks))

    def _let_go(self) -> tuple[Block, ...]:
        """Some views have died; their content must not have changed."""
        rng, gone = self.world.rng, []
        for entry in self._kept[:]:
            if rng.random() < 0.3:
                self._kept.remove(entry)
                self.world.check_unchanged(self.peer, *entry)
                gone.append(entry[0])
        return tuple(gone)
