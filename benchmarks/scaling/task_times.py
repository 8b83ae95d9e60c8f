"""TaskTimes: the computing time of each NodeTask of a plan, and a bound for all schedules."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from benchmarks.scaling.costs import Accelerator
from benchmarks.scaling.recording import Recording
from mpgrad.scheduler.graph_spec import GraphSpec, NodeSpec
from mpgrad.scheduler.plan_tables import Member, Plan

MB = 1 << 20


class Work(NamedTuple):
    """Per Node of a graph: the time of its rule, and that of the sums of its inputs."""

    rule_us: tuple[float, ...]
    #: Per megabyte; see ``Costs``.
    add_us_per_mb: float

    def node_us(self, spec: GraphSpec, contributions: Counter[tuple[int, int]], node: int) -> float:
        """The whole Node, sums included."""
        return self.rule_us[node] + sum(
            self.adding_us(nbytes, contributions[node, input_nr])
            for input_nr, nbytes in enumerate(spec.nodes[node].input_nbytes)
        )

    def adding_us(self, nbytes: int, count: int) -> float:
        """Adding up ``count`` gradients."""
        return max(count - 1, 0) * nbytes / MB * self.add_us_per_mb


def cpu_work(recording: Recording, add_us_per_mb: float) -> Work:
    """The measured times."""
    return Work(recording.took_us, add_us_per_mb)


def gpu_work(recording: Recording, gpu: Accelerator, batch: int) -> Work:
    """By the roofline (Williams et al., 2009): the longest of kernel starts, arithmetic and memory,
    for ``batch`` times the recorded images or tokens."""
    launch_us = gpu.kernels_per_node * gpu.launch_us
    rule_us = tuple(
        0.0
        if node.is_sink
        else max(launch_us, batch * flops / gpu.flops_per_us, batch * nbytes / gpu.bytes_per_us)
        for node, flops, nbytes in zip(
            recording.spec.nodes, recording.flops, recording.nbytes, strict=True
        )
    )
    return Work(rule_us, 3 * MB / gpu.bytes_per_us)


def count_contributions(spec: GraphSpec) -> Counter[tuple[int, int]]:
    """The number of contributions of each input."""
    counts = Counter(spec.seeds)
    for node in spec.nodes:
        counts.update(target for target in node.edges if target is not None)
    return counts


class Bound(NamedTuple):
    """The bound that no schedule can beat."""

    work_us: float
    critical_path_us: float

    def makespan_us(self, workers: int) -> float:
        """The least time that ``workers`` may take."""
        return max(self.work_us / workers, self.critical_path_us)


def bound(spec: GraphSpec, work: Work) -> Bound:
    """The work, and the longest path.

    A Node whose weight gradients can be computed separately counts on a path with half its rule,
    and with one part of it if that is a product that can be cut, as in ``scheduler.split``; whether
    or not the plan does so.
    """
    contributions = count_contributions(spec)
    total, longest = 0.0, [0.0] * len(spec.nodes)
    for index in reversed(spec.order):
        node = spec.nodes[index]
        whole = work.node_us(spec, contributions, index)
        total += whole
        behind = max((longest[target[0]] for target in node.edges if target), default=0.0)
        longest[index] = whole - work.rule_us[index] * (1.0 - _first_share(spec, node)) + behind
    return Bound(total, max(longest, default=0.0))


def _first_share(spec: GraphSpec, node: NodeSpec) -> float:
    """The part of a rule that others wait for, with as many workers as are of use."""
    share = 0.5 if _has_halves(spec, node) else 1.0
    wanted = [target for target in node.edges if target and not spec.nodes[target[0]].is_sink]
    return share / len(node.part_nbytes) if node.part_nbytes and len(wanted) == 1 else share


def _has_halves(spec: GraphSpec, node: NodeSpec) -> bool:
    to_leaf = {spec.nodes[target[0]].is_sink for target in node.edges if target is not None}
    return node.is_splittable and len(to_leaf) == 2


class TaskTimes:
    """The times of the tasks of ``plan``, with the same indices."""

    def __init__(self, spec: GraphSpec, plan: Plan, work: Work) -> None:
        self._spec, self._work = spec, work
        self._contributions = count_contributions(spec)
        for task, members in zip(plan.tasks, plan.groups, strict=True):
            for member in members:
                if member.piece_of is not None:
                    # The piece adds all but one of its places, which the Node need not any more.
                    moved = sum(task.places) - 1
                    self._contributions[member.node, member.piece_of] -= moved
        self.us = [
            sum(self._member_us(member, sum(task.places)) for member in members)
            for task, members in zip(plan.tasks, plan.groups, strict=True)
        ]
        self.nodes = [len(members) for members in plan.groups]
        #: Outputs that leave before the task ends: the number of Nodes before them, the computing
        #: time of these, and the outputs.
        self.early = [
            self._early(plan, task) if spec.publications else []
            for task, spec in enumerate(plan.tasks)
        ]
        self.output_nbytes = [
            self._output_nbytes(members, len(task.outputs))
            for task, members in zip(plan.tasks, plan.groups, strict=True)
        ]

    def _member_us(self, member: Member, places: int) -> float:
        if member.piece_of is not None:
            nbytes = self._spec.nodes[member.node].input_nbytes[member.piece_of]
            return self._work.adding_us(nbytes, places)
        whole = self._work.node_us(self._spec, self._contributions, member.node)
        return whole * self._share(member)

    def _share(self, member: Member) -> float:
        """The part of the Node's work that it does; both halves count the same."""
        if not member.is_half:
            return 1.0
        node = self._spec.nodes[member.node]
        share = 0.5 if _has_halves(self._spec, node) else 1.0
        if member.parts is None:
            return share
        first, stop = member.parts
        return share * (stop - first) / len(node.part_nbytes)

    def _early(self, plan: Plan, task: int) -> list[tuple[int, float, list[int]]]:
        """As ``scheduler.progress``: before a member that says so, all that is there and new."""
        outputs, ran_us = plan.tasks[task].outputs, 0.0
        waiting: list[int] = []
        found: list[tuple[int, float, list[int]]] = []
        for ran, member in enumerate(plan.groups[task]):
            waiting += [output for _, output in member.captures if outputs[output].task >= 0]
            if member.publishes and waiting:
                found.append((ran, ran_us, waiting))
                waiting = []
            waiting += [
                route
                for route in member.routes
                if isinstance(route, int) and outputs[route].task >= 0
            ]
            ran_us += self._member_us(member, sum(plan.tasks[task].places))
        return found

    def _output_nbytes(self, members: tuple[Member, ...], count: int) -> list[int]:
        found = [0] * count
        for member in members:
            node = self._spec.nodes[member.node]
            for target, route in zip(node.edges, member.routes, strict=False):
                if isinstance(route, int) and target is not None:
                    found[route] = (
                        self._spec.nodes[target[0]].input_nbytes[target[1]]
                        if member.parts is None
                        else sum(node.part_nbytes[slice(*member.parts)])
                    )
            for input_nr, output in member.captures:
                piece = input_nr if member.piece_of is None else member.piece_of
                found[output] = node.input_nbytes[piece]
        return found
