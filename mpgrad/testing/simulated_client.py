"""SimulatedClient: one session: the real ClientState, and a caller who checks every result.

It submits its graphs in chunks, runs the tasks that belong to it one at a time, compares the
captures with the serial engine's, and lets go of them later.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from mpgrad.handles import (
    ENGINE_ARENA,
    INLINE_LIMIT_BYTES,
    Block,
    GradientRef,
    is_counted,
)
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.client_state import ClientState
from mpgrad.scheduler.graph_spec import ON_CPU
from mpgrad.scheduler.plan import plan
from mpgrad.scheduler.plan_tables import Plan
from mpgrad.testing.expectations import require
from mpgrad.testing.path_counts import (
    Content,
    TracedGraph,
    Value,
    add,
    pack,
    run_members,
    run_serially,
    unpack,
)
from mpgrad.testing.simulated_memory import UNKNOWN_BLOCK
from mpgrad.testing.simulated_worker import (
    RuleRaised,
    is_on_host,
    refuse_lost_memory,
    run_program,
)
from mpgrad.testing.virtual_time import Lane
from mpgrad.wire.codec import decode, encode
from mpgrad.wire.schema import PROTOCOL_VERSION, EndSession, Hello

if TYPE_CHECKING:
    from mpgrad.testing.world import World

TO_CLIENT = get_args(do.ToClient)
TASK_US_MAX = 100
#: What a caller gives a graph that he cancels.
GRACES_MS = (None, 0, 2, 1000)
#: Task, slot, place, gradient.
Seeds: TypeAlias = tuple[tuple[int, int, int, GradientRef], ...]
#: What the caller writes into a result that is its own alone.
ADOPTED: Content = (-2, -2)


class SimulatedClient:
    """One calling thread of a user's process."""

    def __init__(self, world: World, process: int, number: int, graphs: list[TracedGraph]) -> None:
        self.process, self._world = process, world
        self.peer = peer = f"c{process}.{number}"
        self.core = ClientState(peer)
        self.is_alive = True
        #: By the session's name for it.
        self.graphs = graphs
        self._plans: dict[int, Plan] = {}
        #: Hooks that wait for a backward of their own: (its name, the hook's task), innermost last.
        self._nested: list[tuple[int, do.DispatchNodeTask]] = []
        #: Graphs whose first task was run here before they were submitted.
        self._ran_ahead: set[int] = set()
        self._ended = 0
        self._inbox: deque[bytes] = deque()
        self._is_busy = False
        #: Serial position of the last task of each graph that ran here: hooks keep their order.
        self._last_position: dict[int, int] = {}
        #: Blocks of the client's arena that a running graph may still read.
        self._own_blocks: dict[int, list[Block]] = {}
        #: Results and inputs of hooks that the caller can see, with what they showed at first.
        self._views: list[tuple[Block, Content]] = []
        self.outbox = Lane(world.time, lambda frame: world.coordinator.on_client_frame(peer, frame))
        self.lane = Lane(world.time, self._receive)

    def start(self) -> None:
        """Say hello and plan the session's life."""
        time, rng, dice = self._world.time, self._world.rng, self._world.dice
        self._send(Hello(self.peer, b"", PROTOCOL_VERSION))
        at = 0
        for name, graph in enumerate(self.graphs):
            at += rng.choice((0, rng.randint(0, 2000), rng.randint(0, 10_000)))
            horizon = at + 80 * len(graph.spec.nodes)
            time.after(at, self._submit, name)
            if dice.strikes("cancel"):
                time.after(rng.randint(at, horizon), self._cancel, name)
        if dice.strikes("breach"):
            time.after(rng.randint(0, horizon), self._break_protocol)

    # ------------------------------------------------------------------ what the caller does

    def _submit(self, name: int, depth: int = 0) -> None:
        if not self.is_alive or name in self._plans:
            return
        world, rng = self._world, self._world.rng
        graph = self.graphs[name]
        planned = plan(
            graph.spec,
            fuse=rng.random() < 0.7,
            bundles=rng.random() < 0.5,
            workers=rng.choice((1, 4, 64)),
        )
        if rng.random() < 0.5:
            planned = _publish_anywhere(planned, rng)
        self._plans[name] = planned
        program = world.expected.add_program(self.peer, name, graph, planned)
        self._own_blocks[name] = []
        tasks = [
            task._replace(payload=(program, number)) for number, task in enumerate(planned.tasks)
        ]
        seeds = self._seeds(name, graph, planned)
        done = int(self._may_run_ahead(graph, planned) and rng.random() < 0.7)
        if done:
            seeds = self._run_ahead(name, graph, planned, seeds)
        cuts = [len(tasks)]
        if rng.random() < 0.3:
            cuts = sorted({rng.randint(done, len(tasks)), rng.randint(1, len(tasks)), len(tasks)})
        submitted = ev.GraphSubmitted(
            self.peer,
            name,
            depth=depth,
            tasks=tuple(tasks[: cuts[0]]),
            seeds=seeds,
            capture_count=len(graph.spec.captures),
            is_whole=len(cuts) == 1,
            done=done,
        )
        self.core.handle_event(submitted)
        self._send(submitted)
        for start, end in pairwise(cuts):
            part = tuple(tasks[start:end])
            self._send(ev.GraphExtended(self.peer, name, part, is_whole=end == len(tasks)))

    def _seeds(self, name: int, graph: TracedGraph, planned: Plan) -> Seeds:
        sizes = [graph.spec.nodes[node].input_nbytes[nr] for node, nr in graph.spec.seeds]
        on_devices = [graph.spec.nodes[node].is_on_device(nr) for node, nr in graph.spec.seeds]
        return tuple(
            (*where, self._own_ref(name, value, nbytes, on_device))
            for where, value, nbytes, on_device in zip(
                planned.seeds, graph.seeds, sizes, on_devices, strict=True
            )
        )

    def _may_run_ahead(self, graph: TracedGraph, planned: Plan) -> bool:
        """Whether task 0 waits for nothing but seeds, and its rules raise nothing.

        The real client is choosier, see ``Plan.opens_alone``.
        """
        first, members = planned.tasks[0], planned.groups[0]
        return (
            not first.on_client
            and first.device == ON_CPU
            and first.dependencies == sum(task == 0 for task, _, _ in planned.seeds)
            and all(member.node not in graph.raising for member in members)
        )

    def _run_ahead(self, name: int, graph: TracedGraph, planned: Plan, seeds: Seeds) -> Seeds:
        """Run task 0 in this process; the other seeds, and what it gives."""
        self._ran_ahead.add(name)
        sums: list[Value | None] = [None] * len(planned.tasks[0].places)
        for (task, slot, _), value in zip(planned.seeds, graph.seeds, strict=True):
            if task == 0:
                sums[slot] = add(sums[slot], value)
        outputs = planned.tasks[0].outputs
        values = run_members(graph, planned.groups[0], planned.slots[0], sums, len(outputs))
        return tuple(seed for seed in seeds if seed[0] != 0) + tuple(
            (output.task, output.slot, output.place, self._own_ref(name, value, output.nbytes))
            for output, value in zip(outputs, values, strict=True)
        )

    def _own_ref(
        self, name: int, value: Value | None, nbytes: int, on_device: bool = False
    ) -> GradientRef:
        """A gradient made in this process: undefined, inline, or in memory of its own."""
        if value is None:
            return None
        if nbytes <= INLINE_LIMIT_BYTES and not on_device:
            return pack(value.content)
        block = self._world.memory.allot_client(nbytes, value.content, on_device=on_device)
        self._own_blocks[name].append(block)
        return block

    def _cancel(self, name: int) -> None:
        if self.is_alive:
            cancelled = ev.GraphCancelled(self.peer, name, self._world.rng.choice(GRACES_MS))
            for event in self.core.handle_event(cancelled):
                self._world.expected.cancel(self.peer, name)
                self._send(event)

    def vanish(self) -> None:
        """The process dies. Its arena lives on as long as a worker has it mapped."""
        if self.is_alive:
            self.is_alive = False
            self.outbox.cut()
            world = self._world
            world.note(self.peer, "vanishes")
            world.time.after(
                world.time.hand_over_us(), world.coordinator.on_session_gone, self.peer
            )

    def _break_protocol(self) -> None:
        """Say something that is never true, and be cut off for it."""
        if not self.is_alive:
            return
        self._world.coordinator.forgers.add(self.peer)
        if self._world.rng.random() < 0.5:
            self._send(ev.GraphSubmitted(self.peer, len(self.graphs), 0, (), (), 0, done=1))
        else:
            self._send(ev.BlocksReleased(self.peer, (UNKNOWN_BLOCK,)))

    # ------------------------------------------------------------------ messages

    def _send(self, message: Any) -> None:
        self.outbox.send(encode(message))

    def _receive(self, frame: bytes) -> None:
        self._inbox.append(frame)
        self._pump()

    def _pump(self) -> None:
        """One thread: while a task runs, messages wait (unless it waits for them itself)."""
        while self._inbox and not self._is_busy and self.is_alive:
            message = decode(self._inbox.popleft(), TO_CLIENT)
            for instruction in self.core.handle_event(message):
                if isinstance(instruction, do.ExecuteNodeTask):
                    self._begin(instruction.dispatch)
                else:
                    self._send(instruction)
            if isinstance(message, do.CompleteGraph | do.FailGraph):
                self._on_end(message)

    def _begin(self, dispatch: do.DispatchNodeTask) -> None:
        world = self._world
        world.note(self.peer, "run", dispatch)
        planned = self._plans[dispatch.name]
        position = planned.tasks[dispatch.task].position
        require(
            self._last_position.get(dispatch.name, -1) < position,
            f"{self.peer} runs task {dispatch.task} of its graph {dispatch.name} out of order",
        )
        self._last_position[dispatch.name] = position
        later = [name for name in range(len(self.graphs)) if name not in self._plans]
        if later and world.rng.random() < 0.8:
            self._nested.append((later[0], dispatch))
            self._submit(later[0], dispatch.depth + 1)
            if world.dice.strikes("orphan"):
                world.time.after(world.rng.randint(0, 1000), world.kill_client, self.process)
        else:
            self._go_on(dispatch)

    def _go_on(self, dispatch: do.DispatchNodeTask) -> None:
        world, self._is_busy = self._world, True
        world.time.after(1 + int(TASK_US_MAX * world.rng.random()), self._finish, dispatch)

    def _finish(self, dispatch: do.DispatchNodeTask) -> None:
        if not self.is_alive:
            return
        self._is_busy = False
        key = (dispatch.graph, dispatch.task, dispatch.attempt)
        reply: ev.NodeTaskDone | ev.NodeTaskFailed
        try:
            refuse_lost_memory(self._world, dispatch)
            values = run_program(self._world, dispatch)
            outputs = self._publish(dispatch, values)
            reply = ev.NodeTaskDone(self.peer, *key, outputs, self._keep(dispatch))
        except RuleRaised as error:
            kept = self._keep(dispatch)
            reply = ev.NodeTaskFailed(self.peer, *key, error.text, kept, error.step)
        for message in self.core.handle_event(ev.NodeTaskFinished(reply)):
            self._send(message)
        self._pump()

    def _publish(
        self, dispatch: do.DispatchNodeTask, values: list[Value | None]
    ) -> tuple[GradientRef, ...]:
        program = self._world.expected.programs[dispatch.payload[0]]
        outputs = program.plan.tasks[dispatch.task].outputs
        refs: list[GradientRef] = []
        for number, (output, value) in enumerate(zip(outputs, values, strict=True)):
            on_device = program.is_on_device(dispatch.task, number)
            if (
                value is not None
                and value.source is not None
                and is_on_host(value.source) != on_device
            ):
                refs.append(value.source)
            else:
                refs.append(self._own_ref(dispatch.name, value, output.nbytes, on_device))
        return tuple(refs)

    def _keep(self, dispatch: do.DispatchNodeTask) -> tuple[Block, ...]:
        """A hook may hold on to the gradients that it was shown."""
        inputs = [ref for slot in dispatch.inputs for ref in slot if isinstance(ref, Block)]
        kept = tuple(
            block
            for block in inputs
            if block.arena == ENGINE_ARENA and self._world.rng.random() < 0.2
        )
        for block in kept:
            self._hold(block)
        return kept

    # ------------------------------------------------------------------ results

    def _on_end(self, end: do.CompleteGraph | do.FailGraph) -> None:
        world, name = self._world, end.graph
        if isinstance(end, do.CompleteGraph):
            self._check_result(name, end)
        # The graph's last message: nobody reads what this process made for it any more.
        in_sight = [block for block, _ in self._views]
        for block in self._own_blocks.pop(name):
            if block not in in_sight:
                world.memory.free_client(block)
        for entry in [entry for entry in self._nested if entry[0] == name]:
            self._nested.remove(entry)
            self._go_on(entry[1])
        self._ended += 1
        if self._ended == len(self.graphs):
            world.time.after(world.rng.randint(0, 3000), self._leave)

    def _check_result(self, name: int, end: do.CompleteGraph) -> None:
        expected = run_serially(self.graphs[name])
        for number, (ref, value) in enumerate(zip(end.captures, expected, strict=True)):
            if isinstance(ref, Block) and self._world.memory.is_lost(ref):
                continue  # its GPU worker died on the way: the caller gets an error
            content = self._look_at(ref)
            wanted = None if value is None else value.content
            require(
                content == wanted,
                f"capture {number} of graph {name} is {content}, in a serial engine {wanted}",
            )
        for ref, is_exclusive in zip(end.captures, end.exclusive, strict=True):
            if isinstance(ref, Block):
                if is_counted(ref) and self._world.memory.is_lost(ref):
                    self._send(ev.BlocksReleased(self.peer, (ref,)))
                    continue
                if is_exclusive and self._world.rng.random() < 0.5:
                    # The caller makes it its own and adds to it in place: nobody may see that.
                    self._world.memory.overwrite(ref, ADOPTED)
                self._hold(ref)
        tasks, done = self._plans[name].tasks, int(name in self._ran_ahead)
        on_workers = [at for at, task in enumerate(tasks) if at >= done and not task.on_client]
        ran = sorted(number for number, *_ in end.ran)
        require(ran == on_workers, f"graph {name} reports tasks {ran} of workers, not {on_workers}")

    def _look_at(self, ref: GradientRef) -> Content | None:
        if isinstance(ref, Block):
            return self._world.memory.read(ref)
        return None if ref is None else unpack(ref)

    def _hold(self, block: Block) -> None:
        """A view of ``block`` lives on in this process, for a while."""
        self._views.append((block, self._world.memory.read(block)))
        self._world.time.after(self._world.rng.randint(0, 5000), self._release)

    def _release(self) -> None:
        """One view dies; what it showed must not have changed meanwhile."""
        if self.is_alive and self._views:
            at = self._world.rng.randrange(len(self._views))
            block, content = self._views.pop(at)
            if not self._world.memory.is_lost(block):
                self._world.check_unchanged(self.peer, block, content)
            if is_counted(block):
                self._send(ev.BlocksReleased(self.peer, (block,)))

    def _leave(self) -> None:
        """The thread ends; results that it still holds are given back with the session."""
        if self.is_alive:
            self.is_alive = False
            self._send(EndSession(self.peer))


def _publish_anywhere(planned: Plan, rng: Random) -> Plan:
    """The same plan, whose tasks publish what has left them at any of their Nodes."""
    groups = [
        members
        if task.on_client
        else tuple(
            member._replace(publishes=member.piece_of is None and rng.random() < 0.4)
            for member in members
        )
        for task, members in zip(planned.tasks, planned.groups, strict=True)
    ]
    tasks = tuple(
        task._replace(publications=sum(member.publishes for member in members))
        for task, members in zip(planned.tasks, groups, strict=True)
    )
    return planned._replace(tasks=tasks, groups=tuple(groups))
