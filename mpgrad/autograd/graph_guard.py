"""guard_source(): straight-line source that checks whether a graph is like an earlier one.

``recurring_graphs`` recognises any graph by a walk, a hash and comparisons. A guard does the same
for one graph with a single root and all leaves wanted. It is tried first; the graph is walked only
if it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from mpgrad.autograd.freezing.recurring_graphs import NO_EDGE, NODE, Remembered, Walk
from mpgrad.base.generated_code import compiled
from mpgrad.graph.node import Edge, Node
from mpgrad.tensors.accumulate_grad import AccumulateGrad

#: The maximum number of Nodes of a graph with a guard.
NODES_MAX = 1000

#: The number of roots whose last graph is kept: one per kind of Node.
ROOTS_MAX = 64

#: ``guard(root, input number)`` returns the Nodes in the order of the walk, or None.
Guard = Callable[[Node, int], list[Node] | None]


class Guards:
    """The recently recognised graphs, by the kind of their root. Thread-safe."""

    def __init__(self) -> None:
        self._by_root: dict[type[Node], tuple[Guard, Remembered]] = {}

    def find(self, root: Edge) -> tuple[list[Node], Remembered] | None:
        """The Nodes of a graph like an earlier one, and its record; None if there is none."""
        found = self._by_root.get(type(root.function))
        if found is None:
            return None
        nodes = found[0](root.function, root.input_nr)
        return None if nodes is None else (nodes, found[1])

    def add(self, walked: Walk, root: Edge, known: Remembered) -> None:
        """Recognise graphs like this one from now on."""
        if len(walked.nodes) > NODES_MAX:
            return
        source = guard_source(walked, root.input_nr, known.template.by_sequence)
        guard = compiled("guard", *source, f"guard of {root.function.name()}")
        if len(self._by_root) >= ROOTS_MAX:
            self._by_root.clear()
        self._by_root[type(root.function)] = guard, known


def guard_source(
    walked: Walk, root_nr: int, by_sequence: Sequence[int]
) -> tuple[str, dict[str, Any]]:
    """``def guard(n0, root_nr)``, and the values of its free names.

    Args:
        walked: the graph.
        root_nr: the input of its first Node that the seed flows into.
        by_sequence: its Nodes from the lowest sequence number to the highest.
    """
    nodes, known = walked.nodes, dict[str, Any]()
    lines = ["def guard(n0, root_nr):", f"    if root_nr != {root_nr}:", "        return None"]

    def require(condition: str) -> None:
        lines.extend([f"    if not ({condition}):", "        return None"])

    seen = {0}
    for at, targets in _by_node(walked.edges):
        node, this = nodes[at], f"n{at}"
        known[f"kind{at}"], known[f"look{at}"] = type(node), node.input_metadata
        require(
            f"type({this}) is kind{at} and {this}.hooks is None and not {this}.has_packed and "
            f"({this}.input_metadata is look{at} or {this}.input_metadata == look{at})"
        )
        if isinstance(node, AccumulateGrad):
            require(f"not {this}.variable._post_accumulate_hooks")
        if not targets:
            require(f"not {this}.next_edges")
            continue
        require(f"len({this}.next_edges) == {len(targets)}")
        lines.append(f"    {', '.join(f'e{k}' for k in range(len(targets)))}, = {this}.next_edges")
        for number, target in enumerate(targets):
            if target is None:
                require(f"e{number} is None")
                continue
            index, input_nr = target
            require(f"e{number} is not None and e{number}[1] == {input_nr}")
            if index in seen:
                require(f"e{number}[0] is n{index}")
            else:
                seen.add(index)
                lines.append(f"    n{index} = e{number}[0]")
    every = [f"n{at}" for at in range(len(nodes))]
    require(f"len({{{', '.join(every)}}}) == {len(nodes)}")
    numbers = [f"n{at}.sequence_nr" for at in by_sequence]
    rises = [
        "<" if nodes[low].sequence_nr < nodes[high].sequence_nr else "=="
        for low, high in pairwise(by_sequence)
    ]
    if rises:
        chain = " ".join(
            f"{rise} {number}" for rise, number in zip(rises, numbers[1:], strict=True)
        )
        require(f"{numbers[0]} {chain}")
    lines.append(f"    return [{', '.join(every)}]")
    return "\n".join(lines) + "\n", known


def _by_node(edges: Sequence[int]) -> list[tuple[int, list[tuple[int, int] | None]]]:
    """The Nodes in the order of the walk, and their edges."""
    found: list[tuple[int, list[tuple[int, int] | None]]] = []
    numbers = iter(edges)
    for number in numbers:
        if number <= NODE:
            found.append((NODE - number, []))
        else:
            found[-1][1].append(None if number == NO_EDGE else (number, next(numbers)))
    return found
