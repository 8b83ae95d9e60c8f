"""plan(): turn a GraphSpec into NodeTasks, the units of dispatch, and connect them; PlanCache.

``fusion`` and ``bundling`` decide which Nodes share a task. ``sum_places`` gives every contribution
its place, and decides which sums are taken in pieces.
Rules of this file: pure tables, as in ``graph_spec``.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from mpgrad.scheduler import tuning
from mpgrad.scheduler.bundling import bundle
from mpgrad.scheduler.fusion import group
from mpgrad.scheduler.graph_spec import GraphSpec
from mpgrad.scheduler.plan_tables import CAPTURE, Member, NodeTaskSpec, OutputSpec, Plan, Seed
from mpgrad.scheduler.progress import Paths, Wired, find_paths, needed_from, publish_early
from mpgrad.scheduler.split import has_branches_for, sharers_among, split
from mpgrad.scheduler.sum_places import Piece, SumPlaces

#: The number of plans that are kept, the last used ones.
PLANS_MAX = 64

MakePlan: TypeAlias = Callable[..., Plan]


def plan(
    spec: GraphSpec,
    *,
    fuse: bool = True,
    bundles: bool = True,
    workers: int = 1,
    gpu_workers: Mapping[int, int] | None = None,
    client_takes_part: bool = False,
    message_us: float = tuning.MESSAGE_US,
    together: Sequence[int] = (),
) -> Plan:
    """Group the nodes of ``spec`` into NodeTasks and connect them.

    Args:
        spec: the graph.
        fuse: False makes a task of every Node.
        bundles: False makes a task of every group that ``fusion`` finds.
        workers: the number of CPU workers. With more than two, or if the graph has too few
            branches for them, expensive Nodes are split.
        gpu_workers: the number of workers of each GPU; 1 for a GPU without an entry.
        client_takes_part: the calling thread counts as one of the CPU workers and runs the first
            bundle of a level of branches, if the client has all that they need.
        message_us: the cost of a message.
        together: for each Node that stands for a branch of a worker the number of the task that has
            recorded it, otherwise -1; empty: there is none. Those of one task share a task.
    """
    halved, origin = split(spec, message_us=message_us)
    # Many workers profit from second halves in every graph: they are short work for the end.
    if workers <= 2 and has_branches_for(spec, workers):
        halved, origin = spec, ()
    elif not has_branches_for(halved, workers):
        halved, origin = split(spec, sharers=sharers_among(workers), message_us=message_us)
    grouping = group(
        halved, fuse=fuse, workers=workers, gpu_workers=gpu_workers, message_us=message_us
    )
    group_of, groups, local_share = grouping.group_of, grouping.groups, -1
    if fuse and bundles:
        group_of, groups, local_share = bundle(
            halved, grouping, client_takes_part=client_takes_part, together=together
        )
    return _plan(halved, group_of, groups, origin, local_share, workers, message_us)


def _plan(
    spec: GraphSpec,
    group_of: list[int],
    groups: list[list[int]],
    origin: tuple[int, ...],
    local_share: int,
    workers: int,
    message_us: float,
) -> Plan:
    """The plan of ``spec``. If Nodes are split, ``origin`` names the original of each one.
    ``local_share`` is the group of the calling thread.

    With several workers, a task publishes outputs before it ends if that is worth a message.
    """
    wiring = SumPlaces(spec, group_of, groups)
    costs = [sum(spec.nodes[node].cost_us for node in nodes) for nodes in groups]
    in_time = costs.copy()  # since the workers begin
    if local_share >= 0:
        in_time[local_share] = max(costs[local_share] - tuning.BACKWARD_MESSAGES * message_us, 0.0)
    wired = Wired(
        in_time,
        wiring.members,
        wiring.outputs,
        [sum(places) for places in wiring.places],
        Counter([task for task, _, _ in wiring.seeds]),
    )
    leaves_us = publish_early(spec.nodes, wired, workers, local_share, message_us)
    wide = wiring.split_wide_sums()
    paths = find_paths(in_time, wiring.outputs, leaves_us, wide)
    tasks = _task_specs(spec, groups, wiring, costs, paths, wide, message_us)
    tasks += [
        _piece_spec(tasks[consumer], piece, nbytes, paths, len(groups) + number)
        for number, (consumer, nbytes, piece) in enumerate(wide)
    ]
    opens_alone = _opens_alone(tasks, costs, wiring.seeds, message_us)
    if not _is_at_hand(local_share, tasks, wiring.seeds, opens_alone=opens_alone):
        local_share = -1
    return Plan(
        tuple(tasks),
        tuple(map(tuple, _originals(wiring.members, origin) if origin else wiring.members)),
        tuple(map(tuple, wiring.slots)),
        tuple([tuple(sorted(joined)) for joined in wiring.joins]),
        tuple(group_of),
        wiring.seeds,
        opens_alone=opens_alone,
        local_share=local_share,
        work_us=sum(costs),
        critical_path_us=max((task.priority for task in tasks), default=0.0),
    )


def _originals(groups: list[list[Member]], origin: tuple[int, ...]) -> Iterator[list[Member]]:
    """Members that name the original Nodes instead of their halves."""
    halved = set(origin[max(origin) + 1 :])
    for members in groups:
        nodes = [origin[member.node] for member in members]
        yield [
            member._replace(node=node, is_half=node in halved)
            for member, node in zip(members, nodes, strict=True)
        ]


def _opens_alone(
    tasks: list[NodeTaskSpec], costs: list[float], seeds: Sequence[Seed], message_us: float
) -> bool:
    """Whether the client should run task 0 itself before it submits the others.

    This is so if several tasks wait for it, nothing can run beside it, it takes less time than
    its submission, and its outputs travel inside messages anyway.
    """
    if not (tasks and tasks[0].is_for_cpu):
        return False
    if costs[0] > tuning.BACKWARD_MESSAGES * message_us:
        return False
    first = tasks[0]
    return (
        first.dependencies == sum(task == 0 for task, _, _ in seeds)
        and not any(output.nbytes for output in first.outputs)
        and len({output.task for output in first.outputs} - {CAPTURE}) > 1
    )


def _is_at_hand(
    local_share: int, tasks: list[NodeTaskSpec], seeds: Sequence[Seed], *, opens_alone: bool
) -> bool:
    """Whether the local share comes first, or right behind a task 0 that opens alone, and
    waits for nothing but seeds and what that gives."""
    if local_share != int(opens_alone):
        return False
    here = sum(task == local_share for task, _, _ in seeds)
    if opens_alone:
        here += sum(output.task == local_share for output in tasks[0].outputs)
    return tasks[local_share].dependencies == here


def _task_specs(
    spec: GraphSpec,
    groups: list[list[int]],
    wiring: SumPlaces,
    costs: list[float],
    paths: Paths,
    wide: list[tuple[int, int, Piece]],
    message_us: float,
) -> list[NodeTaskSpec]:
    position = {node: at for at, node in enumerate(spec.order)}
    client_tasks = [g for g, nodes in enumerate(groups) if spec.nodes[nodes[0]].on_client]
    # Hooks run in the order of the serial engine, whichever task finishes first: a chain of
    # control edges. It cannot deadlock, because that order is a topological one.
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
            is_short=costs[g] < message_us,
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


class PlanCache:
    """Plans by the structure of their graph. Not thread-safe by itself.

    A training loop freezes the same graph again and again; it is planned once. A plan depends on
    the structure and on the costs. The structure is compared exactly. Costs are learned and drift a
    little with each run, so a plan is used until they have changed considerably, or until the work
    has moved from some Nodes to others. A plan that is no longer the best is slower, never wrong.

    It serves graphs whose tables are made anew each time, because of hooks. Other graphs keep
    their plan beside their tables.

    Args:
        make_plan: makes a plan of a graph, with ``together`` of ``plan()``.
        least_us: what a Node counts as at least, where costs are compared.
    """

    def __init__(self, make_plan: MakePlan, least_us: float = 0.0) -> None:
        self._make_plan, self._least_us = make_plan, least_us
        self._plans: OrderedDict[Any, tuple[list[float], Plan]] = OrderedDict()

    def plan(self, spec: GraphSpec, together: tuple[int, ...] = ()) -> Plan:
        """The plan of ``spec``: a cached one or a new one; ``together`` as for ``plan()``."""
        key = structure(spec), together
        found = self._plans.get(key)
        costs = costs_of(spec, self._least_us)
        if found is None or not are_near(costs, found[0]):
            found = self._plans[key] = (costs, self._make_plan(spec, together=together))
            if len(self._plans) > PLANS_MAX:
                self._plans.popitem(last=False)
        self._plans.move_to_end(key)
        return found[1]

    def __len__(self) -> int:
        return len(self._plans)


def structure(spec: GraphSpec) -> Any:
    """All of ``spec`` that decides how its tasks are connected: everything but names and costs.

    (The order contains the sequence numbers.)
    """
    nodes = tuple(
        [
            (
                node.edges,
                node.input_nbytes,
                node.on_client,
                node.is_sink,
                node.is_splittable,
                node.unpacks,
                node.passes,
                node.device,
                node.device_inputs,
                node.part_nbytes,
                node.parts,
                node.is_branch,
            )
            for node in spec.nodes
        ]
    )
    return nodes, spec.seeds, spec.captures, spec.order


def costs_of(spec: GraphSpec, least_us: float = 0.0) -> list[float]:
    """The costs of each Node that runs, at least ``least_us``, in both of its halves."""
    costs = [node.cost_us and max(node.cost_us, least_us) for node in spec.nodes]
    seconds = [cost * node.second_half_share for cost, node in zip(costs, spec.nodes, strict=True)]
    return [cost - second for cost, second in zip(costs, seconds, strict=True)] + seconds


def are_near(now_us: list[float], then_us: list[float]) -> bool:
    """Whether a plan for costs ``then_us`` also fits costs ``now_us``."""
    moved = sum([abs(now - then) for now, then in zip(now_us, then_us, strict=True)])
    return moved <= tuning.DRIFT_MAX * min(sum(now_us), sum(then_us))
