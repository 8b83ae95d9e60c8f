"""SimulatedWorker: one worker process: the real WorkerState, a shell without a process around it.

It does what the executor of a real worker does to shared memory: read the inputs while the task
runs, write the lent blocks, pass a block on as it is, keep views and give them back later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from mpgrad.handles import ENGINE_ARENA, Block, GradientRef
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.worker_state import WorkerState
from mpgrad.testing.expectations import error_text
from mpgrad.testing.path_counts import Content, Value, add, pack, run_members, unpack
from mpgrad.testing.simulated_memory import GARBAGE
from mpgrad.testing.virtual_time import Lane
from mpgrad.wire.codec import decode, encode
from mpgrad.wire.schema import PROTOCOL_VERSION, Hello

if TYPE_CHECKING:
    from mpgrad.testing.world import World

TO_WORKER = get_args(do.ToWorker)
#: The shell kills a worker whose task hangs for this long.
HANG_LIMIT_US = 50_000
TASK_US_MAX = 300
#: The slowest task still ends long before a hang is assumed.
SLOW_FACTOR = 30


class RuleRaised(Exception):
    """The planted error of a graph's rule, and which Node of its task that is."""

    def __init__(self, text: bytes, step: int) -> None:
        self.text, self.step = text, step
        super().__init__(text.decode())


def sum_inputs(world: World, dispatch: do.DispatchNodeTask) -> list[Value | None]:
    """Read every contribution and add them up, left to right."""
    sums: list[Value | None] = []
    for slot in dispatch.inputs:
        total: Value | None = None
        for ref in slot:
            if isinstance(ref, Block):
                part = Value(*world.memory.read(ref), ref)
            elif ref is not None:
                part = Value(*unpack(ref))
            total = add(total, part)
        sums.append(total)
    return sums


def run_program(world: World, dispatch: do.DispatchNodeTask) -> list[Value | None]:
    """The task's outputs, as values.

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
    )


class SimulatedWorker:
    """One incarnation."""

    def __init__(self, world: World, peer: str) -> None:
        self.peer, self._world = peer, world
        self.core = WorkerState(peer)
        self.is_alive = True
        #: How much longer everything takes on a host that is busy with other things.
        self._slowness = SLOW_FACTOR if world.dice.strikes("slow") else 1
        #: What really executes, as the slot in shared memory says it.
        self._executing: do.DispatchNodeTask | None = None
        #: Views that user code holds, with what it saw when it took them.
        self._kept: list[tuple[Block, Content]] = []
        time = world.time
        self.outbox = Lane(time, lambda frame: world.coordinator.on_worker_frame(peer, frame))
        self.control, self.urgent, self.tasks = (Lane(time, self._receive) for _ in range(3))

    def start(self) -> None:
        if self.is_alive:
            self._send(Hello(self.peer, b"", PROTOCOL_VERSION))

    def holds(self, program: int) -> bool:
        """Whether it runs or has prefetched a task of graph ``program``."""
        tasks = [task for _, _, task in self.core.waiting]
        if self.core.running is not None:
            tasks.append(self.core.running)
        return any(task.payload[0] == program for task in tasks)

    def die(self, cause: str, *, killed: bool) -> None:
        """The process is gone; what it sent last may be lost."""
        if not self.is_alive:
            return
        self.is_alive = False
        self.outbox.cut()
        running = self._executing
        key = None if running is None else (running.graph, running.task, running.attempt)
        event = ev.WorkerLost(self.peer, cause, killed, key)
        self._world.coordinator.on_worker_death(self, event, running)

    # ------------------------------------------------------------------ the shell

    def _send(self, message: Any) -> None:
        self.outbox.send(encode(message))

    def _receive(self, frame: bytes) -> None:
        if self.is_alive:
            self._perform(self.core.handle_event(decode(frame, TO_WORKER)))

    def _perform(self, instructions: list[do.WorkerInstruction]) -> None:
        for instruction in instructions:
            if not self.is_alive:
                return
            if isinstance(instruction, do.ExecuteNodeTask):
                self._begin(instruction.dispatch)
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
        if self._world.coordinator.may_die() and dice.strikes("crash_after_reply"):
            # The slot that says what is running is already empty.
            self.die("crashed after its reply", killed=False)

    # ------------------------------------------------------------------ running a task

    def _begin(self, dispatch: do.DispatchNodeTask) -> None:
        world = self._world
        world.note(self.peer, "run", dispatch)
        world.expected.on_begin(self.peer, dispatch)
        self._executing = dispatch
        for slot in dispatch.inputs:
            for ref in slot:
                if isinstance(ref, Block):
                    world.memory.check_live(ref)
        duration = 1 + int(TASK_US_MAX * self._slowness * world.rng.random())
        if world.coordinator.may_die() and world.dice.strikes("crash_before_reply"):
            world.time.after(duration, self._crash, dispatch)
        elif world.coordinator.may_die() and world.dice.strikes("stall"):
            if world.dice.strikes("late_reply"):
                world.time.after(HANG_LIMIT_US - 1, self._finish, dispatch, duration)
            world.time.after(HANG_LIMIT_US, self._fence, dispatch)
        else:
            world.time.after(duration, self._finish, dispatch, duration)

    def _crash(self, dispatch: do.DispatchNodeTask) -> None:
        if self.is_alive:
            for block in dispatch.blocks:
                if block is not None and self._world.rng.random() < 0.5:
                    self._world.memory.write(block, GARBAGE)
            self.die("crashed in its task", killed=False)

    def _fence(self, dispatch: do.DispatchNodeTask) -> None:
        self.die("hung and was fenced", killed=True)

    def _finish(self, dispatch: do.DispatchNodeTask, duration_us: int) -> None:
        if not self.is_alive:
            return
        self._executing = None
        reply: ev.NodeTaskDone | ev.NodeTaskFailed
        key = (dispatch.graph, dispatch.task, dispatch.attempt)
        try:
            outputs, written = self._publish(dispatch, run_program(self._world, dispatch))
            kept = self._keep(dispatch, written)
            reply = ev.NodeTaskDone(self.peer, *key, outputs, kept, duration_us)
        except RuleRaised as error:
            kept = self._keep(dispatch, [])
            reply = ev.NodeTaskFailed(self.peer, *key, error.text, kept, error.step)
        self._perform(self.core.handle_event(ev.NodeTaskFinished(reply)))

    def _publish(
        self, dispatch: do.DispatchNodeTask, values: list[Value | None]
    ) -> tuple[tuple[GradientRef, ...], list[Block]]:
        """References to the outputs, and the lent blocks that were written."""
        world, refs, written = self._world, [], []
        for value, block in zip(values, dispatch.blocks, strict=True):
            ref: GradientRef
            if value is None:
                ref = None
            elif block is None:
                ref = pack(value.content)
            elif value.source is not None and world.rng.random() < 0.7:
                ref = value.source  # passed on as it is; the lent block stays unused
            else:
                world.memory.write(block, value.content)
                written.append(block)
                ref = block
            refs.append(ref)
        if world.coordinator.may_die() and refs and world.dice.strikes("forge"):
            world.coordinator.forgers.add(self.peer)
            refs[-1] = world.coordinator.foreign_block(dispatch)
        return tuple(refs), written

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
        if self.is_alive and self._kept:
            at = self._world.rng.randrange(len(self._kept))
            block, content = self._kept.pop(at)
            self._world.check_unchanged(self.peer, block, content)
            self._send(ev.BlocksReleased(self.peer, (block,)))
