"""plan(): turn a GraphSpec into NodeTasks, the unit that is dispatched.

A message costs tens of microseconds and most Nodes a few, so cheap Nodes are fused into the task
of their producer. A Node joins a group only if *all* its contributions come from that group; so a
group is entered at its first Node alone, and the graph of groups cannot have a cycle: a path that
leaves the group could come back only through that first Node, which would then depend on its own
descendant. (A -> B -> C with A -> C: C joins A's group only if B did.)

Rules of this file: pure tables, as in ``graph_spec``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from mpgrad.handles import INLINE_LIMIT_BYTES
from mpgrad.scheduler.graph_spec import GraphSpec

#: Nodes cheaper than this may be fused into their producer's task ...
FUSE_NODE_BELOW_US = 100.0
#: ... as long as what was fused so far stays under this: urgent work waits at most that long.
FUSE_GROUP_BELOW_US = 400.0

#: ``OutputSpec.task`` of a result that goes to the caller.
CAPTURE = -1


class OutputSpec(NamedTuple):
    """One gradient that leaves a NodeTask, and the one place where it goes."""

    #: Bytes of the block it needs; 0 where it travels inside the message.
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
    #: For each input slot, how many contributions it sums.
    places: tuple[int, ...]
    outputs: tuple[OutputSpec, ...]
    #: Tasks that may not start before this one is done, though no gradient flows.
    unlocks: tuple[int, ...] = ()
    #: Where in the client's arena the task's program lies: offset and length in bytes.
    payload: tuple[int, int] = (0, 0)


class InnerTarget(NamedTuple):
    """Where an output of a fused Node goes inside its group."""

    member: int
    input_nr: int


class Member(NamedTuple):
    """One Node of a group: its outputs stay inside, leave as task output ``int``, or are lost."""

    node: int
    routes: tuple[InnerTarget | int | None, ...]
    #: (input number, task output): complete gradients that the caller wants.
    captures: tuple[tuple[int, int], ...]


class Plan(NamedTuple):
    """NodeTasks, what each runs inside (same index), and where the seeds flow."""

    tasks: tuple[NodeTaskSpec, ...]
    groups: tuple[tuple[Member, ...], ...]
    #: For each node its task.
    task_of: tuple[int, ...]
    #: For each seed: task, slot, place.
    seeds: tuple[tuple[int, int, int], ...]
    #: Serial cost, cost of the longest path: what any number of workers cannot beat.
    work_us: float
    critical_path_us: float


def plan(spec: GraphSpec, *, fuse: bool = True) -> Plan:
    """Group the nodes of ``spec`` into NodeTasks and wire them up."""
    group_of, groups = _group(spec, fuse)
    wiring = _Wiring(spec, group_of, groups)
    costs = [sum(spec.nodes[node].cost_us for node in nodes) for nodes in groups]
    priorities = _critical_paths(costs, wiring.outputs)
    position = {node: at for at, node in enumerate(spec.order)}
    client_tasks = [g for g, nodes in enumerate(groups) if spec.nodes[nodes[0]].on_client]
    # Hooks run in the order of the serial engine, whatever finishes first: a chain of control
    # edges. It cannot deadlock, because that order is a topological one.
    successor = dict(pairwise(client_tasks))
    chained = set(successor.values())
    tasks = tuple(
        NodeTaskSpec(
            on_client=spec.nodes[nodes[0]].on_client,
            priority=priorities[g],
            position=position[nodes[0]],
            dependencies=sum(wiring.places[g]) + (g in chained),
            places=tuple(wiring.places[g]),
            outputs=tuple(wiring.outputs[g]),
            unlocks=(successor[g],) if g in successor else (),
        )
        for g, nodes in enumerate(groups)
    )
    return Plan(
        tasks,
        tuple(tuple(members) for members in wiring.members),
        tuple(group_of),
        wiring.seeds,
        work_us=sum(costs),
        critical_path_us=max(priorities, default=0.0),
    )


def _group(spec: GraphSpec, fuse: bool) -> tuple[list[int], list[list[int]]]:
    """Assign each node to a group; groups and their nodes are in serial order."""
    producers: list[list[int]] = [[] for _ in spec.nodes]
    for index, node in enumerate(spec.nodes):
        for target in node.edges:
            if target is not None:
                producers[target[0]].append(index)
    seeded = {target[0] for target in spec.seeds}
    group_of = [-1] * len(spec.nodes)
    groups: list[list[int]] = []
    fused_us: list[float] = []
    for index in spec.order:
        node = spec.nodes[index]
        home = -1
        if fuse and index not in seeded and node.cost_us < FUSE_NODE_BELOW_US:
            home = _common_group(producers[index], group_of)
        if home >= 0 and (
            fused_us[home] + node.cost_us > FUSE_GROUP_BELOW_US
            or node.on_client
            or spec.nodes[groups[home][0]].on_client
        ):
            home = -1
        if home < 0:
            home = len(groups)
            groups.append([])
            fused_us.append(0.0)
        else:
            fused_us[home] += node.cost_us
        groups[home].append(index)
        group_of[index] = home
    return group_of, groups


def _common_group(producers: list[int], group_of: list[int]) -> int:
    """The group that all producers belong to, or -1."""
    home = group_of[producers[0]]
    for producer in producers:
        if group_of[producer] != home:
            return -1
    return home


class _Wiring:
    """Places for every contribution, in the order in which the serial engine would add them.

    Walking producers in serial order, and their outputs in turn, hands out the places of each
    input in exactly that order: this is what makes the sum independent of arrival.
    """

    def __init__(self, spec: GraphSpec, group_of: list[int], groups: list[list[int]]) -> None:
        self._spec, self._group_of = spec, group_of
        self._head = [nodes[0] for nodes in groups]
        self.places = [[0] * len(spec.nodes[head].input_nbytes) for head in self._head]
        self.outputs: list[list[OutputSpec]] = [[] for _ in groups]
        self.members: list[list[Member]] = [[] for _ in groups]
        self.seeds = tuple(self._contribution(target) for target in spec.seeds)
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
        for node in spec.order:
            if node not in self._bypassed:
                self._wire(node, self._captures.get(node, []))

    def _find_bypassed(self) -> dict[int, int]:
        """Sinks that one producer of their own group fills: node -> result number.

        The producer's output leaves the task directly, so that it can be born in its block.
        """
        contributions = [0] * len(self._spec.nodes)
        for node in self._spec.nodes:
            for target in node.edges:
                if target is not None:
                    contributions[target[0]] += 1
        return {
            node: captured[0][1]
            for node, captured in self._captures.items()
            if self._spec.nodes[node].is_sink
            and len(captured) == 1
            and contributions[node] == 1
            and self._head[self._group_of[node]] != node
        }

    def _contribution(self, target: tuple[int, int]) -> tuple[int, int, int]:
        group = self._group_of[target[0]]
        place = self.places[group][target[1]]
        self.places[group][target[1]] += 1
        return group, target[1], place

    def _leaves(self, group: int, target: tuple[int, int], where: tuple[int, int, int]) -> int:
        nbytes = self._spec.nodes[target[0]].input_nbytes[target[1]]
        block = nbytes if nbytes > INLINE_LIMIT_BYTES else 0
        self.outputs[group].append(OutputSpec(block, *where))
        return len(self.outputs[group]) - 1

    def _wire(self, node: int, captures: list[tuple[int, int]]) -> None:
        group = self._group_of[node]
        captured = tuple(
            (input_nr, self._leaves(group, (node, input_nr), (CAPTURE, number, 0)))
            for input_nr, number in captures
        )
        routes: list[InnerTarget | int | None] = []
        for target in self._spec.nodes[node].edges:
            if target is None:
                routes.append(None)
            elif target[0] in self._bypassed:
                routes.append(self._leaves(group, target, (CAPTURE, self._bypassed[target[0]], 0)))
            elif self._group_of[target[0]] == group:
                routes.append(InnerTarget(self._member[target[0]], target[1]))
            else:
                routes.append(self._leaves(group, target, self._contribution(target)))
        self.members[group].append(Member(node, tuple(routes), captured))


def _critical_paths(costs: list[float], outputs: list[list[OutputSpec]]) -> list[float]:
    """For each group, the cost of the longest path from it to the end, itself included."""
    longest = list(costs)
    # Groups are numbered in serial order of their first node, so consumers come later.
    for group in range(len(costs) - 1, -1, -1):
        behind = max((longest[o.task] for o in outputs[group] if o.task != CAPTURE), default=0.0)
        longest[group] += behind
    return longest
