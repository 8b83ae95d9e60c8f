"""The simulation's gradients: integers whose right values are known exactly.

Each Node adds its inputs, so a capture must receive the number of paths that lead to it. Each
number has a fingerprint that depends on *which* values were added in *which* order: two gradients
with equal fingerprints were computed by the same sums and the same rules.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from mpgrad.base.handles import Block
from mpgrad.scheduler.graph_spec import GraphSpec, Target
from mpgrad.scheduler.plan_tables import InnerTarget, Member
from mpgrad.scheduler.split import parts_of

#: Numbers of paths grow exponentially; a prime keeps them (and the fingerprints) in 61 bits.
MODULUS = (1 << 61) - 1
#: Bases of the polynomial fingerprints: of sums, and of a rule's inputs.
_SUM_BASE, _RULE_BASE = 1_000_003, 1_299_709
#: The same of a gradient's parts.
_PART_BASE = 15_485_863
_UNDEFINED = 271_828_183

#: (paths, fingerprint): the content of a block or an inline gradient.
Content: TypeAlias = tuple[int, int]

_packed = struct.Struct("<QQ")


class Value(NamedTuple):
    """A gradient inside a task, and the block in which these very bits already lie, if any."""

    paths: int
    fingerprint: int
    source: Block | None = None

    @property
    def content(self) -> Content:
        return self.paths, self.fingerprint


class TracedGraph(NamedTuple):
    """A GraphSpec with the behaviour of its rules."""

    spec: GraphSpec
    #: For each seed its gradient (None: undefined).
    seeds: tuple[Value | None, ...]
    #: (node, output number) whose gradient the rule leaves undefined.
    undefined: frozenset[tuple[int, int]]
    #: Nodes with one input that return it unchanged.
    passing: frozenset[int]
    #: Nodes whose rules raise.
    raising: frozenset[int]
    #: Calls: Nodes that give something without any input.
    making: frozenset[int] = frozenset()


def pack(content: Content) -> bytes:
    """The bytes of a gradient inside a message."""
    return _packed.pack(*content)


def unpack(data: bytes) -> Content:
    paths, fingerprint = _packed.unpack(data)
    return paths, fingerprint


def seed_value(number: int) -> Value:
    """The gradient of seed ``number``: one path starts here."""
    return Value(1, (number + 2) * 7_919 % MODULUS)


def add(left: Value | None, right: Value | None) -> Value | None:
    """The sum, where undefined gradients count as absent."""
    if left is None or right is None:
        return left if right is None else right
    return Value(
        (left.paths + right.paths) % MODULUS,
        (left.fingerprint * _SUM_BASE + right.fingerprint) % MODULUS,
    )


def cut(value: Value | None, parts: tuple[int, int]) -> Value | None:
    """Some parts of a gradient, which differ from all other parts."""
    if value is None:
        return None
    return Value(value.paths, (value.fingerprint * _PART_BASE + _number(parts)) % MODULUS)


def join(pieces: Sequence[Value], count: int) -> Value | None:
    """The gradient whose ``count`` parts these are; a wrong one if they are not.

    It is undefined if nothing has arrived.
    """
    if not pieces:
        return None
    expected = [parts_of(share, len(pieces), count) for share in range(len(pieces))]
    first = pieces[0].fingerprint - _number(expected[0])
    whole = Value(pieces[0].paths, first * pow(_PART_BASE, -1, MODULUS) % MODULUS)
    right = [cut(whole, parts) for parts in expected]
    is_right = [piece.content for piece in pieces] == [piece.content for piece in right if piece]
    return whole if is_right else Value(0, 0)


def _number(parts: tuple[int, int]) -> int:
    return 1 + parts[0] * 1000 + parts[1]


def run_rule(graph: TracedGraph, node: int, inputs: Sequence[Value | None]) -> list[Value | None]:
    """The outputs of one Node; undefined if all inputs are."""
    edges = graph.spec.nodes[node].edges
    defined = [value for value in inputs if value is not None]
    if not defined and node not in graph.making:
        return [None] * len(edges)
    if node in graph.passing:
        passed = defined[0]
        return [None if (node, nr) in graph.undefined else passed for nr in range(len(edges))]
    paths = (sum(value.paths for value in defined) + (node in graph.making)) % MODULUS
    mixed = node + 1
    for value in inputs:
        part = _UNDEFINED if value is None else value.fingerprint
        mixed = (mixed * _RULE_BASE + part) % MODULUS
    return [
        None if (node, nr) in graph.undefined else Value(paths, (mixed * _RULE_BASE + nr) % MODULUS)
        for nr in range(len(edges))
    ]


def run_serially(graph: TracedGraph) -> list[Value | None]:
    """The captures of a serial engine, computed without plan, tasks or places."""
    sums: list[list[Value | None]] = [[None] * len(n.input_nbytes) for n in graph.spec.nodes]

    def accumulate(target: Target, value: Value | None) -> None:
        sums[target[0]][target[1]] = add(sums[target[0]][target[1]], value)

    for target, value in zip(graph.spec.seeds, graph.seeds, strict=True):
        accumulate(target, value)
    for node in graph.spec.order:
        outputs = run_rule(graph, node, sums[node])
        for edge, value in zip(graph.spec.nodes[node].edges, outputs, strict=True):
            if edge is not None:
                accumulate(edge, value)
    return [sums[node][input_nr] for node, input_nr in graph.spec.captures]


def run_members(
    graph: TracedGraph,
    members: Sequence[Member],
    slots: Sequence[InnerTarget],
    inputs: Sequence[Value | None],
    output_count: int,
    on_node: Callable[[int], None] = lambda node: None,
    on_publish: Callable[[dict[int, Value | None]], None] = lambda outputs: None,
) -> list[Value | None]:
    """Run the Nodes of one NodeTask on the sums of its slots; return the task's outputs.

    Args:
        graph: the graph of the Nodes.
        members: the Nodes.
        slots: the inputs with contributions from outside.
        inputs: the sums of these.
        output_count: the number of the task's outputs.
        on_node: is called for each Node before its rule runs.
        on_publish: gets all outputs so far by number, where the plan publishes them, and before a
            rule raises.
    """
    sums: list[list[Value | None]] = [
        [None] * len(graph.spec.nodes[member.node].input_nbytes) for member in members
    ]
    outputs: dict[int, Value | None] = {}
    if members[0].piece_of is not None:
        return list(inputs)
    for (entry, input_nr), value in zip(slots, inputs, strict=True):
        sums[entry][input_nr] = value
    for at, member in enumerate(members):
        for input_nr, output in member.captures:
            outputs[output] = sums[at][input_nr]
        if member.publishes or member.node in graph.raising:
            on_publish(dict(outputs))
        on_node(member.node)
        values = run_rule(graph, member.node, sums[at])
        if member.parts is not None:
            values[0] = cut(values[0], member.parts)
        for route, value in zip(member.routes, values, strict=True):
            if isinstance(route, InnerTarget):
                inner = sums[route.member]
                inner[route.input_nr] = add(inner[route.input_nr], value)
            elif route is not None:
                outputs[route] = value
    return [outputs.get(output) for output in range(output_count)]
