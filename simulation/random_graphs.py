"""Random backward graphs for the simulation: every shape that a real one can have, from one seed.

They have chains, diamonds, fan-out and fan-in, several edges to one consumer, inputs without
contributions, unused outputs, seeds in the middle, captures anywhere, sinks, Nodes of the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from mpgrad.base.handles import INLINE_LIMIT_BYTES
from mpgrad.scheduler.graph_spec import ON_CPU, GraphSpec, NodeSpec, Target, serial_order
from mpgrad.scheduler.plan_tables import Plan
from simulation.path_counts import TracedGraph, seed_value

NODES_MIN, NODES_MAX = 5, 60
#: Gradients that travel inline (the limit itself included), and in blocks.
SIZES = (4, 256, INLINE_LIMIT_BYTES, INLINE_LIMIT_BYTES + 1, 8_192, 100_000)
#: Costs of Nodes in microseconds: those that may be fused, and those that may not.
CHEAP_US, DEAR_US = (1.0, 90.0), (100.0, 2500.0)


def random_graph(
    rng: Random,
    *,
    client_share: float = 0.1,
    raising: bool = False,
    devices: Sequence[int] = (),
) -> TracedGraph:
    """A graph of 5 to 60 Nodes; with ``raising``, the rules of one to three raise.

    Args:
        rng: the source of all choices.
        client_share: the share of Nodes for the client, in graphs that have any.
        raising: whether rules raise.
        devices: GPUs on which some of the Nodes run.
    """
    count = rng.randint(NODES_MIN, NODES_MAX)
    # Indices do not give the order: node index[at] is at topological position ``at``.
    index = list(range(count))
    rng.shuffle(index)
    sizes = [_sizes(rng) for _ in range(count)]
    edges, seeds = _edges(rng, count, index, sizes)
    nodes = _nodes(rng, index, edges, sizes, client_share)
    if devices:
        nodes = _on_devices(rng, nodes, devices)
    spec = GraphSpec(nodes, seeds, _captures(rng, nodes), serial_order(nodes, seeds))
    undefined = frozenset(
        (node, nr) for node in range(count) for nr in range(len(edges[node])) if rng.random() < 0.04
    )
    passing = frozenset(
        node for node in range(count) if len(sizes[node]) == 1 and rng.random() < 0.3
    )
    rules = [node for node in range(count) if not nodes[node].is_sink]
    values = tuple(None if rng.random() < 0.05 else seed_value(nr) for nr in range(len(seeds)))
    raisers = [rng.choice(rules) for _ in range(rng.choice((1, 2, 3)))] if raising else []
    return TracedGraph(spec, values, undefined, passing, frozenset(raisers))


def _sizes(rng: Random) -> tuple[int, ...]:
    return tuple(rng.choice(SIZES) for _ in range(rng.choice((1, 1, 1, 2, 3))))


def _edges(
    rng: Random, count: int, index: list[int], sizes: list[tuple[int, ...]]
) -> tuple[list[list[Target | None]], tuple[Target, ...]]:
    """Edges from earlier to later positions; a Node without one is seeded."""
    draw_producers = rng.choice((_chain, _local, _anywhere, _wide))
    extra_seeds = rng.choice((0.0, 0.0, 0.1))
    edges: list[list[Target | None]] = [[] for _ in range(count)]
    seeds: list[Target] = []
    for at in range(count):
        node = index[at]
        positions = draw_producers(rng, at, count) if at else []
        for position in positions:
            edges[index[position]].append((node, rng.randrange(len(sizes[node]))))
        if not positions or rng.random() < extra_seeds:
            target = (node, rng.randrange(len(sizes[node])))
            seeds.extend([target] * rng.choice((1, 1, 1, 2)))
    for targets in edges:
        rng.shuffle(targets)
        while rng.random() < 0.15:
            targets.insert(rng.randint(0, len(targets)), None)
    return edges, tuple(seeds)


def _chain(rng: Random, at: int, count: int) -> list[int]:
    return [at - 1] * rng.choice((1, 1, 1, 2))


def _local(rng: Random, at: int, count: int) -> list[int]:
    return [max(0, at - rng.randint(1, 4)) for _ in range(rng.choice((1, 1, 2, 3)))]


def _anywhere(rng: Random, at: int, count: int) -> list[int]:
    return [rng.randrange(at) for _ in range(rng.choice((0, 1, 1, 2, 2, 4)))]


def _wide(rng: Random, at: int, count: int) -> list[int]:
    """Branches from the first Node to the last one."""
    if at == count - 1:
        return [rng.randrange(at) for _ in range(min(at, 20))]
    return [0 if rng.random() < 0.5 else rng.randrange(at)]


def _nodes(
    rng: Random,
    index: list[int],
    edges: list[list[Target | None]],
    sizes: list[tuple[int, ...]],
    client_share: float,
) -> tuple[NodeSpec, ...]:
    count = len(index)
    dear_share = rng.choice((0.0, 0.3, 1.0))
    has_client = rng.random() < 0.5
    # Mostly in the order of recording (the last first); sometimes with ties or other numbers.
    blur = rng.choice((0, 0, count))
    nodes: list[NodeSpec | None] = [None] * count
    for at, node in enumerate(index):
        nodes[node] = NodeSpec(
            f"Node{node}",
            count - at + (rng.randint(0, blur) if blur else 0),
            tuple(edges[node]),
            sizes[node],
            round(rng.uniform(*(DEAR_US if rng.random() < dear_share else CHEAP_US)), 1),
            on_client=(on_client := has_client and rng.random() < client_share),
            is_sink=not edges[node] and len(sizes[node]) == 1 and rng.random() < 0.7,
            is_splittable=rng.random() < 0.5,
            unpacks=on_client and rng.random() < 0.5,
            second_half_share=(0.5, 0.2, 0.9)[node % 3],
            part_nbytes=_parts(node, edges[node], sizes),
        )
    return tuple(node for node in nodes if node is not None)


def _parts(
    node: int, edges: Sequence[Target | None], sizes: list[tuple[int, ...]]
) -> tuple[int, ...]:
    """Bytes of the parts of output 0, of most Nodes; nothing is drawn for that."""
    if not edges or edges[0] is None or node % 4 == 0:
        return ()
    count = 2 + node % 3
    consumer, input_nr = edges[0]
    part = sizes[consumer][input_nr] // count
    return (sizes[consumer][input_nr] - (count - 1) * part, *[part] * (count - 1))


def _on_devices(
    rng: Random, nodes: tuple[NodeSpec, ...], devices: Sequence[int]
) -> tuple[NodeSpec, ...]:
    """Some Nodes run on GPUs. An input lies there only if nothing of a CPU worker flows into it."""
    share = rng.choice((0.3, 0.7, 1.0))
    placed = [
        node._replace(
            device=rng.choice(devices) if rng.random() < share and not node.on_client else ON_CPU
        )
        for node in nodes
    ]
    fed_by_cpu = {
        target
        for node in placed
        for target in node.edges
        if target is not None and node.device == ON_CPU and not node.on_client
    }
    return tuple(
        node
        if node.device == ON_CPU
        else node._replace(
            device_inputs=tuple(
                (at, input_nr) not in fed_by_cpu and rng.random() < 0.9
                for input_nr in range(len(node.input_nbytes))
            )
        )
        for at, node in enumerate(placed)
    )


def _captures(rng: Random, nodes: tuple[NodeSpec, ...]) -> tuple[Target, ...]:
    """Inputs of leaves, some gradients inside, and sometimes one result twice."""
    captures: list[Target] = []
    for node, spec in enumerate(nodes):
        is_leaf = all(edge is None for edge in spec.edges)
        captures.extend(
            (node, input_nr)
            for input_nr in range(len(spec.input_nbytes))
            if rng.random() < (0.9 if is_leaf else 0.1)
        )
    if captures and rng.random() < 0.2:
        captures.append(rng.choice(captures))
    return tuple(captures)


def publish_anywhere(planned: Plan, rng: Random) -> Plan:
    """The same plan with publications before any of the Nodes."""
    groups = [
        members
        if task.on_client
        else tuple(
            member._replace(publishes=member.piece_of is None and rng.random() < 0.4)
            for member in members
        )
        for task, members in zip(planned.tasks, planned.groups, strict=True)
    ]
    tasks = tuple(
        task._replace(publications=sum(member.publishes for member in members))
        for task, members in zip(planned.tasks, groups, strict=True)
    )
    return planned._replace(tasks=tasks, groups=tuple(groups))
