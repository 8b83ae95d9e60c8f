"""group(): which Nodes share a NodeTask.

Most Nodes cost less than a message, so a Node is fused into the task of its producer. A Node joins
a group only if *all* its contributions come from that group, or from groups without which the group
could not begin. So all that enters a group does so at its beginning, and the graph of groups cannot
have a cycle: a path that leaves the group could come back only through what feeds its first Node,
which would then depend on its own descendant.
(A -> B -> C with A -> C: C joins A's group only if B did. C may join B's group.)

Two things are carried from cell to cell of a recurrent loop. Where such a chain is cut, the Node
that adds to the second one gets a part of it from the task before, and joins nevertheless.

Within that rule, a Node joins in these cases:

* It is cheap. But a cheap Node that begins a long branch stays with the branch: there it needs no
  extra message and does not delay the other branches.
* No other Node that could run now waits for the group: this is a chain, and nothing could have run
  beside it. (Second halves of its Nodes, and Nodes whose gradients all go to leaves, get their
  inputs before the task ends, see ``progress``.)
* It is expensive, and only cheap branches begin beside it: their inputs are published before it
  runs.

The first two cases have a limit of time, which is the longest that urgent work has to wait.

A *trunk* is a chain of cheap Nodes at each of which a branch begins, such as the additions of
``loss = loss + f(i)``. It is one task, which publishes the inputs of the branches as it goes. Cut
into pieces, it would run just as serially, with a message between the pieces.

Each Node of the client is a group of its own, except Nodes that are there only because their saved
tensors must be unpacked. Each branch of a worker begins a group: another worker may have recorded
the one before it.

Rules of this file: pure tables, as in ``graph_spec``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from mpgrad.scheduler import tuning
from mpgrad.scheduler.graph_spec import ON_CPU, GraphSpec, NodeSpec


def chain_limit_us(spec: GraphSpec, workers: int, message_us: float) -> float:
    """The longest time of a chain before it is cut.

    Cutting W of work into pieces of length b costs W / b messages. Long pieces leave, at the end,
    about half a piece on one worker while the others are idle. The sum is least at sqrt(2 W m).

    With two workers a cut costs as much as a whole backward, because all processes are asleep in
    between. More workers have less work each, and their prefetched tasks hide most of a message.
    """
    work_us = sum(node.cost_us for node in spec.nodes)
    least_us = tuning.BACKWARD_MESSAGES * message_us
    cut_us = least_us
    if workers > 2:
        work_us, cut_us = work_us * 2 / workers, message_us
    return min(max(math.sqrt(2.0 * work_us * cut_us), least_us), tuning.TASK_MAX_US)


def workers_by_device(
    spec: GraphSpec, workers: int, gpu_workers: Mapping[int, int] | None
) -> dict[int, int]:
    """The number of workers of each device of ``spec``, the CPU under ``ON_CPU``.

    Args:
        spec: the graph.
        workers: the number of CPU workers.
        gpu_workers: the number of workers of each GPU; 1 for a GPU without an entry.
    """
    by_device = {ON_CPU: workers, **(gpu_workers or {})}
    devices = sorted({node.device for node in spec.nodes})
    return {device: by_device.get(device, 1) for device in devices}


def group(
    spec: GraphSpec,
    *,
    fuse: bool,
    workers: int = 2,
    gpu_workers: Mapping[int, int] | None = None,
    message_us: float = tuning.MESSAGE_US,
) -> Grouping:
    """Assign each node to a group; groups and their nodes are in serial order."""
    grouping = Grouping(spec, workers_by_device(spec, workers, gpu_workers), message_us)
    for index in spec.order:
        grouping.place(index, grouping.home_for(index) if fuse else -1)
    return grouping


class Grouping:
    """The groups so far, while the nodes are visited in serial order.

    Args:
        spec: the graph.
        workers: the number of workers of each of its devices.
        message_us: what a message costs.

    Attributes:
        group_of: the group of each node.
        groups: the nodes of each group.
        total_us: for each group the cost of all its nodes.
        producers: for each node its producers, once per edge.
        second: second halves and parts of Nodes, which run beside the first.
        workers: the number of workers of each device of the graph.
        message_us: the cost of a message.
        chain_limit_us: for each device the result of ``chain_limit_us()``.
    """

    def __init__(self, spec: GraphSpec, workers: Mapping[int, int], message_us: float) -> None:
        self._spec, self.workers, self.message_us = spec, workers, message_us
        self._worth_us = tuning.worth_us(message_us)
        self.chain_limit_us = {
            at: chain_limit_us(spec, count, message_us) for at, count in workers.items()
        }
        self.producers: list[list[int]] = [[] for _ in spec.nodes]
        for index, node in enumerate(spec.nodes):
            for target in node.edges:
                if target is not None:
                    self.producers[target[0]].append(index)
            for other in node.passes:
                self.producers[other].append(index)
        #: Nodes behind a fork whose other branches are all cheap; and cheap Nodes that follow
        #: another cheap Node and lead to the most expensive branch behind it.
        self._goes_on: set[int] = set()
        self._trunk: set[int] = set()
        #: Sinks, and nodes of which only the second half is needed: nothing waits for them.
        self._rest = {index for index in range(len(spec.nodes)) if self._is_rest(index)}
        self._branch_us = self._branches()
        self.second = {other for node in spec.nodes for other in node.passes}
        self._seeded = {target[0] for target in spec.seeds}
        self.group_of = [-1] * len(spec.nodes)
        self.groups: list[list[int]] = []
        self.total_us: list[float] = []
        #: Per group: the cost of the cheap nodes that joined it beside its longest chain.
        self._joined_us: list[float] = []
        #: Per group: the last Node of its longest chain.
        self._tip: list[int] = []
        #: Per node: the part of ``_joined_us`` that ends with it, until the chain goes through it.
        self._beside_us = [0.0] * len(spec.nodes)
        #: Per group: whether another group has the other half of one of its nodes.
        self._passes: list[bool] = []
        #: The group of the client's latest Node.
        self._last_on_client = -1
        #: Per group: the number of edges to nodes outside it that could run now, without sinks;
        #: and how many of them lead to ``_rest``.
        self._waiting: list[int] = []
        self._at_rest: list[int] = []
        #: Per node: the number of its producers that have no group yet.
        self._missing = [len(feeds) for feeds in self.producers]
        #: Per node: its number in serial order.
        self._position = [0] * len(spec.nodes)
        for position, index in enumerate(spec.order):
            self._position[index] = position
        #: Per group: for each group that feeds its first node, the position of the last that does.
        self._fed_until: list[dict[int, int]] = []

    def _is_rest(self, index: int) -> bool:
        """Whether it is a sink, or feeds sinks alone with formulas of its own."""
        node, nodes = self._spec.nodes[index], self._spec.nodes
        if not (node.is_splittable and any(node.edges)):
            return node.is_sink
        return all(nodes[target[0]].is_sink for target in node.edges if target is not None)

    def _branches(self) -> list[float]:
        """For each node the cost of the branch that begins there, to its next fork or join.

        Cheap branches do not count as a fork: if only one branch is expensive, it continues.
        """
        nodes = self._spec.nodes
        branch_us = [node.cost_us for node in nodes]
        # The cost of the branch's most expensive node; that of all nodes that depend on it alone.
        dearest_us, owned_us = branch_us.copy(), branch_us.copy()
        lone = self._lone_producers()
        for index in reversed(self._spec.order):
            edges = nodes[index].edges
            if not edges:
                continue
            behind = {t[0]: None for t in edges if t is not None}
            if len(behind) > 1:
                behind = {link: None for link in behind if link not in self._rest}
            own = [link for link in behind if lone[link] == index]
            if not own:
                continue
            long = own
            if len(behind) > 1:
                long = [link for link in own if owned_us[link] > self._worth_us]
                onward = max(long, key=owned_us.__getitem__, default=-1)
                is_fork = onward >= 0 and owned_us[onward] > branch_us[onward]
                if is_fork and dearest_us[onward] < self.message_us:
                    self._trunk.add(onward)
            if len(long) == 1:
                branch_us[index] += branch_us[long[0]]
                dearest_us[index] = max(dearest_us[index], dearest_us[long[0]])
                if len(behind) > 1:
                    self._goes_on.add(long[0])
            owned_us[index] += sum([owned_us[link] for link in own])
        return branch_us

    def _lone_producers(self) -> list[int]:
        """The only producer of each node; -1 if there are several, or if the node has hooks."""
        return [
            -1 if not feeds or node.on_client or feeds.count(feeds[0]) < len(feeds) else feeds[0]
            for node, feeds in zip(self._spec.nodes, self.producers, strict=True)
        ]

    def home_for(self, index: int) -> int:
        """The group that node ``index`` joins, or -1."""
        node, producers = self._spec.nodes[index], self.producers[index]
        if index in self._seeded or index in self.second or node.is_branch:
            return -1
        home = max([self.group_of[producer] for producer in producers])
        for producer in producers:
            if self.group_of[producer] != home and not self._is_there(producer, home):
                return -1
        if node.is_sink:
            return home
        if not self._may_share(home, node):
            return -1
        nothing_waits = self._is_only_one(index, home, self._edges_within(index, home))
        if nothing_waits or (index in self._goes_on and node.cost_us >= self.message_us):
            is_spine = node.passes or self._passes[home]
            limit_us = tuning.TASK_MAX_US if is_spine else self.chain_limit_us[node.device]
            # Do not cut off a piece that costs less than one message.
            is_piece = self.total_us[home] >= self._worth_us
            if not is_piece or self.total_us[home] + node.cost_us <= limit_us:
                return home
        if index in self._trunk and self.producers[index][0] == self._tip[home]:
            return home if self.total_us[home] + node.cost_us <= tuning.TASK_MAX_US else -1
        if self._branch_us[index] >= self.message_us:
            return -1
        joined_us = self._joined_us[home] + self._branch_us[index]
        return home if joined_us <= self._worth_us else -1

    def _is_only_one(self, index: int, home: int, within: int) -> bool:
        """Whether nothing else that group ``home`` feeds could run beside node ``index``.

        It feeds that by ``within`` edges. What is in ``_rest`` runs beside it anyway, like second
        halves.
        """
        beside = 0 if index in self._rest else self._at_rest[home]
        return self._waiting[home] - beside == within

    def _edges_within(self, index: int, home: int) -> int:
        producers = self.producers[index]
        if len(producers) == 1:
            return int(self.group_of[producers[0]] == home)
        return sum([self.group_of[producer] == home for producer in producers])

    def _is_there(self, producer: int, home: int) -> bool:
        """Whether group ``home`` could not begin without what ``producer`` of another one gives."""
        other = self.group_of[producer]
        node = self._spec.nodes[producer]
        if node.parts is not None or not node.is_for_cpu:
            return False
        return self._position[producer] <= self._fed_until[home].get(other, -1)

    def _may_share(self, home: int, node: NodeSpec) -> bool:
        """Whether ``node`` runs on the device of group ``home`` and may run right after it."""
        first = self._spec.nodes[self.groups[home][0]]
        if first.device != node.device:
            return False
        if not (first.on_client or node.on_client):
            return True
        # The client's Nodes run in serial order, so no Node of another task may come between.
        return first.unpacks and node.unpacks and home == self._last_on_client

    def place(self, index: int, home: int) -> None:
        """Put node ``index`` into group ``home``, or into a new group if ``home`` is -1."""
        node = self._spec.nodes[index]
        if home < 0:
            home = len(self.groups)
            self.groups.append([])
            self.total_us.append(0.0)
            self._joined_us.append(0.0)
            self._tip.append(index)
            self._waiting.append(0)
            self._at_rest.append(0)
            self._passes.append(False)
            fed = sorted((self._position[p], self.group_of[p]) for p in self.producers[index])
            self._fed_until.append({other: position for position, other in fed})
        elif not node.is_sink:
            feeds, within = self.producers[index], self._edges_within(index, home)
            beside_us = sum([self._beside_us[feed] for feed in feeds])
            if self._is_only_one(index, home, within):
                # What ran beside the chain was needed for this node: no other could have run.
                self._tip[home] = index
                self._joined_us[home] = max(self._joined_us[home] - beside_us, 0.0)
            elif index in self._trunk and feeds[0] == self._tip[home]:
                self._tip[home] = index
            elif node.cost_us < self.message_us:
                self._beside_us[index] = beside_us + node.cost_us
                self._joined_us[home] += node.cost_us
            self._waiting[home] -= within
            self._at_rest[home] -= within * (index in self._rest)
        if node.on_client:
            self._last_on_client = home
        self.total_us[home] += node.cost_us
        self._passes[home] |= bool(node.passes)
        self.groups[home].append(index)
        self.group_of[index] = home
        for target in node.edges:
            if target is None or self._spec.nodes[target[0]].is_sink:
                continue
            link = target[0]
            self._missing[link] -= 1
            if not self._missing[link]:
                for producer in self.producers[link]:
                    self._waiting[self.group_of[producer]] += 1
                    self._at_rest[self.group_of[producer]] += link in self._rest
