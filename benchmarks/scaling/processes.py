"""The three kinds of processes around their real cores, with the time that each step takes.

They follow ``coordinator.coordinator``, ``workers.worker`` and ``engine.session``: when one of
those changes how it collects, holds or sends messages, it changes here too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from time import thread_time
from typing import Any

from benchmarks.scaling.clock import Clock, Cores, Frame, Loop
from benchmarks.scaling.costs import ClientCosts, Costs
from benchmarks.scaling.task_times import MB, TaskTimes
from mpgrad.base.handles import Block, GradientRef
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.chunks import chunk_ends
from mpgrad.scheduler.client_state import ClientState
from mpgrad.scheduler.coordinator_state import CoordinatorState
from mpgrad.scheduler.plan_tables import CAPTURE, Plan
from mpgrad.scheduler.worker_state import WorkerState
from mpgrad.shm.free_list import FreeList
from mpgrad.wire.codec import decode
from mpgrad.workers.worker import HELD_REPLIES_MAX

#: Address space and limit of the simulated arena: memory never runs short here.
ARENA_BYTES = 1 << 44
SESSION = "c1.1"


class CoordinatorLoop(Loop):
    """The coordinator's process."""

    def __init__(self, clock: Clock, costs: Costs, cores: Cores) -> None:
        super().__init__(clock, costs)
        self._cores = cores
        self.core = CoordinatorState(FreeList(ARENA_BYTES, ARENA_BYTES, "simulated arena"))
        self.peers: dict[str, Loop] = {}
        #: Real seconds that the core needed, and how often, by event.
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.events: Counter[str] = Counter()

    def look(self) -> None:
        frames = self.take_all()
        spent = self.taking_us(frames)
        outbox: dict[str, list[Frame]] = {}
        for frame in frames:
            event = decode(frame.coded)
            spent += self.costs.core_us.get(type(event).__name__, 0.0)
            for instruction in self._handle(event):
                coded, microseconds = self.encoded(instruction)
                outbox.setdefault(instruction.peer, []).append(coded)
                spent += microseconds
        for peer, coded_frames in outbox.items():
            spent += self.costs.messages.send_us
            self.send(self.peers[peer], coded_frames, self.clock.now + spent)
        self.busy_us += spent
        self._cores.take(spent)
        self.clock.at(self.clock.now + spent, self.rest)

    def _handle(self, event: Any) -> list[Any]:
        start = thread_time()
        instructions = self.core.handle_event(event)
        self.seconds[type(event).__name__] += thread_time() - start
        self.events[type(event).__name__] += 1
        return instructions


class WorkerLoop(Loop):
    """A worker's process."""

    def __init__(
        self, clock: Clock, costs: Costs, cores: Cores, peer: str, coordinator: Loop
    ) -> None:
        super().__init__(clock, costs)
        self.peer, self._coordinator, self._cores = peer, coordinator, cores
        self._core = WorkerState(peer)
        self._held: list[Frame] = []
        #: Megabytes of the arena that are mapped here, by their number.
        self._touched: set[int] = set()
        self.times: TaskTimes | None = None
        #: Who wrote which block: (offset, generation) -> worker.
        self.writers: dict[tuple[int, int], str] = {}
        #: True once every page of the arena is mapped here, as it is after some dozen backwards.
        self.is_warm = False
        #: Computing proper, messages and waiting left out.
        self.computing_us = 0.0

    def look(self) -> None:
        frames = self.take_all()
        self._perform(self._told(frames), self.taking_us(frames))

    def _told(self, frames: list[Frame]) -> list[Any]:
        return [
            instruction
            for frame in frames
            for instruction in self._core.handle_event(decode(frame.coded))
        ]

    def _perform(self, instructions: list[Any], spent: float) -> None:
        """As ``workers.worker.Worker._perform``."""
        dispatch: do.DispatchNodeTask | None = None
        for instruction in instructions:
            if isinstance(instruction, do.ExecuteNodeTask):
                dispatch = instruction.dispatch
            else:
                coded, microseconds = self.encoded(instruction)
                self._held.append(coded)
                spent += microseconds
        must_hold = dispatch is not None and dispatch.is_short
        if self._held and not (must_hold and len(self._held) < HELD_REPLIES_MAX):
            spent += self.costs.messages.send_us
            self.send(self._coordinator, self._held, self.clock.now + spent)
            self._held.clear()
        if dispatch is None:
            self.clock.at(self.clock.now + spent, self.rest)
        else:
            computing = self._computing_us(dispatch)
            self.computing_us += computing
            spent += self._overhead_us(dispatch)
            spent = self._publish_early(dispatch, spent) + computing
            spent += self.costs.worker.node_us * self._further_nodes(dispatch)
            self._cores.begin(self)
            self.clock.at(self.clock.now + spent, self._finish, dispatch, computing)
        self.busy_us += spent

    def _publish_early(self, dispatch: do.DispatchNodeTask, spent: float) -> float:
        """Send what leaves before the task ends; the time at which it began, put off by that."""
        if self.times is None:
            return spent
        refs = outputs_of(self.times, dispatch)
        key = (dispatch.graph, dispatch.task, dispatch.attempt)
        for ran, computed_us, numbers in self.times.early[dispatch.task]:
            after_us = computed_us + self.costs.worker.node_us * ran
            outputs = tuple((number, refs[number]) for number in numbers)
            self._note_written(block for _, block in outputs)
            frame, coding = self.encoded(ev.NodeTaskProgress(self.peer, *key, outputs))
            spent += coding + self.costs.messages.send_us
            self.send(self._coordinator, [frame], self.clock.now + spent + after_us)
        return spent

    def _note_written(self, refs: Iterable[GradientRef]) -> None:
        for ref in refs:
            if isinstance(ref, Block):
                self.writers[ref.offset, ref.generation] = self.peer

    def _finish(self, dispatch: do.DispatchNodeTask, computing: float) -> None:
        late_us = self._cores.end(self)
        if late_us > 0.0:
            self.clock.at(self.clock.now + late_us, self._finish, dispatch, computing)
            return
        frames = self.take_all()
        instructions = self._told(frames)
        self._note_written(dispatch.blocks)
        done = ev.NodeTaskDone(
            self.peer,
            dispatch.graph,
            dispatch.task,
            dispatch.attempt,
            outputs_of(self.times, dispatch),
            duration_us=int(computing),
        )
        instructions += self._core.handle_event(ev.NodeTaskFinished(done))
        self._perform(instructions, self.taking_us(frames))

    def _computing_us(self, dispatch: do.DispatchNodeTask) -> float:
        if self.times is None:
            raise RuntimeError("a worker was given a task before the graph was submitted")
        return self.times.us[dispatch.task]

    def _further_nodes(self, dispatch: do.DispatchNodeTask) -> int:
        return 0 if self.times is None else self.times.nodes[dispatch.task] - 1

    def _overhead_us(self, dispatch: do.DispatchNodeTask) -> float:
        """What passes before the first Node runs: for the program, for gradients that another
        worker wrote, for pages that are new to this process.
        """
        if self.times is None:
            return 0.0
        costs = self.costs.worker
        read = [ref for slot in dispatch.inputs for ref in slot if isinstance(ref, Block)]
        fetched = sum(
            block.nbytes
            for block in read
            if self.writers.get((block.offset, block.generation)) != self.peer
        )
        written = [block for block in dispatch.blocks if block is not None]
        fresh: set[int] = set()
        if not self.is_warm:
            for block in (*read, *written):
                fresh.update(range(block.offset // MB, (block.offset + block.nbytes) // MB + 1))
            fresh -= self._touched
            self._touched |= fresh
        return (
            costs.task_us
            + costs.starting_us * self._further_nodes(dispatch)
            + costs.fetch_us_per_mb * fetched / MB
            + costs.touch_us_per_mb * len(fresh)
        )


class ClientLoop(Loop):
    """The calling thread: submits a planned graph again and again, as a training loop does.

    Args:
        client: what it needs for this graph.
        backwards: how often.
    """

    def __init__(
        self,
        clock: Clock,
        costs: Costs,
        cores: Cores,
        coordinator: Loop,
        planned: Plan,
        times: TaskTimes,
        workers: int,
        *,
        client: ClientCosts,
        backwards: int,
    ) -> None:
        super().__init__(clock, costs)
        self._coordinator, self._planned, self._times = coordinator, planned, times
        self._cores = cores
        self._workers, self._client = workers, client
        self._left = backwards
        self._core = ClientState(SESSION)
        self._graph = 0
        self._captured: tuple[Block, ...] = ()
        self._is_asleep = False
        #: When packing began for the running backward; how long each took from there to its result.
        self.began_us = 0.0
        self.took_us: list[float] = []
        #: Called between two backwards.
        self.after_each: Callable[[], None] = lambda: None

    def begin(self) -> None:
        """The next backward."""
        self._left -= 1
        self._graph += 1
        if self._captured:
            # The gradients of the backward before are not looked at any more.
            released, spent = self.encoded(ev.BlocksReleased(SESSION, self._captured))
            self.send(self._coordinator, [released], self.clock.now + spent)
        self.clock.at(self.clock.now + self._client.walk_us, self._submit)

    def _submit(self) -> None:
        """The graph has been walked."""
        self.began_us, spent = self.clock.now, 0.0
        for message in self._messages():
            frame, coding = self.encoded(message)
            busy_us = coding + self.costs.messages.send_us + self._packing_us(message)
            spent += busy_us
            self.clock.at(self.clock.now + spent, self._cores.take, busy_us)
            self.send(self._coordinator, [frame], self.clock.now + spent)
        self.clock.at(self.clock.now + spent, self.rest)

    def _packing_us(self, message: ev.GraphSubmitted | ev.GraphExtended) -> float:
        packing_us = sum(
            [self._client.packing_us(1 + len(t.inner_positions)) for t in message.tasks]
        )
        if isinstance(message, ev.GraphSubmitted) and message.done:
            return packing_us + self._times.us[0]
        return packing_us

    def _messages(self) -> Iterator[ev.GraphSubmitted | ev.GraphExtended]:
        """As ``engine.handover.Handover``."""
        planned = self._planned
        tasks = tuple(
            task._replace(payload=(1 << 20, 400 * len(members)))
            for task, members in zip(planned.tasks, planned.groups, strict=True)
        )
        done = int(planned.opens_alone)
        seeds = [(*seed, bytes(4)) for seed in planned.seeds if seed[0] >= done]
        if done:
            refs = zip(tasks[0].outputs, self._times.output_nbytes[0], strict=True)
            seeds += [(out.task, out.slot, out.place, bytes(nbytes)) for out, nbytes in refs]
        captures = sum(out.task == CAPTURE for task in tasks for out in task.outputs)
        ends = chunk_ends(planned, self._workers, done)
        first, is_whole = tasks[: ends[0]], len(ends) == 1
        submitted = ev.GraphSubmitted(
            SESSION, self._graph, 0, first, tuple(seeds), captures, is_whole, done
        )
        self._core.handle_event(submitted)
        yield submitted
        for start, end in pairwise(ends):
            yield ev.GraphExtended(SESSION, self._graph, tasks[start:end], end == len(tasks))

    def look(self) -> None:
        frames = self.take_all()
        spent = self.taking_us(frames)
        for frame in frames:
            message = decode(frame.coded)
            self._core.handle_event(message)
            if not isinstance(message, do.CompleteGraph):
                raise RuntimeError(f"the simulated backward got {type(message).__name__}")
            self.took_us.append(self.clock.now + spent - self.began_us)
            self._captured = tuple(ref for ref in message.captures if isinstance(ref, Block))
            if self._left:
                self.after_each()
                self.clock.at(self.clock.now + spent, self.begin)
                return
        self.clock.at(self.clock.now + spent, self.rest)


def outputs_of(times: TaskTimes | None, dispatch: do.DispatchNodeTask) -> tuple[GradientRef, ...]:
    """What a task publishes: its blocks, and small gradients as bytes."""
    if times is None:
        return ()
    return tuple(
        bytes(nbytes) if block is None else block
        for block, nbytes in zip(dispatch.blocks, times.output_nbytes[dispatch.task], strict=True)
    )
