"""plan(): turn a GraphSpec into NodeTasks, the unit that is dispatched, and wire them up.

``fusion`` and ``bundling`` say which Nodes share a task, ``wide_sums`` which sums are taken in
pieces; here every contribution gets its place.

Rules of this file: pure tables, as in ``graph_spec``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from mpgrad.handles import INLINE_LIMIT_BYTES
from mpgrad.scheduler.bundling import bundle
from mpgrad.scheduler.critical_path import Paths, find_paths, needed_from
from mpgrad.scheduler.fusion import MESSAGE_US, group
from mpgrad.scheduler.graph_spec import ON_CPU, GraphSpec, Target
from mpgrad.scheduler.progress import Wired, publish_early
from mpgrad.scheduler.split import has_branches_for, sharers_among, split
from mpgrad.scheduler.wide_sums import Piece, WideSum, width_for

#: Tasks expected to be shorter than this are handed out and answered several at a time.
SHORT_TASK_US = 150.0

#: Where a seed flows: task, slot, place.
Seed: TypeAlias = tuple[int, int, int]

#: ``NodeTaskSpec.needed_from`` where no task in front needs it.
NOBODY = 1 << 62

#: ``OutputSpec.task`` of a result that goes to the caller.
CAPTURE = -1


class OutputSpec(NamedTuple):
    """One gradient that leaves a NodeTask, and the one place where it goes."""

    #: Bytes of the block it needs; 0 where it travels inside the message or stays on a GPU, whose
    #: worker finds the place itself.
    nbytes: int
    #: Consumer: task, slot, and place among that slot's contributions (task CAPTURE: the result
    #: number ``slot``).
    task: int
    slot: int
    place: int


class NodeTaskSpec(NamedTuple):
    """What the coordinator keeps of one NodeTask."""

    on_client: bool
    #: Length in microseconds of the longest path from here to the end: longer runs first.
    priority: float
    #: Serial position of the first Node: earlier runs first among equals.
    position: int
    #: Arrivals to wait for: contributions and control edges.
    dependencies: int
    #: For each slot, how many contributions it sums (see ``Plan.slots``).
    places: tuple[int, ...]
    outputs: tuple[OutputSpec, ...]
    #: Tasks that may not start before this one is done, though no gradient flows.
    unlocks: tuple[int, ...] = ()
    #: Where in the client's arena the task's program lies: offset and length in bytes.
    payload: tuple[int, int] = (0, 0)
    #: True where a message costs more than the task.
    is_short: bool = False
    #: Serial positions of the further Nodes: which of two errors is the first one.
    inner_positions: tuple[int, ...] = ()
    #: How often it publishes outputs before it ends.
    publications: int = 0
    #: Expected run time in microseconds.
    cost_us: int = 0
    #: Length in microseconds of the longest path behind its end: of all that it makes ready by
    #: then, nothing is more urgent.
    behind: float = 0.0
    #: Number of the GPU whose workers run it, or ON_CPU.
    device: int = ON_CPU
    #: The smallest serial position of a task that cannot begin without it: a bundle may have Nodes
    #: in front of what it waits for. What is needed in front of an error still runs after it.
    needed_from: int = NOBODY


class InnerTarget(NamedTuple):
    """An input of a Node inside its group."""

    member: int
    input_nr: int


class Member(NamedTuple):
    """One Node of a group: its outputs stay inside, leave as task output ``int``, or are lost."""

    node: int
    routes: tuple[InnerTarget | int | None, ...]
    #: (input number, task output): complete gradients that leave as they are: the caller wants
    #: them, or the other half of the Node.
    captures: tuple[tuple[int, int], ...]
    #: Set in a piece of a wide sum, which runs no rule: slot 0 of the task is part of this input
    #: of the node, and is passed on.
    piece_of: int | None = None
    #: True where another task runs the rule for the other outputs, or other parts of the same.
    is_half: bool = False
    #: True where the task, before it runs this rule, tells the coordinator what has left it so far:
    #: others wait for that, and the rule takes long.
    publishes: bool = False
    #: Of output 0 only these parts, from the first to before the second; None: all of it.
    parts: tuple[int, int] | None = None


class Plan(NamedTuple):
    """NodeTasks, what each runs inside (same index), and where the seeds flow."""

    tasks: tuple[NodeTaskSpec, ...]
    groups: tuple[tuple[Member, ...], ...]
    #: For each task its slots: the inputs that get something from outside. Contributions from
    #: inside, if there are any, are added behind those.
    slots: tuple[tuple[InnerTarget, ...], ...]
    #: For each task those of its slots whose contributions are not added but joined, and how many
    #: parts the gradient has: contribution k of n is ``split.parts_of(k, n, parts)``.
    joins: tuple[tuple[tuple[int, int], ...], ...]
    #: For each node its task.
    task_of: tuple[int, ...]
    seeds: tuple[Seed, ...]
    #: True where the client should run task 0 before it submits the others.
    opens_alone: bool
    #: Serial cost, cost of the longest path: what any number of workers cannot beat.
    work_us: float
    critical_path_us: float


def plan(spec: GraphSpec, *, fuse: bool = True, bundles: bool = True, workers: int = 1) -> Plan:
    """Group the nodes of ``spec`` into NodeTasks and wire them up.

    Args:
        spec: the graph.
        fuse: False makes a task of every Node.
        bundles: False makes a task of every group that ``fusion`` finds.
        workers: how many could run at once; where they are more than two, or the graph has too few
            branches for them, expensive Nodes are split.
    """
    halved, origin = split(spec)
    # Many workers are glad of second halves in every graph: short work to fill the end with (64
    # experts on 16 workers, one recording: 91 instead of 87 % of the bound).
    if workers <= 2 and has_branches_for(spec, workers):
        halved, origin = spec, ()
    elif not has_branches_for(halved, workers):
        halved, origin = split(spec, sharers=sharers_among(workers))
    grouping = group(halved, fuse=fuse, workers=workers)
    group_of, groups = grouping.group_of, grouping.groups
    if fuse and bundles:
        group_of, groups = bundle(halved, grouping, workers)
    return _plan(halved, group_of, groups, origin, workers)


def _plan(
    spec: GraphSpec,
    group_of: list[int],
    groups: list[list[int]],
    origin: tuple[int, ...],
    workers: int,
) -> Plan:
    """The plan of ``spec``; where Nodes are halved, ``origin`` says which one each was part of.

    With several workers, others get outputs of a task before it ends, if that is worth a message.
    """
    wiring = _Wiring(spec, group_of, groups)
    costs = [sum(spec.nodes[node].cost_us for node in nodes) for nodes in groups]
    wired = Wired(
        costs,
        wiring.members,
        wiring.outputs,
        [sum(places) for places in wiring.places],
        Counter([task for task, _, _ in wiring.seeds]),
    )
    leaves_us = publish_early(spec.nodes, wired, workers)
    wide = wiring.split_wide_sums()
    paths = find_paths(costs, wiring.outputs, leaves_us, wide)
    tasks = _task_specs(spec, groups, wiring, costs, paths, wide)
    tasks += [
        _piece_spec(tasks[consumer], piece, nbytes, paths, len(groups) + number)
        for number, (consumer, nbytes, piece) in enumerate(wide)
    ]
    return Plan(
        tuple(tasks),
        tuple(map(tuple, _originals(wiring.members, origin) if origin else wiring.members)),
        tuple(map(tuple, wiring.slots)),
        tuple([tuple(sorted(joined)) for joined in wiring.joins]),
        tuple(group_of),
        wiring.seeds,
        opens_alone=_opens_alone(tasks, costs, wiring.seeds),
        work_us=sum(costs),
        critical_path_us=max((task.priority for task in tasks), default=0.0),
    )


def _originals(groups: list[list[Member]], origin: tuple[int, ...]) -> Iterator[list[Member]]:
    """Members that name the Nodes they are halves of."""
    halved = set(origin[max(origin) + 1 :])
    for members in groups:
        nodes = [origin[member.node] for member in members]
        yield [
            member._replace(node=node, is_half=node in halved)
            for member, node in zip(members, nodes, strict=True)
        ]


def _opens_alone(tasks: list[NodeTaskSpec], costs: list[float], seeds: Sequence[Seed]) -> bool:
    """Whether the client should run task 0 itself, before it submits the others.

    Several tasks wait for it, nothing runs beside it, it takes less time than to hand it over, and
    what it gives travels inside messages anyway.
    """
    if not tasks or tasks[0].on_client or tasks[0].device != ON_CPU or costs[0] > MESSAGE_US:
        return False
    first = tasks[0]
    return (
        first.dependencies == sum(task == 0 for task, _, _ in seeds)
        and not any(output.nbytes for output in first.outputs)
        and len({output.task for output in first.outputs} - {CAPTURE}) > 1
    )


def _task_specs(
    spec: GraphSpec,
    groups: list[list[int]],
    wiring: _Wiring,
    costs: list[float],
    paths: Paths,
    wide: list[tuple[int, int, Piece]],
) -> list[NodeTaskSpec]:
    position = {node: at for at, node in enumerate(spec.order)}
    client_tasks = [g for g, nodes in enumerate(groups) if spec.nodes[nodes[0]].on_client]
    # Hooks run in the order of the serial engine, whatever finishes first: a chain of control
    # edges. It cannot deadlock, because that order is a topological one.
    successor = dict(pairwise(client_tasks))
    chained = set(successor.values())
    firsts = [position[nodes[0]] for nodes in groups]
    needed = needed_from(firsts, wiring.outputs, client_tasks, wide)
    return [
        NodeTaskSpec(
            on_client=spec.nodes[nodes[0]].on_client,
            priority=paths.longest[g],
            position=firsts[g],
            dependencies=sum(wiring.places[g]) + (g in chained),
            places=tuple(wiring.places[g]),
            outputs=tuple(wiring.outputs[g]),
            unlocks=(successor[g],) if g in successor else (),
            is_short=costs[g] < SHORT_TASK_US,
            inner_positions=tuple(position[m.node] for m in wiring.members[g][1:]),
            behind=paths.behind[g],
            publications=sum([member.publishes for member in wiring.members[g]]),
            cost_us=int(costs[g]),
            device=spec.nodes[nodes[0]].device,
            needed_from=needed[g],
        )
        for g, nodes in enumerate(groups)
    ]


def _piece_spec(
    consumer: NodeTaskSpec, piece: Piece, nbytes: int, paths: Paths, task: int
) -> NodeTaskSpec:
    """The task of one piece of a wide sum."""
    return NodeTaskSpec(
        on_client=False,
        priority=paths.longest[task],
        position=consumer.position,
        needed_from=consumer.needed_from,
        dependencies=piece.places,
        places=(piece.places,),
        outputs=(OutputSpec(nbytes, *piece.consumer, 0),),
        behind=paths.behind[task],
    )


class _Wiring:
    """Places for every contribution, in the order in which the serial engine would add them.

    Walking producers in serial order, and their outputs in turn, hands out the places of each
    input in exactly that order: this is what makes the sum independent of arrival.
    """

    def __init__(self, spec: GraphSpec, group_of: list[int], groups: list[list[int]]) -> None:
        self._spec, self._group_of = spec, group_of
        self.places: list[list[int]] = [[] for _ in groups]
        self.slots: list[list[InnerTarget]] = [[] for _ in groups]
        self.joins: list[set[tuple[int, int]]] = [set() for _ in groups]
        self._slot_of: dict[Target, int] = {}
        self.outputs: list[list[OutputSpec]] = [[] for _ in groups]
        self.members: list[list[Member]] = [[] for _ in groups]
        #: Per node the captured inputs: (input number, result number).
        self._captures: dict[int, list[tuple[int, int]]] = {}
        for number, (node, input_nr) in enumerate(spec.captures):
            self._captures.setdefault(node, []).append((input_nr, number))
        self._bypassed = self._find_bypassed()
        #: Place of each node among the members of its group.
        self._member = {
            node: at
            for nodes in groups
            for at, node in enumerate(n for n in nodes if n not in self._bypassed)
        }
        self.seeds = tuple(self._contribution(target) for target in spec.seeds)
        for node in spec.order:
            if node not in self._bypassed:
                self._wire(node, self._captures.get(node, []))

    def split_wide_sums(self) -> list[tuple[int, int, Piece]]:
        """Spread inputs with very many contributions over tasks of their own.

        Returns:
            For each new task: whose input it is part of, the input's bytes, the piece.
        """
        split: dict[tuple[int, int], WideSum] = {}
        added: list[tuple[int, int, Piece]] = []
        for (node, input_nr), slot in self._slot_of.items():
            if self._spec.nodes[node].is_on_device(input_nr):
                continue  # a GPU is not kept waiting for memory that it has
            task, nbytes = self._group_of[node], self._spec.nodes[node].input_nbytes[input_nr]
            count = self.places[task][slot]
            width = width_for(nbytes, count)
            if width is not None:
                wide = WideSum((task, slot), count, width, len(self.members))
                split[task, slot] = wide
                self.places[task][slot] = wide.places_left
                member = Member(node, (), ((0, 0),), piece_of=input_nr)
                self.members += [[member] for _ in wide.pieces]
                self.slots += [[InnerTarget(0, 0)] for _ in wide.pieces]
                self.joins += [set() for _ in wide.pieces]
                added += [(task, nbytes, piece) for piece in wide.pieces]
        if split:
            self._redirect(split)
        return added

    def _redirect(self, split: dict[tuple[int, int], WideSum]) -> None:
        for outputs in self.outputs:
            for at, (nbytes, task, slot, place) in enumerate(outputs):
                if (task, slot) in split:
                    outputs[at] = OutputSpec(nbytes, *split[task, slot].redirect(place))
        self.seeds = tuple(
            split[task, slot].redirect(place) if (task, slot) in split else (task, slot, place)
            for task, slot, place in self.seeds
        )

    def _find_bypassed(self) -> dict[int, int]:
        """Sinks that one producer of their own group fills: node -> result number.

        The producer's output leaves the task directly, so that it can be born in its block.
        """
        contributions = [0] * len(self._spec.nodes)
        producer = [-1] * len(self._spec.nodes)
        for index, node in enumerate(self._spec.nodes):
            for target in node.edges:
                if target is not None:
                    contributions[target[0]] += 1
                    producer[target[0]] = index
        for seeded, _ in self._spec.seeds:
            contributions[seeded] += 1
        return {
            node: captured[0][1]
            for node, captured in self._captures.items()
            if self._spec.nodes[node].is_sink
            and len(self._spec.nodes[node].input_nbytes) == 1
            and len(captured) == 1
            and contributions[node] == 1
            and producer[node] >= 0
            and self._group_of[producer[node]] == self._group_of[node]
        }

    def _contribution(self, target: tuple[int, int]) -> tuple[int, int, int]:
        group = self._group_of[target[0]]
        places = self.places[group]
        slot = self._slot_of.get(target)
        if slot is None:
            slot = self._slot_of[target] = len(places)
            places.append(0)
            self.slots[group].append(InnerTarget(self._member[target[0]], target[1]))
        places[slot] += 1
        return group, slot, places[slot] - 1

    def _leaves(
        self,
        group: int,
        target: tuple[int, int],
        where: tuple[int, int, int],
        nbytes: int | None = None,
    ) -> int:
        if nbytes is None:
            nbytes = self._spec.nodes[target[0]].input_nbytes[target[1]]
        is_on_device = self._spec.nodes[target[0]].is_on_device(target[1])
        block = nbytes if nbytes > INLINE_LIMIT_BYTES and not is_on_device else 0
        self.outputs[group].append(OutputSpec(block, *where))
        return len(self.outputs[group]) - 1

    def _wire(self, node: int, captures: list[tuple[int, int]]) -> None:
        group = self._group_of[node]
        captured = tuple(
            (input_nr, self._leaves(group, (node, input_nr), (CAPTURE, number, 0)))
            for input_nr, number in captures
        )
        captured += tuple(
            (input_nr, self._leaves(group, target, self._contribution(target)))
            for other in self._spec.nodes[node].passes
            for input_nr in range(len(self._spec.nodes[node].input_nbytes))
            for target in ((other, input_nr),)
        )
        spec = self._spec.nodes[node]
        routes: list[InnerTarget | int | None] = []
        for target in spec.edges:
            if target is None:
                routes.append(None)
            elif target[0] in self._bypassed:
                routes.append(self._leaves(group, target, (CAPTURE, self._bypassed[target[0]], 0)))
            elif spec.parts is not None:
                where = self._contribution(target)
                self.joins[where[0]].add((where[1], len(spec.part_nbytes)))
                nbytes = sum(spec.part_nbytes[slice(*spec.parts)])
                routes.append(self._leaves(group, target, where, nbytes))
            elif self._group_of[target[0]] == group:
                routes.append(InnerTarget(self._member[target[0]], target[1]))
            else:
                routes.append(self._leaves(group, target, self._contribution(target)))
        self.members[group].append(Member(node, tuple(routes), captured, parts=spec.parts))
