"""GraphSpec: one backward's Nodes and edges as plain tables, and the order a serial engine runs.

Rules of this file: it sees indices and sizes, never a Node, an array or a process. Every function
is iterative, because chains of 150,000 Nodes are normal.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias

#: (node index, input number): where an edge ends.
Target: TypeAlias = tuple[int, int]

#: The value of ``NodeSpec.device`` for Nodes that run on a CPU worker or in the client.
ON_CPU = -1


class NodeSpec(NamedTuple):
    """What the scheduler knows about one Node."""

    name: str
    sequence_nr: int
    #: For each output: the target it flows into, or None if its gradient is not needed.
    edges: tuple[Target | None, ...]
    #: For each input: bytes of the gradient that flows into it.
    input_nbytes: tuple[int, ...]
    #: Expected run time in microseconds.
    cost_us: float
    #: True if only the client may run it (hooks, closures).
    on_client: bool = False
    #: True if no rule runs: its complete inputs are only captured (AccumulateGrad).
    is_sink: bool = False
    #: True if each output has its own formula, so that the outputs can be computed separately.
    is_splittable: bool = False
    #: True if it is on the client only because its saved tensors must be unpacked there. No user
    #: code sees its gradients, so they need no copy on the way to the next such Node.
    unpacks: bool = False
    #: Nodes that also get its complete inputs (see ``split``).
    passes: tuple[int, ...] = ()
    #: The part of ``cost_us`` for the outputs that go to sinks, if the Node is run in two halves.
    second_half_share: float = 0.5
    #: The number of the GPU that runs it, or ON_CPU.
    device: int = ON_CPU
    #: For each input whether its gradient lies on a GPU; empty if none does.
    device_inputs: tuple[bool, ...] = ()
    #: The bytes of each part of output 0, if it can be computed in parts; else empty.
    part_nbytes: tuple[int, ...] = ()
    #: A Node that was cut (``split``) computes only this half-open range of the parts of output
    #: 0; None: all of it.
    parts: tuple[int, int] | None = None
    #: True if some worker may have recorded what it differentiates: it gets a task of its own, so
    #: that it can run there.
    is_branch: bool = False

    @property
    def is_for_cpu(self) -> bool:
        """Whether workers of the CPU run it."""
        return self.device == ON_CPU and not self.on_client

    def is_on_device(self, input_nr: int) -> bool:
        """Whether the gradient that flows into an input lies on a GPU."""
        return bool(self.device_inputs) and self.device_inputs[input_nr]


class GraphSpec(NamedTuple):
    """A frozen backward graph.

    ``captures[k]`` is the input whose complete gradient becomes result ``k``.
    """

    nodes: tuple[NodeSpec, ...]
    #: The target of each seed gradient.
    seeds: tuple[Target, ...]
    captures: tuple[Target, ...]
    #: Node indices in the order in which the serial engine runs them.
    order: tuple[int, ...]


def serial_order(nodes: Sequence[NodeSpec], seeds: Sequence[Target]) -> tuple[int, ...]:
    """The order in which one thread with PyTorch's ReadyQueue would run the nodes.

    A node is ready when all its contributions have arrived; of the ready ones, the highest
    ``sequence_nr`` runs first, then the one found first.

    Raises:
        RuntimeError: some node never becomes ready (the graph has a cycle).
    """
    order = _falling_order(nodes, seeds)
    return _order_of_ready(nodes, seeds) if order is None else order


def _falling_order(nodes: Sequence[NodeSpec], seeds: Sequence[Target]) -> tuple[int, ...] | None:
    """The order if numbers fall along all edges but those into leaves, as in a graph recorded on
    one thread; else None.

    Then the highest node that has not run is ready: what leads to it is higher. Leaves have the
    highest number, so they run as soon as they are ready. It takes a quarter of the time of
    ``_order_of_ready``.
    """
    numbers = [node.sequence_nr for node in nodes]
    top = max(numbers, default=0)
    if [1 for node in nodes if node.sequence_nr == top and node.edges]:
        top += 1  # there are no leaves
    order = sorted([at for at in range(len(nodes)) if numbers[at] != top], key=numbers.__getitem__)
    order.reverse()
    last: list[int | None] = [None] * len(nodes)
    before = top
    for at in order:
        number = numbers[at]
        if number >= before:
            return None
        before = number
        for target in nodes[at].edges:
            if target is not None:
                to = target[0]
                if number <= numbers[to] < top:
                    return None
                last[to] = at
    leaves: dict[int, list[int]] = {}
    begin = {target[0] for target in seeds}
    for at, after in enumerate(last):
        if after is not None:
            if numbers[at] == top:
                leaves.setdefault(after, []).append(at)
        elif numbers[at] == top or at not in begin:
            return None
    found: list[int] = []
    for at in order:
        found.append(at)
        if at in leaves:
            found += leaves[at]
    return tuple(found)


def _order_of_ready(nodes: Sequence[NodeSpec], seeds: Sequence[Target]) -> tuple[int, ...]:
    """The order by Kahn's algorithm."""
    dependencies = [0] * len(nodes)
    for node in nodes:
        for target in node.edges:
            if target is not None:
                dependencies[target[0]] += 1
    ready: list[tuple[int, int]] = []
    for index in dict.fromkeys(target[0] for target in seeds):
        if dependencies[index] == 0:
            heappush(ready, (-nodes[index].sequence_nr, index))
    order = []
    while ready:
        _, index = heappop(ready)
        order.append(index)
        for target in nodes[index].edges:
            if target is not None:
                dependencies[target[0]] -= 1
                if dependencies[target[0]] == 0:
                    heappush(ready, (-nodes[target[0]].sequence_nr, target[0]))
    if len(order) != len(nodes):
        raise RuntimeError("could not compute gradients for some functions: the graph has a cycle")
    return tuple(order)


def reaches(edges: Sequence[Sequence[Target | None]], wanted: Sequence[int]) -> list[bool]:
    """For each node, whether one of ``wanted`` can be reached from it (itself included)."""
    producers: list[list[int]] = [[] for _ in edges]
    for index, targets in enumerate(edges):
        for target in targets:
            if target is not None:
                producers[target[0]].append(index)
    found = [False] * len(edges)
    pending = list(wanted)
    while pending:
        index = pending.pop()
        if not found[index]:
            found[index] = True
            pending.extend(producers[index])
    return found
