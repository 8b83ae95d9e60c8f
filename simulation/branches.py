"""Branches: the calls of a World's callers, and what its workers have recorded of them.

A map is a graph of tasks without inputs. Each of them leaves a branch in the worker that ran it;
later graphs have tasks near that worker, which find the branch there or make it again. Who ends a
branch says so; then no worker has it for long.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from mpgrad.calls import kept_branches as real
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.events import ANY_SLOT
from mpgrad.scheduler.graph_spec import GraphSpec, NodeSpec
from mpgrad.scheduler.plan_tables import CAPTURE, Member, NodeTaskSpec, OutputSpec, Plan
from simulation import branch_values
from simulation.branch_values import Call, Recorded, expected_of
from simulation.expectations import require
from simulation.path_counts import TracedGraph
from simulation.random_graphs import SIZES
from simulation.situations import (
    BRANCH_EVICTED,
    BRANCH_FOUND,
    BRANCH_LOST,
    BRANCH_MADE_AGAIN,
    BRANCH_OF_ANOTHER_ENGINE,
    DIED_IN_BACKWARD,
    DIED_IN_FORWARD,
    MAP_FAILED,
    MAP_IN_HOOK,
)

if TYPE_CHECKING:
    from simulation.world import World

CALLS_MAX = 12
#: The branches that a worker has room for (``MPGRAD_BRANCH_LIMIT``).
KEPT_MAX = 6
#: Numbers of branches that an engine has recorded which is gone.
STRANGE = 1 << 40


def random_map(rng: Random) -> TracedGraph:
    """A map: one Node for each call, and one for its result."""
    count = rng.randint(1, CALLS_MAX)
    sizes = [rng.choice(SIZES) for _ in range(count)]
    calls = [NodeSpec(f"Call{at}", 2 * at, ((count + at, 0),), (0,), 100.0) for at in range(count)]
    ends = [
        NodeSpec(f"End{at}", 2 * at + 1, (), (nbytes,), 1.0, is_sink=True)
        for at, nbytes in enumerate(sizes)
    ]
    order = tuple(node for at in range(count) for node in (at, count + at))
    spec = GraphSpec((*calls, *ends), (), tuple((count + at, 0) for at in range(count)), order)
    raising = frozenset(rng.sample(range(count), min(rng.choice((0, 0, 0, 1, 2)), count)))
    none = frozenset[int]()
    return TracedGraph(spec, (), frozenset(), none, raising, frozenset(range(count)))


def plan_of_map(graph: TracedGraph) -> Plan:
    """One task for each call, as ``engine.calls_in_workers``."""
    count = len(graph.spec.captures)
    tasks = tuple(
        NodeTaskSpec(
            False,
            float(count - at),
            at,
            0,
            (),
            (OutputSpec(graph.spec.nodes[count + at].input_nbytes[0], CAPTURE, at, 0),),
        )
        for at in range(count)
    )
    groups = tuple((Member(at, (0,), ()),) for at in range(count))
    nothing = ((),) * count
    return Plan(tasks, groups, nothing, nothing, tuple(range(count)), (), False, -1, 0.0, 0.0)


class Branches:
    """All branches of a World.

    Args:
        world: the World.
        is_used: whether its callers call anything.
    """

    def __init__(self, world: World, *, is_used: bool) -> None:
        self._world, self.is_used = world, is_used
        #: Of its own, so that Worlds without branches stay what they are.
        self.rng = Random(f"the branches of {world.seed}")
        self._next = 0
        #: By program: the branch of each task of a map.
        self.recorded_by: dict[int, range] = {}
        #: By program and task of a backward: the branches that it differentiates, each with its
        #: call and the digest that the client was told; neither for one of another engine.
        self.wanted_by: dict[tuple[int, int], list[tuple[int, Call | None, int]]] = {}
        #: By number: each call, and what the last worker that has run it has given.
        self.calls: dict[int, Call] = {}
        self.answers: dict[int, Recorded] = {}
        #: Those that somebody may differentiate; by client process, those that it may still end.
        self.alive: set[int] = set()
        self.known_to = defaultdict[int, set[int]](set)

    def note(self, situation: str, count: int = 1) -> None:
        """A situation was reached so often."""
        if count:
            self._world.coordinator.situations.seen[situation] += count

    def add_map(self, process: int, program: int, count: int, buffer: float) -> range:
        """The numbers of the branches of a map; one of its calls may change a buffer."""
        first, rng = self._next, self.rng
        changing, seed, item = rng.randrange(2 * count), rng.randrange(1, 1 << 30), 0
        for at in range(count):
            items = tuple(range(item, item := item + rng.choice((1, 1, 3))))
            own = buffer if at == changing else None
            self.calls[first + at] = Call(first + at, seed, items, own)
        numbers = self.recorded_by[program] = range(self._next, self._next + count)
        self._next += count
        self.alive.update(numbers)
        self.known_to[process].update(numbers)
        return numbers

    def check_end(self) -> None:
        """Check that no worker has a branch, unless its client is gone without a word."""
        known = set[int]().union(*self.known_to.values())
        for worker in self._world.coordinator.workers.values():
            left = sorted(worker.branches.kept & known) if worker.is_alive else []
            require(not left, f"{worker.peer} still has the branches {left}")


class CallerBranches:
    """Those of one calling thread.

    Args:
        branches: of the World.
        process: of the thread.
        ended: where the process tells which branches have ended: slot, number.
    """

    def __init__(self, branches: Branches, process: int, ended: deque[tuple[int, int]]) -> None:
        self._all, self._process, self._ended = branches, process, ended
        #: By number, the slot of the worker that has recorded it.
        self._slots: dict[int, int] = {}
        self._under_way: dict[int, range] = {}
        #: The digests that came with the results; and a Module's buffer, which maps change.
        self._digests: dict[int, int] = {}
        self._buffer = 1.0

    def begin_map(self, program: int, count: int, depth: int) -> None:
        """A map is about to be submitted."""
        self._under_way[program] = self._all.add_map(self._process, program, count, self._buffer)
        self._all.note(MAP_IN_HOOK, depth > 0)

    def end_map(self, program: int, end: do.CompleteGraph | do.FailGraph | None) -> None:
        """A graph has ended (None: by Ctrl-C or the like). The branches of a map live on, or nobody
        gets any of them, whoever has recorded them."""
        numbers = self._under_way.pop(program, None)
        if numbers is None:
            return  # it was no map
        if isinstance(end, do.CompleteGraph):
            self._slots.update((numbers[task], slot) for task, slot, *_ in end.ran)
            self._take(numbers, [numbers[task] for task, *_ in end.ran])
        else:
            self._all.note(MAP_FAILED)
            self._end(dict.fromkeys(numbers, ANY_SLOT))

    def _take(self, numbers: range, arrived: list[int]) -> None:
        """Take what the calls of a map have given, as ``parallel_map`` does."""
        answers = self._all.answers
        self._digests.update((number, answers[number].digest()) for number in numbers)
        total = branch_values.total_of([answers[n].result for n in self.in_order(numbers, arrived)])
        before, calls = self._buffer, [self._all.calls[number] for number in numbers]
        self._write_buffers([answers[number] for number in numbers])
        wanted = list(map(expected_of, calls))
        require(total == _sum([one.result for one in wanted]), f"{calls} gave the sum {total}")
        left = [one.buffer for one in wanted if one.buffer is not None]
        require(self._buffer == (left[0] if left else before), f"{calls} left {self._buffer}")

    def in_order(self, numbers: range, arrived: list[int]) -> Sequence[int]:
        """The order in which results are added: that of the items."""
        return numbers

    def _write_buffers(self, answers: list[Recorded]) -> None:
        for answer in answers:
            if answer.buffer is not None:
                self._buffer = answer.buffer

    def place(self, program: int, tasks: list[NodeTaskSpec], first: int) -> list[NodeTaskSpec]:
        """Let some tasks of a backward, from ``first`` on, differentiate branches."""
        rng, found = self._all.rng, list(tasks)
        may = [at for at in range(first, len(tasks)) if tasks[at].is_for_cpu]
        if not (self._all.is_used and may):
            return found
        wanted = {n: slot for n, slot in self._slots.items() if rng.random() < 0.8}
        told = {n: (self._all.calls[n], self._digests[n]) for n in wanted}
        if rng.random() < 0.2:
            strange = {STRANGE + rng.randrange(9): rng.randrange(6) for _ in range(3)}
            self._all.note(BRANCH_OF_ANOTHER_ENGINE, len(strange))
            wanted |= strange
        few = rng.sample(may, rng.randint(1, len(may)))
        for number, slot in wanted.items():
            at = rng.choice(few)
            one = (number, *told.get(number, (None, 0)))
            self._all.wanted_by.setdefault((program, at), []).append(one)
            found[at] = found[at]._replace(near=slot)
        return found

    def end_some(self) -> None:
        """A backward has ended: most Nodes will not run again."""
        rng = self._all.rng
        self._end({n: slot for n, slot in self._slots.items() if rng.random() < 0.7})
        if self._all.is_used and rng.random() < 0.1:
            self._ended.append((rng.randrange(6), STRANGE + rng.randrange(9)))

    def end_all(self) -> None:
        """The thread holds no results any more."""
        self._end(dict(self._slots))

    def orphan(self) -> None:
        """The coordinator does not hear the thread any more, which spoke for its process."""
        self._all.known_to[self._process].clear()

    def _end(self, ended: dict[int, int]) -> None:
        for number, slot in ended.items():
            self._slots.pop(number, None)
            self._all.alive.discard(number)
            self._ended.append((slot, number))


class WorkerBranches:
    """Those that one worker process has recorded."""

    def __init__(self, branches: Branches) -> None:
        self._all = branches
        self._table: Any = real.Branches()
        self._table.limit_bytes, self._table._has_warned = KEPT_MAX, True

    @property
    def kept(self) -> set[int]:
        """The numbers of those that are there."""
        return set(self._table._kept)

    def missing(self, dispatch: do.DispatchNodeTask) -> int:
        """The number of branches that a task has to make again."""
        program, task = dispatch.payload
        wanted = self._all.wanted_by.get((program, task), ())
        here = sum(self._table.get(number) is not None for number, *_ in wanted)
        self._all.note(BRANCH_FOUND, here)
        self._all.note(BRANCH_MADE_AGAIN, len(wanted) - here)
        return len(wanted) - here

    def differentiate(self, dispatch: do.DispatchNodeTask) -> None:
        """A task of a backward differentiates the branches that it wants."""
        program, task = dispatch.payload
        for number, call, digest in self._all.wanted_by.get((program, task), ()):
            if call is None:
                continue
            branch = self._table.get(number) or branch_values.made_again(call, digest)
            wanted = expected_of(call).ctx
            require(branch.ctx == wanted, f"{call} is differentiated with {branch}, not {wanted}")

    def record(self, dispatch: do.DispatchNodeTask) -> None:
        """A call has run: its branch stays, and the oldest one goes if there is no room."""
        program, task = dispatch.payload
        if program not in self._all.recorded_by:
            return
        number = self._all.recorded_by[program][task]
        call = self._all.calls[number]
        self._all.answers[number] = branch = branch_values.record(call, call.buffer)
        before = self.kept | {number}
        self._table.put(number, branch, call.seed)
        self._all.note(BRANCH_EVICTED, len(before) - len(self._table))

    def release(self, numbers: tuple[int, ...]) -> None:
        """Nobody will differentiate these."""
        early = sorted(self._all.alive.intersection(numbers))
        require(not early, f"the branches {early} are released, and somebody may want them")
        for number in numbers:
            self._table.drop(number)

    def die(self, running: do.DispatchNodeTask | None) -> None:
        """The process is dead."""
        self._all.note(BRANCH_LOST, len(self._all.alive.intersection(self.kept)))
        self._table.clear()
        if running is not None:
            self._all.note(DIED_IN_FORWARD, running.payload[0] in self._all.recorded_by)
            self._all.note(DIED_IN_BACKWARD, tuple(running.payload) in self._all.wanted_by)


def _sum(numbers: Sequence[float]) -> float:
    """From the first to the last."""
    total = numbers[0]
    for number in numbers[1:]:
        total += number
    return total
