"""SimulatedWorker: one worker process: the real WorkerState, a shell without a process around it.

It does what the executor of a real worker does to shared memory: read the inputs while the task
runs, write the lent blocks, pass a block on as it is, keep views and give them back later.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from mpgrad.handles import CLIENT_ARENA, ENGINE_ARENA, Block, GradientRef
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.graph_spec import ON_CPU
from mpgrad.scheduler.worker_state import WorkerState
from mpgrad.testing.expectations import MEMORY_IS_LOST, error_text
from mpgrad.testing.path_counts import Content, Value, add, join, pack, run_members, unpack
from mpgrad.testing.simulated_memory import GARBAGE, UNKNOWN_BLOCK
from mpgrad.testing.situations import PARTS_JOINED
from mpgrad.testing.virtual_time import Lane
from mpgrad.wire.codec import decode, encode
from mpgrad.wire.schema import PROTOCOL_VERSION, Hello

if TYPE_CHECKING:
    from mpgrad.testing.world import World

TO_WORKER = get_args(do.ToWorker)
#: The shell takes a worker for hung whose task lasts this long, or that is stopped so long.
HANG_LIMIT_US = 50_000
TASK_US_MAX = 300
#: A task that takes far longer than a cancelled graph is given.
LENGTHY_US = 5_000_000
#: The slowest task still ends long before a hang is assumed.
SLOW_FACTOR = 30


class RuleRaised(Exception):
    """The planted error of a graph's rule, and which Node of its task that is."""

    def __init__(self, text: bytes, step: int) -> None:
        self.text, self.step = text, step
        super().__init__(text.decode())


def sum_inputs(world: World, dispatch: do.DispatchNodeTask) -> list[Value | None]:
    """Read every contribution and add them up, left to right, or join them where they are parts."""
    number, task = dispatch.payload
    joins = dict(world.expected.programs[number].plan.joins[task])
    world.coordinator.situations.seen[PARTS_JOINED] += bool(joins)
    sums: list[Value | None] = []
    for slot, refs in enumerate(dispatch.inputs):
        values = [
            Value(*world.memory.read(ref), ref) if isinstance(ref, Block) else Value(*unpack(ref))
            for ref in refs
            if ref is not None
        ]
        count = joins.get(slot)
        sums.append(functools.reduce(add, values, None) if count is None else join(values, count))
    return sums


def is_on_host(block: Block | None) -> bool:
    """Whether it is a block that does not lie on a GPU."""
    return block is not None and block.arena in (CLIENT_ARENA, ENGINE_ARENA)


def refuse_lost_memory(world: World, dispatch: do.DispatchNodeTask) -> None:
    """What the client does where a worker dies: it cannot read, and says so.

    Raises:
        RuleRaised: an input lay in the memory of a GPU worker that is dead.
    """
    refs = [ref for slot in dispatch.inputs for ref in slot]
    if any(isinstance(ref, Block) and world.memory.is_lost(ref) for ref in refs):
        raise RuleRaised(MEMORY_IS_LOST, 0)


def run_program(
    world: World,
    dispatch: do.DispatchNodeTask,
    on_publish: Callable[[dict[int, Value | None]], None] = lambda outputs: None,
) -> list[Value | None]:
    """The task's outputs, as values; ``on_publish`` as in ``run_members``.

    Raises:
        RuleRaised: a Node of the task is the one whose rule raises.
    """
    number, task = dispatch.payload
    _, _, graph, plan = world.expected.programs[number]
    nodes = [member.node for member in plan.groups[task]]

    def on_node(node: int) -> None:
        if node in graph.raising:
            raise RuleRaised(error_text(node, task), nodes.index(node))

    return run_members(
        graph,
        plan.groups[task],
        plan.slots[task],
        sum_inputs(world, dispatch),
        len(plan.tasks[task].outputs),
        on_node,
        on_publish,
    )


class SimulatedWorker:
    """One incarnation."""

    def __init__(self, world: World, peer: str, device: int = ON_CPU, arena: int = -1) -> None:
        self.peer, self._world = peer, world
        #: Which GPU it has, and the number of the memory that it exports.
        self.device, self.arena = device, arena
        #: Programs that have gradients in that memory, once per block.
        self._made: dict[Block, int] = {}
        self.slot = int(peer[1:].partition(".")[0])
        self.core = WorkerState(peer)
        self.is_alive = True
        self._is_stopped = False
        #: What it does as soon as it goes on.
        self._put_off: list[Callable[[], None]] = []
        #: How much longer everything takes on a host that is busy with other things.
        self._slowness = SLOW_FACTOR if world.dice.strikes("slow") else 1
        #: What really executes, as the slot in shared memory says it.
        self._executing: do.DispatchNodeTask | None = None
        #: What it has published of that, and the lent blocks that it has written.
        self._published: dict[int, GradientRef] = {}
        self._written: list[Block] = []
        #: Views that user code holds, with what it saw when it took them.
        self._kept: list[tuple[Block, Content]] = []
        time = world.time
        self.outbox = Lane(time, lambda frame: world.coordinator.on_worker_frame(peer, frame))
        self.control, self.urgent, self.tasks = (Lane(time, self._receive) for _ in range(3))

    def start(self) -> None:
        if self.is_alive and not self._puts_off(self.start):
            self._send(Hello(self.peer, b"", PROTOCOL_VERSION))

    def holds(self, program: int) -> bool:
        """Whether it runs or has prefetched a task of graph ``program``."""
        tasks = [task for _, _, task in self.core.waiting]
        if self.core.running is not None:
            tasks.append(self.core.running)
        return any(task.payload[0] == program for task in tasks)

    def die(self, cause: str, *, killed: bool = True) -> None:
        """The process is gone; what it sent last may be lost."""
        if not self.is_alive:
            return
        self.is_alive = False
        self.outbox.cut()
        if self.arena >= 0:
            self._world.expected.bereaved.update(self._made.values())
            self._world.memory.lose(self.arena)
        running = self._executing
        key = None if running is None else (running.graph, running.task, running.attempt)
        event = ev.WorkerLost(self.peer, cause, killed, key)
        self._world.coordinator.on_worker_death(self, event, running)

    # ------------------------------------------------------------------ the shell

    def _send(self, message: Any) -> None:
        self.outbox.send(encode(message))

    def _receive(self, frame: bytes) -> None:
        if self.is_alive and not self._puts_off(self._receive, frame):
            self._perform(self.core.handle_event(decode(frame, TO_WORKER)))

    def _perform(self, instructions: list[do.WorkerInstruction]) -> None:
        for instruction in instructions:
            if not self.is_alive:
                return
            if isinstance(instruction, do.ExecuteNodeTask):
                self._begin(instruction.dispatch)
            elif isinstance(instruction, do.ReleaseBlocks):
                for block in instruction.blocks:
                    del self._made[block]
                    self._world.memory.free_on_device(block)
            elif isinstance(instruction, do.StopProcess):
                self.is_alive = False
                self._world.note(self.peer, "stopped")
            else:
                self._reply(instruction)

    def _reply(self, reply: do.Reply) -> None:
        dice = self._world.dice
        self._send(reply)
        if dice.strikes("duplicate_reply"):
            self._send(reply)
        if self._world.coordinator.may_die(self) and dice.strikes("crash_after_reply"):
            # The slot that says what is running is already empty.
            self.die("crashed after its reply", killed=False)

    # ------------------------------------------------------------------ running a task

    def _begin(self, dispatch: do.DispatchNodeTask) -> None:
        world = self._world
        world.note(self.peer, "run", dispatch)
        world.expected.on_begin(self.peer, self.device, dispatch)
        self._executing, self._published, self._written = dispatch, {}, []
        for slot in dispatch.inputs:
            for ref in slot:
                if isinstance(ref, Block) and world.memory.is_lost(ref):
                    # CUDA lets nobody survive that who reads it.
                    self.die("read the memory of a dead process", killed=True)
                    return
                if isinstance(ref, Block):
                    world.memory.check_live(ref)
        longest = LENGTHY_US if world.dice.strikes("lengthy") else TASK_US_MAX * self._slowness
        duration = 1 + int(longest * world.rng.random())
        points = self._count_publications(dispatch)
        for point, at in enumerate(sorted(world.rng.randint(0, duration) for _ in range(points))):
            world.time.after(at, self._progress, dispatch, point)
        if world.dice.strikes("stop"):
            world.time.after(int(1.2 * duration * world.rng.random()), self.stop)
        if world.coordinator.may_die(self) and world.dice.strikes("crash_before_reply"):
            world.time.after(world.rng.randint(0, duration), self._crash, dispatch)
        elif world.coordinator.may_die(self) and world.dice.strikes("stall"):
            if world.dice.strikes("late_reply"):
                world.time.after(HANG_LIMIT_US + 1, self._finish, dispatch, duration)
            world.time.after(HANG_LIMIT_US, self._look_at_board, dispatch)
        else:
            world.time.after(duration, self._finish, dispatch, duration)

    def _crash(self, dispatch: do.DispatchNodeTask) -> None:
        if self.is_alive:
            for block in dispatch.blocks:
                is_free = block is not None and block not in self._written
                if block is not None and is_free and self._world.rng.random() < 0.5:
                    self._world.memory.write(block, GARBAGE)
            self.die("crashed in its task", killed=False)

    def _look_at_board(self, dispatch: do.DispatchNodeTask) -> None:
        """The shell sees the same task there for too long."""
        if self.is_alive and self._executing is dispatch:
            self._world.coordinator.on_hang(self, dispatch)

    # ------------------------------------------------------------------ stopped

    def stop(self) -> None:
        """SIGSTOP; the shell sees it, and SIGCONT comes after a while."""
        world = self._world
        if self.is_alive and not self._is_stopped:
            self._is_stopped = True
            world.note(self.peer, "is stopped")
            world.time.after(HANG_LIMIT_US, self._look_at_state)
            world.time.after(world.rng.randint(1000, 3 * HANG_LIMIT_US), self._go_on)

    def _look_at_state(self) -> None:
        if self.is_alive and self._is_stopped:
            self._world.coordinator.on_hang(self, None)

    def _go_on(self) -> None:
        if self.is_alive:
            self._is_stopped = False
            self._world.note(self.peer, "goes on")
            put_off, self._put_off = self._put_off, []
            for action in put_off:
                action()

    def _puts_off(self, action: Callable[..., None], *arguments: Any) -> bool:
        """Whether ``action`` has to wait until the process goes on."""
        if self._is_stopped:
            self._put_off.append(partial(action, *arguments))
        return self._is_stopped

    # ------------------------------------------------------------------ a task ends

    def _finish(self, dispatch: do.DispatchNodeTask, duration_us: int) -> None:
        if not self.is_alive or self._puts_off(self._finish, dispatch, duration_us):
            return
        if self._reads_lost_memory(dispatch):
            self.die("read the memory of a dead process", killed=True)
            return
        self._executing = None
        reply: ev.NodeTaskDone | ev.NodeTaskFailed
        key = (dispatch.graph, dispatch.task, dispatch.attempt)
        try:
            values = dict(enumerate(run_program(self._world, dispatch)))
            outputs = self._publish(dispatch, values)
            if outputs and self._forges():
                outputs = (*outputs[:-1], self._foreign_block(dispatch))
            kept = self._keep(dispatch, self._written)
            reply = ev.NodeTaskDone(self.peer, *key, outputs, kept, duration_us)
        except RuleRaised as error:
            kept = self._keep(dispatch, [])
            reply = ev.NodeTaskFailed(self.peer, *key, error.text, kept, error.step)
        self._perform(self.core.handle_event(ev.NodeTaskFinished(reply)))

    def _reads_lost_memory(self, dispatch: do.DispatchNodeTask) -> bool:
        return any(
            isinstance(ref, Block) and self._world.memory.is_lost(ref)
            for slot in dispatch.inputs
            for ref in slot
        )

    def _count_publications(self, dispatch: do.DispatchNodeTask) -> int:
        """How often the task publishes what it has, before it ends or fails."""
        number, task = dispatch.payload
        _, _, graph, plan = self._world.expected.programs[number]
        if plan.groups[task][0].piece_of is not None:
            return 0  # it runs no rule
        count = 0
        for member in plan.groups[task]:
            count += 1 if member.node in graph.raising else member.publishes
            if member.node in graph.raising:
                break
        return count

    def _progress(self, dispatch: do.DispatchNodeTask, point: int) -> None:
        """Publish what had left the task at one of its points."""
        if not self.is_alive or self._puts_off(self._progress, dispatch, point):
            return
        if self._reads_lost_memory(dispatch):
            self.die("read the memory of a dead process", killed=True)
            return
        stages: list[dict[int, Value | None]] = []
        with suppress(RuleRaised):
            run_program(self._world, dispatch, stages.append)
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
        self._send(progress)
        if self._world.dice.strikes("duplicate_progress"):
            self._send(progress)
        if self._world.coordinator.may_die(self) and self._world.dice.strikes(
            "crash_after_progress"
        ):
            self._crash(dispatch)

    def _publish(
        self, dispatch: do.DispatchNodeTask, values: Mapping[int, Value | None]
    ) -> tuple[GradientRef, ...]:
        """References to the outputs that have not been published, in lent blocks or elsewhere.

        What was published before is sometimes named again.
        """
        world, refs = self._world, []
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
                ref = value.source  # passed on as it is; the lent block stays unused
            else:
                world.memory.write(block, value.content)
                self._written.append(block)
                ref = block
            refs.append(ref)
        return tuple(refs)

    def _leave_on_device(self, value: Value, program: int) -> Block:
        """A block of this worker's own GPU, or one on some GPU that holds the same already."""
        if value.source is not None and not is_on_host(value.source):
            return value.source
        block = self._world.memory.make_on_device(self.arena, 8, value.content)
        self._made[block] = program
        return block

    def _foreign_block(self, dispatch: do.DispatchNodeTask) -> Block:
        """A block that the task has nothing to do with."""
        own = {*dispatch.blocks, *self._published.values()}
        own.update(ref for slot in dispatch.inputs for ref in slot)
        counted = self._world.coordinator.core.leases.counts()
        others = [block for block in counted if block not in own]
        return self._world.rng.choice(others) if others else UNKNOWN_BLOCK

    def _forges(self) -> bool:
        """Whether the message about to be sent names somebody else's block."""
        if self._world.coordinator.may_die(self) and self._world.dice.strikes("forge"):
            self._world.coordinator.forgers.add(self.peer)
            return True
        return False

    def _keep(self, dispatch: do.DispatchNodeTask, written: list[Block]) -> tuple[Block, ...]:
        """Some inputs and outputs stay in sight of user code for a while."""
        world = self._world
        inputs = [ref for slot in dispatch.inputs for ref in slot if isinstance(ref, Block)]
        kept = tuple(
            block
            for block in [*inputs, *written]
            if block.arena == ENGINE_ARENA and world.rng.random() < 0.08
        )
        for block in kept:
            self._kept.append((block, world.memory.read(block)))
            world.time.after(world.rng.randint(300, 5000), self._release)
        return kept

    def _release(self) -> None:
        """Some view dies; what it showed must not have changed meanwhile."""
        if self.is_alive and self._kept and not self._puts_off(self._release):
            at = self._world.rng.randrange(len(self._kept))
            block, content = self._kept.pop(at)
            self._world.check_unchanged(self.peer, block, content)
            self._send(ev.BlocksReleased(self.peer, (block,)))
