"""Caller: one calling thread of a user's process, around a real Session.

It plans its graphs, submits them in chunks, runs the client tasks, compares the captures with those
of a serial engine, and releases them later. The Session is the engine's own, and blocks this thread
as it would block the user's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

from mpgrad.base.handles import (
    ENGINE_ARENA,
    INLINE_LIMIT_BYTES,
    Block,
    GradientRef,
    is_counted,
)
from mpgrad.engine.session import Session
from mpgrad.errors import BytesCorrupted, CoordinatorLost, EngineClosed
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.chunks import in_chunks
from mpgrad.scheduler.plan import plan
from mpgrad.scheduler.plan_tables import NodeTaskSpec, OutputSpec, Plan
from mpgrad.wire.schema import encode
from simulation.branches import CallerBranches, plan_of_map
from simulation.calling_thread import CallingThread
from simulation.expectations import INTERRUPTED, require
from simulation.known_coordinator import DrawnInterrupts, NotMade
from simulation.local_tasks import LocalTasks
from simulation.path_counts import (
    Content,
    TracedGraph,
    Value,
    pack,
)
from simulation.random_graphs import publish_anywhere
from simulation.simulated_memory import UNKNOWN_BLOCK
from simulation.situations import CALLER_FAILED, CALLER_RAN, SUBMITTED_TOGETHER
from simulation.task_values import (
    RuleRaised,
    check_captures,
    is_on_host,
    refuse_lost_memory,
    run_program,
)
from simulation.transport import MemoryDealer

if TYPE_CHECKING:
    from simulation.world import World

TASK_US_MAX, OWN_US_MAX = 100, 3000
#: How often it submits all that it has left, as ``engine.submitter``, and then waits.
TOGETHER = 0.1
Seeds: TypeAlias = tuple[tuple[int, int, int, GradientRef], ...]
#: The content that the caller writes into a result of which it is the only holder.
ADOPTED: Content = (-2, -2)


class Caller:
    """One calling thread."""

    def __init__(self, world: World, process: int, number: int, graphs: list[TracedGraph]) -> None:
        self.process, self._world = process, world
        self.peer = f"c{process}.{number}"
        self.is_alive = True
        #: By the session's number of the graph.
        self.graphs = graphs
        self._session: Session | None = None
        self._dealer: MemoryDealer | None = None
        self._plans: dict[int, Plan] = {}
        #: By graph: the tasks that run here without a dispatch.
        self._own: dict[int, LocalTasks] = {}
        #: Serial position of the last client task of each graph: hooks keep their order.
        self._last_position: dict[int, int] = {}
        #: Blocks of the client's arena that a running graph may still read.
        self._own_blocks: dict[int, list[Block]] = {}
        #: Results and inputs of hooks that the caller can see, with their content at first.
        self._views: list[tuple[Block, Content]] = []
        self._ended = world.ended_branches[process]
        self._branches = CallerBranches(world.branches, process, self._ended)
        self._thread = CallingThread(world.time, self._live)
        #: Of its own, so that other Worlds stay what they are.
        self._submits = Random(f"submissions of {self.peer} of {world.seed}")
        #: The number of backwards that it is inside of.
        self._depth = 0

    # ------------------------------------------------------------------ the thread

    def start(self) -> None:
        """Begin, and schedule the events in between."""
        time, rng, dice = self._world.time, self._world.rng, self._world.dice
        horizon = sum(80 * len(graph.spec.nodes) for graph in self.graphs)
        if dice.strikes("cancel"):
            time.after(rng.randint(0, 5000 + horizon), self._press_ctrl_c)
        if dice.strikes("breach"):
            time.after(rng.randint(0, horizon), self._break_protocol)
        self._thread.resume()

    def _live(self) -> None:
        world, rng = self._world, self._world.rng
        interrupts = DrawnInterrupts(world.time.seconds)
        interrupts.rng = rng
        try:
            coordinator: Any = world.known_coordinator
            self._session = Session(coordinator, self.peer, interrupts, self._ended)
            for name in range(len(self.graphs)):
                self._idle(rng.choice((0, rng.randint(0, 2000), rng.randint(0, 10_000))))
                if name not in self._plans and self._submits.random() < TOGETHER:
                    later = range(name, len(self.graphs))
                    self._submit_together([one for one in later if one not in self._plans])
                elif name not in self._plans:
                    self._call_backward(name)
            self._idle(rng.randint(0, 3000))
            if rng.random() < 0.5:
                self._let_all_go()
            self._branches.end_all()
            if self._ended:
                self._session.send_releases()
        except EngineClosed as error:
            is_meant = self.peer in world.coordinator.forgers or world.expected.has_given_up
            require(is_meant, f"{self.peer} is refused: {error}")
        except CoordinatorLost as error:
            require(world.silence.is_dead, f"{self.peer} has lost the coordinator: {error}")
        self._leave()

    def _call_backward(self, name: int) -> None:
        with suppress(KeyboardInterrupt, NotMade):  # the program goes on
            self._backward(name, 0)

    def _idle(self, delay_us: int) -> None:
        """Wait between two backwards; views die meanwhile, and releases are sent now and then."""
        assert self._session is not None
        for part in (delay_us // 2, delay_us - delay_us // 2):
            self._thread.sleep(part)
            self._session.send_releases()

    def dealer_for(self, lanes: tuple[str, ...]) -> MemoryDealer:
        """Its connection, made by its Session."""
        router = self._world.router
        self._dealer = MemoryDealer(
            router, self.peer, lanes, self._thread.on_arrival, self._thread.listen
        )
        if self._world.silence.is_dead:
            self._dealer.become_readable()
        return self._dealer

    def lose_coordinator(self) -> None:
        """The coordinator dies."""
        if self.is_alive and self._dealer is not None:
            self._dealer.become_readable()

    # ------------------------------------------------------------------ faults

    def _press_ctrl_c(self) -> None:
        if self.is_alive and self._depth:
            self._world.note(self.peer, "Ctrl-C")
            self._thread.wake_up(KeyboardInterrupt())

    def vanish(self) -> None:
        """The process dies. Its arena exists as long as a worker has it mapped."""
        if not self.is_alive:
            return
        world, self.is_alive = self._world, False
        world.note(self.peer, "vanishes")
        self._branches.orphan()
        world.coordinator.on_session_gone(self.peer)
        if self._dealer is not None:
            self._dealer.cut()
            self._dealer.close()
            # A send to it fails from now on; later the router notices its end without a send.
            world.time.after(world.rng.choice((0, 10_000)), self._dealer.hang_up)
        self._thread.end()

    def end(self) -> None:
        """The World is over."""
        self._thread.end()

    def _break_protocol(self) -> None:
        """Send a message that is never valid, and be cut off for it."""
        if not self.is_alive or self._dealer is None:
            return
        self._world.coordinator.forgers.add(self.peer)
        wrong: ev.GraphSubmitted | ev.BlocksReleased
        if self._world.rng.random() < 0.5:
            wrong = ev.GraphSubmitted(self.peer, len(self.graphs), 0, (), (), 0, done=1)
        else:
            wrong = ev.BlocksReleased(self.peer, (UNKNOWN_BLOCK,))
        self._dealer.send([encode(wrong)])

    @property
    def _is_cut_off(self) -> bool:
        """Whether it has broken the protocol, or nobody listens any more: it owns nothing."""
        return self.peer in self._world.coordinator.forgers or self._world.silence.is_dead

    def running(self) -> list[int]:
        """Its graphs that have not ended."""
        return [] if self._session is None else self._session.running

    def _leave(self) -> None:
        """The thread ends; the session returns the results that it still holds."""
        self.is_alive = False
        if self._is_cut_off:
            self._branches.orphan()
        left = [] if self._is_cut_off else self.running()
        require(not left, f"{self.peer} leaves, and its graphs {left} have not ended")
        if self._session is not None:
            self._session.close()
        if self._dealer is not None:
            self._dealer.hang_up()
        self._world.coordinator.on_session_gone(self.peer)

    # ------------------------------------------------------------------ a backward

    def _backward(self, name: int, depth: int) -> None:
        """Run graph ``name``.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            NotMade: the rest of the graph could not be made.
        """
        assert self._session is not None
        program, messages = self._made(name, depth)
        self._depth += 1
        end = None
        try:
            end = self._session.run(messages, partial(self._run_task, depth))
            if isinstance(end, do.CompleteGraph) and not self._is_cut_off:
                self._check_result(name, end)
        except (KeyboardInterrupt, NotMade):
            left = self.running()
            require(
                name not in left, f"{self.peer} waits no longer for {name}, which has not ended"
            )
            self._free(name)
            raise
        finally:
            self._depth -= 1
            self._branches.end_map(program, end)
        self._free(name)
        if not self.graphs[name].making:
            self._branches.end_some()

    def _submit_together(self, names: list[int]) -> None:
        """Submit these graphs before the end of any of them is known."""
        assert self._session is not None
        self._world.coordinator.situations.seen[SUBMITTED_TOGETHER] += len(names) > 1
        made = {name: self._made(name, 0) for name in names}
        failures = {}
        try:
            for name, (_, messages) in made.items():
                _, failures[name] = self._session.submit(messages, partial(self._run_task, 0))
            while failures:
                self._session.step()
                for name in [*failures]:
                    end = self._session.take_outcome(name)
                    if end is None:
                        continue
                    is_made = failures.pop(name) is None and not self._is_cut_off
                    if is_made and isinstance(end, do.CompleteGraph):
                        self._check_result(name, end)
                    self._branches.end_map(made.pop(name)[0], end)
                    self._free(name)
        finally:
            for program, _ in made.values():
                self._branches.end_map(program, None)
        self._branches.end_some()

    def _made(
        self, name: int, depth: int
    ) -> tuple[int, Iterator[ev.GraphSubmitted | ev.GraphExtended]]:
        """The number of the program of graph ``name``, and the messages that submit it."""
        world, rng, graph = self._world, self._world.rng, self.graphs[name]
        planned = plan_of_map(graph) if graph.making else self._planned(graph)
        self._plans[name] = planned
        program = world.expected.add_program(self.peer, name, graph, planned)
        self._own_blocks[name] = []
        tasks = [
            task._replace(payload=(program, number)) for number, task in enumerate(planned.tasks)
        ]
        seeds = self._seeds(name, graph, planned)
        own = self._own[name] = LocalTasks(graph, planned, rng)
        if own.meanwhile is not None:
            world.expected.own[program] = own.meanwhile
        seeds = tuple(seed for seed in seeds if seed[0] >= own.count)
        seeds += self._refs(name, own.given_ahead())
        cuts = [len(tasks)]
        if rng.random() < 0.3:
            first = rng.randint(own.count, len(tasks))
            cuts = sorted({first, rng.randint(first, len(tasks)), len(tasks)})
        if graph.making:
            self._branches.begin_map(program, len(tasks), depth)
        else:
            tasks = self._branches.place(program, tasks, own.count)
        submitted = ev.GraphSubmitted(
            self.peer,
            name,
            depth=depth,
            tasks=(),
            seeds=seeds,
            capture_count=len(graph.spec.captures),
            done=own.count,
        )
        return program, self._messages(submitted, cuts, tasks)

    def _planned(self, graph: TracedGraph) -> Plan:
        rng = self._world.rng
        planned = plan(
            graph.spec,
            fuse=rng.random() < 0.7,
            bundles=rng.random() < 0.5,
            workers=rng.choice((1, 4, 64)),
        )
        return publish_anywhere(planned, rng) if rng.random() < 0.5 else planned

    def _tables(
        self, tasks: list[NodeTaskSpec], start: int, stop: int, done: int
    ) -> tuple[NodeTaskSpec, ...]:
        if start and self._world.dice.strikes("cancel"):
            raise NotMade
        return tuple(tasks[start:stop])

    def _seeds(self, name: int, graph: TracedGraph, planned: Plan) -> Seeds:
        sizes = [graph.spec.nodes[node].input_nbytes[nr] for node, nr in graph.spec.seeds]
        on_devices = [graph.spec.nodes[node].is_on_device(nr) for node, nr in graph.spec.seeds]
        return tuple(
            (*where, self._own_ref(name, value, nbytes, on_device))
            for where, value, nbytes, on_device in zip(
                planned.seeds, graph.seeds, sizes, on_devices, strict=True
            )
        )

    def _messages(
        self, submitted: ev.GraphSubmitted, cuts: list[int], tasks: list[NodeTaskSpec]
    ) -> Iterator[ev.GraphSubmitted | ev.GraphExtended]:
        """As ``engine.graph_submission``: the tables, then what the local share gives."""
        name, own = submitted.graph, self._own[submitted.graph]
        yield from in_chunks(submitted, cuts, partial(self._tables, tasks), goes_on=own.is_awaited)
        if own.meanwhile is None:
            return
        given, step = self._run_meanwhile(name, own)
        if own.is_awaited or step is not None:
            failed = None if step is None else (own.meanwhile, step)
            yield ev.GraphExtended(self.peer, name, (), True, given, failed)

    def _run_meanwhile(self, name: int, own: LocalTasks) -> tuple[Seeds, int | None]:
        """Run the local share: what it gives to others, and the step that raised."""
        assert self._session is not None
        world, step, given = self._world, None, Seeds()
        try:
            with self._session.interrupts.user_code():
                self._thread.sleep(1 + int(OWN_US_MAX * world.rng.random()))
            given = self._refs(name, own.run_meanwhile())
        except KeyboardInterrupt:
            world.expected.interrupted.add(world.expected.number_of(self.peer, name))
            step = 0
        except RuleRaised as error:
            step = error.step
        own.has_failed = step is not None
        world.coordinator.situations.seen[CALLER_FAILED if own.has_failed else CALLER_RAN] += 1
        return given, step

    def _refs(self, name: int, given: Iterable[tuple[OutputSpec, Value | None]]) -> Seeds:
        return tuple(
            (output.task, output.slot, output.place, self._own_ref(name, value, output.nbytes))
            for output, value in given
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

    def _free(self, name: int) -> None:
        """The graph has ended: nothing made for it in this process is read any more."""
        in_sight = [block for block, _ in self._views]
        for block in self._own_blocks.pop(name):
            if block not in in_sight:
                self._world.memory.free_client(block)

    # ------------------------------------------------------------------ its own tasks

    def _run_task(
        self, depth: int, dispatch: do.DispatchNodeTask
    ) -> ev.NodeTaskDone | ev.NodeTaskFailed:
        """As ``engine.client_worker``."""
        try:
            return self._try_task(depth, dispatch)
        except Exception as error:
            # The session would cancel the graph, as if a signal handler had raised this.
            self._thread.fail(error)

    def _try_task(
        self, depth: int, dispatch: do.DispatchNodeTask
    ) -> ev.NodeTaskDone | ev.NodeTaskFailed:
        assert self._session is not None
        world = self._world
        world.note(self.peer, "run", dispatch)
        graph = dispatch.owner_number
        position = self._plans[graph].tasks[dispatch.task].position
        require(
            self._last_position.get(graph, -1) < position,
            f"{self.peer} runs task {dispatch.task} of its graph {graph} out of order",
        )
        self._last_position[graph] = position
        key = (dispatch.graph, dispatch.task, dispatch.attempt)
        try:
            with self._session.interrupts.user_code():
                self._call_user_code(depth)
            if self._is_cut_off:
                raise KeyboardInterrupt
            refuse_lost_memory(world, dispatch)
            outputs = self._publish(dispatch, run_program(world, dispatch))
            return ev.NodeTaskDone(self.peer, *key, outputs, self._keep(dispatch))
        except (KeyboardInterrupt, EngineClosed, CoordinatorLost):
            world.expected.interrupted.add(dispatch.payload[0])
            return ev.NodeTaskFailed(self.peer, *key, INTERRUPTED, self._keep(dispatch))
        except RuleRaised as error:
            kept = self._keep(dispatch)
            return ev.NodeTaskFailed(self.peer, *key, error.text, kept, error.step)

    def _call_user_code(self, depth: int) -> None:
        """A hook takes some time, or calls ``backward`` itself."""
        world = self._world
        later = [name for name in range(len(self.graphs)) if name not in self._plans]
        if later and world.rng.random() < 0.8:
            if world.dice.strikes("orphan"):
                world.time.after(world.rng.randint(0, 1000), world.kill_client, self.process)
            with suppress(NotMade):  # the hook goes on
                self._backward(later[0], depth + 1)
        self._thread.sleep(1 + int(TASK_US_MAX * world.rng.random()))

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
                refs.append(self._own_ref(dispatch.owner_number, value, output.nbytes, on_device))
        return tuple(refs)

    def _keep(self, dispatch: do.DispatchNodeTask) -> tuple[Block, ...]:
        """A hook may keep the gradients that it got, unless they were taken back already."""
        if self._is_cut_off:
            return ()
        refs, rng = [ref for slot in dispatch.inputs for ref in slot], self._world.rng
        shared = [ref for ref in refs if isinstance(ref, Block) and ref.arena == ENGINE_ARENA]
        kept = tuple([block for block in shared if rng.random() < 0.2])
        for block in kept:
            self._hold(block)
        return kept

    # ------------------------------------------------------------------ results

    def _check_result(self, name: int, end: do.CompleteGraph) -> None:
        own = self._own[name]
        blocks = [ref for ref in end.captures if isinstance(ref, Block)]
        try:  # as ``SessionPool.require_intact``
            for block in blocks:
                if not self._world.memory.is_lost(block):
                    self._world.memory.check_bytes(block)
        except BytesCorrupted:
            for block in blocks:
                self._let_go(block)
            return
        if not own.has_failed:
            check_captures(self._world, name, self.graphs[name], end, own.results)
        for ref, is_exclusive in zip(end.captures, end.exclusive, strict=True):
            if isinstance(ref, Block):
                if is_counted(ref) and self._world.memory.is_lost(ref):
                    self._let_go(ref)
                    continue
                if is_exclusive and self._world.rng.random() < 0.5:
                    # The caller adds to its own result in place: nobody may see that.
                    self._world.memory.overwrite(ref, ADOPTED)
                self._hold(ref)
        tasks = enumerate(self._plans[name].tasks)
        on_workers = [at for at, task in tasks if at >= own.count and not task.on_client]
        ran = sorted(number for number, *_ in end.ran)
        require(ran == on_workers, f"graph {name} reports tasks {ran} of workers, not {on_workers}")

    def _hold(self, block: Block) -> None:
        """A view of ``block`` stays in this process for a while."""
        self._views.append((block, self._world.memory.read(block)))
        self._world.time.after(self._world.rng.randint(0, 5000), self._release)

    def _release(self) -> None:
        """One view dies; its content must not have changed."""
        if self.is_alive and self._views:
            at = self._world.rng.randrange(len(self._views))
            block, content = self._views.pop(at)
            if not self._world.memory.is_lost(block) and not self._is_cut_off:
                self._world.check_unchanged(self.peer, block, content)
            self._let_go(block)

    def _let_all_go(self) -> None:
        """The last views die; then the coordinator keeps nothing for this session."""
        assert self._session is not None
        for block, _ in self._views:
            self._let_go(block)
        self._views.clear()
        self._session.send_releases()
        self._world.coordinator.empty_handed.add(self.peer)

    def _let_go(self, block: Block) -> None:
        assert self._session is not None
        if is_counted(block):
            self._session.to_release.append(block)
