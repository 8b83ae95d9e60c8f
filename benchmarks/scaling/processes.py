"""The engine's three kinds of processes on a Clock: their real shells, and what work takes."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from time import thread_time
from types import SimpleNamespace
from typing import Any, NoReturn

from benchmarks.scaling.clock import Clock, Process, TimedDealer, TimedRouter
from benchmarks.scaling.costs import ClientCosts
from benchmarks.scaling.task_times import MB, TaskTimes
from mpgrad.base.handles import Block, GradientRef
from mpgrad.base.processor_use import ProcessorUse
from mpgrad.coordinator.coordinator import Coordinator
from mpgrad.coordinator.coordinator_process import start_workers
from mpgrad.coordinator.supervisor import Supervisor
from mpgrad.engine.session import Session
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.chunks import chunk_ends, in_chunks
from mpgrad.scheduler.plan_tables import CAPTURE, NodeTaskSpec, Plan
from mpgrad.shm.free_list import FreeList
from mpgrad.workers.worker import Worker
from simulation.calling_thread import CallingThread
from simulation.coordinator_process import (
    CLIENT_PIDFD,
    simulated_setup,
    status_board,
)
from simulation.known_coordinator import KnownCoordinator
from simulation.silence import AlwaysAnswers
from simulation.transport import MemoryEndpoint

#: Address space and limit of the simulated arena: memory never runs short here.
ARENA_BYTES = 1 << 44
SESSION = "c1.1"


class TimedCoordinator(Coordinator):
    """A Coordinator whose core is run by a function that measures it."""

    time: Callable[[Any], list[Any]]

    def _handle(self, event: Any) -> None:
        self._perform(self.time(event))


class CoordinatorProcess(Process):
    """The coordinator of ``workers`` workers, its Spawner, and where everybody finds it."""

    def __init__(self, clock: Clock, workers: int, times: TaskTimes) -> None:
        super().__init__(clock)
        self.times = times
        self.router, self.endpoint = TimedRouter(self), MemoryEndpoint("simulated", b"")
        self.endpoint.make_dealer = lambda peer, lanes: self.processes[peer].connect(lanes)
        self.workers: list[WorkerProcess] = []
        #: Those who connect to it, by peer.
        self.processes: dict[str, WorkerProcess | ClientProcess] = {}
        #: Who wrote which block: (offset, generation) -> worker.
        self.writers: dict[tuple[int, int], str] = {}
        #: Real seconds that the core needed, and how often, by event.
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.events: Counter[str] = Counter()
        setup = simulated_setup(self.endpoint, workers)
        supervisor = Supervisor(workers, (), status_board(), self, clock.seconds)
        arena = FreeList(ARENA_BYTES, ARENA_BYTES, "simulated arena")
        self._shell = TimedCoordinator(setup, self.router, supervisor, arena, clock.seconds)
        self._shell.time = self._time
        self._shell.begin((CLIENT_PIDFD,), *start_workers(supervisor))

    def start(self, peer: str, slot: int, device: int, arena: int) -> Any:
        worker = self.processes[peer] = WorkerProcess(self, peer)
        self.workers.append(worker)
        self.clock.at(0.0, worker.open, slot)
        # All that is asked of a process that never dies.
        use = ProcessorUse(0, 0)
        return SimpleNamespace(
            pid=slot, pidfd=1 + slot, is_stopped=lambda: False, processor_use=lambda: use
        )

    def turn(self) -> None:
        self._shell.turn()
        self.clock.cores.take(self.clock.spent_us)

    def _time(self, event: Any) -> list[Any]:
        name = type(event).__name__
        self.clock.pay(self.clock.costs.core_us.get(name, 0.0))
        start = thread_time()
        instructions = self._shell.state.handle_event(event)
        self.seconds[name] += thread_time() - start
        self.events[name] += 1
        return instructions


class WorkerProcess(Process):
    """A worker; not its own loop drives it, which waits for a task, but the clock."""

    def __init__(self, coordinator: CoordinatorProcess, peer: str) -> None:
        super().__init__(coordinator.clock)
        self.peer, self._coordinator, self._times = peer, coordinator, coordinator.times
        #: What it does next, and how long it computes before.
        self._next: deque[tuple[float, Callable[[], None]]] = deque()
        #: Megabytes of the arena that are mapped here, by their number.
        self._touched: set[int] = set()
        #: True once every page of the arena is mapped here, as it is after some dozen backwards.
        self.is_warm = False
        #: Computing proper, messages and waiting left out.
        self.computing_us = 0.0

    def open(self, slot: int) -> None:
        """It has loaded all that it needs."""
        executor: Any = SimpleNamespace()  # no task is given to it
        endpoint = self._coordinator.endpoint
        self._shell = Worker(endpoint, self.peer, slot, status_board(), executor)
        self.begin(self._shell.greet)

    def connect(self, lanes: tuple[str, ...]) -> TimedDealer:
        return TimedDealer(self, self._coordinator.router, self.peer, lanes, sleep=None)

    def turn(self) -> None:
        self._run(self._shell.turn(None))

    def go_on(self) -> None:
        if self._next:
            computing_us, action = self._next.popleft()
            self.clock.at(self.clock.now + computing_us, self.begin, action)
        else:
            super().go_on()

    def _run(self, dispatch: do.DispatchNodeTask | None) -> None:
        """Begin a task: compute, publish early what can be, compute, ..., reply."""
        if dispatch is None:
            return
        self._shell.begin(dispatch)
        times, costs, before_us = self._times, self.clock.costs.worker, 0.0
        further_nodes = times.nodes[dispatch.task] - 1
        self.clock.pay(costs.task_us + costs.starting_us * further_nodes)
        self._pay_memory(dispatch)
        self.clock.cores.begin(self)
        for ran, computed_us, numbers in times.early[dispatch.task]:
            at_us = computed_us + costs.node_us * ran
            self._next.append((at_us - before_us, partial(self._publish, dispatch, numbers)))
            before_us = at_us
        at_us = times.us[dispatch.task] + costs.node_us * further_nodes
        self._next.append((at_us - before_us, partial(self._finish, dispatch)))

    def _publish(self, dispatch: do.DispatchNodeTask, numbers: list[int]) -> None:
        """Send what leaves before the task ends."""
        refs = self._outputs(dispatch)
        outputs = tuple((number, refs[number]) for number in numbers)
        self._note_written(block for _, block in outputs)
        key = (dispatch.graph, dispatch.task, dispatch.attempt)
        self._shell.send(ev.NodeTaskProgress(self.peer, *key, outputs))

    def _finish(self, dispatch: do.DispatchNodeTask) -> None:
        late_us = self.clock.cores.end(self)
        if late_us > 0.0:
            self._next.append((late_us, partial(self._finish, dispatch)))
            return
        took_us = self._times.us[dispatch.task]
        self.computing_us += took_us
        self._note_written(dispatch.blocks)
        self._shell.end(())
        key, outputs = (dispatch.graph, dispatch.task, dispatch.attempt), self._outputs(dispatch)
        done = ev.NodeTaskDone(self.peer, *key, outputs, duration_us=int(took_us))
        self._run(self._shell.turn(done))

    def _outputs(self, dispatch: do.DispatchNodeTask) -> tuple[GradientRef, ...]:
        """What a task publishes: its blocks, and small gradients as bytes."""
        sizes = self._times.output_nbytes[dispatch.task]
        return tuple(
            bytes(nbytes) if block is None else block
            for block, nbytes in zip(dispatch.blocks, sizes, strict=True)
        )

    def _note_written(self, refs: Iterable[GradientRef]) -> None:
        for ref in refs:
            if isinstance(ref, Block):
                self._coordinator.writers[ref.offset, ref.generation] = self.peer

    def _pay_memory(self, dispatch: do.DispatchNodeTask) -> None:
        """For gradients that another worker wrote, and for pages that are new to this process."""
        costs, writers = self.clock.costs.worker, self._coordinator.writers
        read = [ref for slot in dispatch.inputs for ref in slot if isinstance(ref, Block)]
        fetched = sum(
            block.nbytes
            for block in read
            if writers.get((block.offset, block.generation)) != self.peer
        )
        self.clock.pay(costs.fetch_us_per_mb * fetched / MB)
        if not self.is_warm:
            fresh: set[int] = set()
            for block in (*read, *[block for block in dispatch.blocks if block is not None]):
                fresh.update(range(block.offset // MB, (block.offset + block.nbytes) // MB + 1))
            fresh -= self._touched
            self._touched |= fresh
            self.clock.pay(costs.touch_us_per_mb * len(fresh))


class ClientProcess(Process):
    """The calling thread: submits a planned graph again and again, as a training loop does.

    ``client`` says what it needs for this graph; ``after_each`` is called between two backwards.
    """

    def __init__(
        self,
        coordinator: CoordinatorProcess,
        planned: Plan,
        *,
        client: ClientCosts,
        backwards: int,
        after_each: Callable[[], None],
    ) -> None:
        super().__init__(coordinator.clock)
        coordinator.processes[SESSION] = self
        self._coordinator, self._planned, self._client = coordinator, planned, client
        self._backwards, self._after_each = backwards, after_each
        self._thread = CallingThread(self.clock, self._live)
        #: How long each backward took, from when packing began to its result.
        self.took_us: list[float] = []

    def turn(self) -> None:
        self._thread.resume()

    def connect(self, lanes: tuple[str, ...]) -> TimedDealer:
        router, suspend = self._coordinator.router, self._thread.suspend
        return TimedDealer(self, router, SESSION, lanes, sleep=lambda timeout_ms: suspend())

    def _live(self) -> None:
        known: Any = KnownCoordinator(self._coordinator.endpoint, AlwaysAnswers())
        session = Session(known, SESSION)
        for number in range(1, self._backwards + 1):
            if self.took_us:
                self._after_each()
            session.send_releases()  # the gradients of the backward before
            self.clock.pay(self._client.walk_us)
            began_us = self.clock.here_us
            end = session.run(self._messages(number, session.workers), _refuse)
            if not isinstance(end, do.CompleteGraph):
                raise RuntimeError(f"the simulated backward got {type(end).__name__}")
            self.took_us.append(self.clock.here_us - began_us)
            session.to_release += [ref for ref in end.captures if isinstance(ref, Block)]
        session.close()

    def _messages(
        self, number: int, workers: int
    ) -> Iterator[ev.GraphSubmitted | ev.GraphExtended]:
        """As ``GraphSubmission.messages``; while it packs and sends, it takes a core."""
        planned, done, paid_us = self._planned, int(self._planned.opens_alone), self.clock.spent_us
        seeds = [(*seed, bytes(4)) for seed in planned.seeds if seed[0] >= done]
        if done:
            times = self._coordinator.times
            self.clock.pay(times.us[0])
            refs = zip(planned.tasks[0].outputs, times.output_nbytes[0], strict=True)
            seeds += [(out.task, out.slot, out.place, bytes(nbytes)) for out, nbytes in refs]
        captures = sum(out.task == CAPTURE for task in planned.tasks for out in task.outputs)
        submitted = ev.GraphSubmitted(SESSION, number, 0, (), tuple(seeds), captures, done=done)
        for message in in_chunks(submitted, chunk_ends(planned, workers, done), self._tables):
            yield message
            busy_us = self.clock.spent_us - paid_us
            self.clock.at(self.clock.here_us, self.clock.cores.take, busy_us)
            paid_us = self.clock.spent_us

    def _tables(self, start: int, stop: int, done: int) -> tuple[NodeTaskSpec, ...]:
        tasks, groups = self._planned.tasks, self._planned.groups
        for task in tasks[max(start, done) : stop]:
            self.clock.pay(self._client.packing_us(1 + len(task.inner_positions)))
        return tuple(
            task._replace(payload=(1 << 20, 400 * len(members)))
            for task, members in zip(tasks[start:stop], groups[start:stop], strict=True)
        )


def _refuse(dispatch: do.DispatchNodeTask) -> NoReturn:
    raise RuntimeError(f"the client of a simulation was given {dispatch}")
