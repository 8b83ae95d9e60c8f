"""check_invariants(): recount every table of the coordinator's core from scratch.

A coordinator calls it now and then (``Recounts``), the simulation after every event. So it is
written for speed: plain loops, and messages that are built only when they are needed. It
deliberately shares no counting code with the core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpgrad.base.handles import Block, is_counted
from mpgrad.errors import InvariantViolated, TablesCorrupt
from mpgrad.scheduler.graph_task import MISSING, GraphPhase, GraphTask, TaskState
from mpgrad.scheduler.membership import SHORT_CREDIT, WORKER_CREDIT, FlightKey, MemberRecord
from mpgrad.scheduler.ready_queue import lane_of

if TYPE_CHECKING:
    from mpgrad.scheduler.coordinator_state import CoordinatorState

#: Plain names: every task of every graph looks them up after every event.
_DONE, _NOT_READY, _DISPATCHED = TaskState.DONE, TaskState.NOT_READY, TaskState.DISPATCHED


#: Events between two decisions whether to recount, and for each row of the tables the events that
#: pay for it: a recount costs less than 1 % of what the coordinator does between two of them.
DECIDE_EVERY, EVENTS_PER_ROW = 128, 2


class Recounts:
    """Decides after which events of a core its tables are recounted."""

    def __init__(self) -> None:
        #: Events since the last recount, and until the next decision.
        self._since, self._until = 0, DECIDE_EVERY
        #: How many there were.
        self.made = 0

    def note_event(self, state: CoordinatorState) -> None:
        """An event has been handled.

        Raises:
            TablesCorrupt: the tables contradict each other, whoever's message is being handled.
        """
        self._until -= 1
        if self._until:
            return
        self._since += DECIDE_EVERY
        self._until = DECIDE_EVERY
        if self._since >= EVENTS_PER_ROW * _rows(state):
            self._since = 0
            self.made += 1
            _recount(state)


def _recount(state: CoordinatorState) -> None:
    try:
        check_invariants(state)
    except Exception as error:  # a table may also name what another one lacks
        what = str(error) if isinstance(error, InvariantViolated) else repr(error)
        raise TablesCorrupt(f"the coordinator has recounted its tables: {what}") from error


def check_invariants(state: CoordinatorState) -> None:
    """Raise InvariantViolated at the first inconsistent table."""
    _check_names(state)
    _check_leases(state)
    ready: list[tuple[int, int]] = []
    dispatched: list[tuple[int, int]] = []
    for graph in state.graphs.values():
        _check_graph(graph, ready, dispatched)
    _check_queue(state, ready)
    _check_flights(state, dispatched)


def _rows(state: CoordinatorState) -> int:
    """The number of rows that a recount looks at."""
    count = len(state.leases) + len(state.ready)
    for graph in state.graphs.values():
        count += len(graph.specs) + len(graph.captures) + len(graph.buffers) + len(graph.early)
    for member in state.membership.members.values():
        count += len(member.flights) + len(member.kept)
    return count


def _check_names(state: CoordinatorState) -> None:
    """Each graph and each worker is found under its names, and under no other."""
    names = {(graph.owner, graph.owner_number): number for number, graph in state.graphs.items()}
    if state.numbers != names:
        raise InvariantViolated(f"the sessions' numbers of graphs are {state.numbers}, not {names}")
    members = state.membership.members.values()
    workers = sorted([one.peer for one in members if one.is_worker])
    listed = [one.peer for one in state.membership.workers()]
    if sorted(listed) != workers:
        raise InvariantViolated(f"the workers are {workers}, and {listed} are listed")


def _check_leases(state: CoordinatorState) -> None:
    """Each live block has exactly as many holders as the tables name."""
    refs: list[Any] = []
    for graph in state.graphs.values():
        refs.extend(graph.captures)
        refs.extend(early[3] for early in graph.early)
        for buffer in graph.buffers.values():
            for slot in buffer.slots:
                refs.extend(slot)
    for member in state.membership.members.values():
        for flight in member.flights.values():
            refs.extend(flight.blocks)
        for kept, times in member.kept.items():
            if times <= 0:
                raise InvariantViolated(f"{member.peer} keeps {kept} {times} times")
            refs.extend([kept] * times)
    holders: dict[Block, int] = {}
    for ref in refs:
        if is_counted(ref):
            holders[ref] = holders.get(ref, 0) + 1
    counted = state.leases.counts()
    if counted != holders:
        wrong = {
            block: (counted.get(block, 0), holders.get(block, 0))
            for block in {**counted, **holders}
            if counted.get(block, 0) != holders.get(block, 0)
        }
        raise InvariantViolated(f"leases do not add up (block: counted, held): {wrong}")


def _check_graph(
    graph: GraphTask, ready: list[tuple[int, int]], dispatched: list[tuple[int, int]]
) -> None:
    """Check the tables of one graph; add its ready tasks (while it runs) and its dispatched ones.

    The ready tasks of a draining graph are in no queue.
    """
    number, name = graph.number, f"graph {graph.number}"
    is_running = graph.phase is GraphPhase.RUNNING
    outstanding = done = skipped = 0
    for task, status in enumerate(graph.states):
        if status is _DONE:
            done += 1
            if task in graph.published:
                raise InvariantViolated(f"{name}: task {task} is done and still publishes")
            if task in graph.buffers:
                raise InvariantViolated(f"{name}: task {task} is done and still has its buffer")
            continue
        _check_published(graph, task)
        missing = _missing_inputs(graph, task)
        if status is _NOT_READY:
            waits = graph.dependencies[task]
            if waits <= 0 or waits - missing not in (0, 1):
                raise InvariantViolated(
                    f"{name}: task {task} lacks {missing} inputs and waits for {waits} arrivals"
                )
            continue
        outstanding += 1
        if missing:
            raise InvariantViolated(f"{name}: task {task} is ready and lacks {missing} inputs")
        if status is _DISPATCHED:
            dispatched.append((number, task))
        elif is_running and graph.is_wanted(task):
            ready.append((number, task))
        else:
            skipped += 1
    if graph.outstanding_tasks != outstanding:
        raise InvariantViolated(
            f"{name}: outstanding_tasks is {graph.outstanding_tasks}, not {outstanding}"
        )
    if graph.remaining != len(graph.specs) - done:
        raise InvariantViolated(f"{name}: remaining is {graph.remaining} after {done} tasks")
    if is_running and graph.skipped != skipped:
        raise InvariantViolated(f"{name}: skipped is {graph.skipped}, not {skipped}")
    inline = sum([len(ref) for ref in graph.captures if type(ref) is bytes])
    if graph.inline_nbytes != inline:
        raise InvariantViolated(f"{name}: inline_nbytes is {graph.inline_nbytes}, not {inline}")
    if is_running and (graph.is_complete or graph.is_settled):
        raise InvariantViolated(f"{name} has ended but is still in the table")


def _check_published(graph: GraphTask, task: int) -> None:
    """All published outputs of a task that is not done have arrived, and no others."""
    published = graph.published.get(task, ())
    buffers, states, known = graph.buffers, graph.states, len(graph.specs)
    for number, (_, consumer, slot, place) in enumerate(graph.specs[task].outputs):
        if not 0 <= consumer < known:
            continue
        if consumer in buffers:
            has_arrived = buffers[consumer].slots[slot][place] is not MISSING
        else:
            has_arrived = states[consumer] is _DONE
        if has_arrived != (number in published):
            raise InvariantViolated(
                f"graph {graph.number}: output {number} of task {task}, which is not done, has "
                f"{'' if has_arrived else 'not '}arrived"
            )


def _missing_inputs(graph: GraphTask, task: int) -> int:
    """The number of contributions that have not arrived."""
    places = graph.specs[task].places
    if task not in graph.buffers:
        return sum(places)
    buffer, missing = graph.buffers[task], 0
    for slot, count in zip(buffer.slots, places, strict=True):
        if len(slot) != count:
            raise InvariantViolated(
                f"graph {graph.number}: the buffer of task {task} has places other than its spec"
            )
        missing += slot.count(MISSING)
    return missing


def _check_queue(state: CoordinatorState, ready: list[tuple[int, int]]) -> None:
    """The queue holds exactly the ready tasks of running graphs, each once, in its lane."""
    queued = sorted((task.graph, task.task) for task in state.ready.tasks())
    if queued != sorted(ready):
        raise InvariantViolated(f"the ReadyQueue holds {queued}, not {sorted(ready)}")
    for lane, heap in state.ready.heaps.items():
        for at, one in enumerate(heap):
            spec = state.graphs[one.graph].specs[one.task]
            if lane != lane_of(spec.device, spec.near):
                raise InvariantViolated(f"the ReadyQueue has {one} in lane {lane}")
            if one < heap[(at - 1) // 2 if at else 0]:
                raise InvariantViolated(f"lane {lane} of the ReadyQueue has {one} out of order")


def _check_flights(state: CoordinatorState, dispatched: list[tuple[int, int]]) -> None:
    """Every dispatched task is in flight exactly once, and no worker has more than its credit."""
    flying = sorted(
        (key.graph, key.task)
        for member in state.membership.members.values()
        for key in member.flights
    )
    if flying != sorted(dispatched):
        raise InvariantViolated(f"in flight {flying}, dispatched {sorted(dispatched)}")
    for worker in state.membership.workers():
        keys = list(worker.flights)
        all_short = all(state.graphs[key.graph].specs[key.task].is_short for key in keys)
        if len(keys) > (SHORT_CREDIT if all_short else WORKER_CREDIT):
            raise InvariantViolated(f"{worker.peer} was given {len(keys)} tasks")
        if len(keys) > 1 and any(_is_suspect(state, key) for key in keys):
            raise InvariantViolated(f"{worker.peer} has a suspect task and others: {keys}")
        _check_counts(state, worker)


def _is_suspect(state: CoordinatorState, key: FlightKey) -> bool:
    """Whether a worker has died while it ran this task."""
    return key.attempt > 1 and state.graphs[key.graph].deaths.get(key.task, 0) > 0


def _check_counts(state: CoordinatorState, worker: MemberRecord) -> None:
    """A worker's record agrees with its flights, and no urgent task waits there."""
    suspects = sum(flight.is_suspect for flight in worker.flights.values())
    specs = [state.graphs[key.graph].specs[key.task] for key in worker.flights]
    long = sum(not spec.is_short for spec in specs)
    behind = 0.0
    for spec in specs:
        if not spec.is_short and spec.priority < behind:
            raise InvariantViolated(f"{worker.peer} has a task that others should overtake")
        behind = max(behind, spec.behind)
    load_us = sum([flight.cost_us for flight in worker.flights.values()])
    publishing = sum([flight.publications > 0 for flight in worker.flights.values()])
    counted = (worker.suspects, worker.long, worker.behind, worker.load_us, worker.publishing)
    held = (suspects, long, behind, load_us, publishing)
    if counted != held:
        raise InvariantViolated(f"{worker.peer} holds {held}, not {counted}")
