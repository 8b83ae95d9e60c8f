"""Where the forward of a custom Function was called: for errors, and to find loops of ``apply``."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from types import CodeType
from typing import NamedTuple

from mpgrad.autograd.function_nodes.function_node import FunctionNode
from mpgrad.base.duration_text import duration
from mpgrad.base.user_frames import is_ours

#: A loop of ``apply`` is worth a line from so many calls of so many seconds on, and a warning where
#: they are so long, also on a busy machine.
CALLS_MIN, CALL_S, WARN_CALL_S = 4, 2e-3, 10e-3


class SlowLoop(NamedTuple):
    """Calls of ``apply`` at one place, none of which needs another."""

    function: type[object]
    place: str
    calls: int
    seconds: float

    def __str__(self) -> str:
        name = self.function.__qualname__
        return (
            f"{self.calls} calls of {name}.apply() at {self.place} take "
            f"{duration(1e6 * self.seconds)}, one after another. {name}.map(xs) in place of the "
            "loop, or mpgrad.parallel_map, runs them in workers."
        )


def place_of(node: FunctionNode) -> str:
    """The line that has called ``apply``; empty if mpgrad has."""
    if node.called is None or is_ours(node.called[0]):
        return ""
    code, at, _ = node.called
    return f"{os.path.basename(code.co_filename)}:{_line(code, at)}"


def _line(code: CodeType, at: int) -> int:
    lines = (line for start, end, line in code.co_lines() if start <= at < end and line)
    return next(lines, code.co_firstlineno)


def call_in_words(failed: object, nodes: Iterable[object]) -> str:
    """Which call of forward has recorded ``failed``, one of the ``nodes`` of a graph; empty if it
    is unknown."""
    if not isinstance(failed, FunctionNode) or not (place := place_of(failed)):
        return ""
    alike = sorted(
        node.sequence_nr
        for node in nodes
        if isinstance(node, FunctionNode) and _site(node) == _site(failed)
    )
    number = f", call {alike.index(failed.sequence_nr) + 1} of {len(alike)}"
    name = failed.function.__qualname__
    return f"its forward: {name}.apply() at {place}{number if len(alike) > 1 else ''}"


def _site(node: FunctionNode) -> tuple[object, ...] | None:
    return None if node.called is None else (node.function, *node.called[:2])


def slow_loops(
    nodes: Sequence[object],
    order: Sequence[int],
    targets: Sequence[Iterable[int]],
    call_s: float = CALL_S,
) -> list[SlowLoop]:
    """The loops of ``apply`` whose calls could run beside one another, the slowest first.

    Args:
        nodes: of a graph.
        order: their serial order.
        targets: of each, to which other ones its gradients flow.
        call_s: the seconds that a call takes at least.
    """
    found: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for at in order:
        node = nodes[at]
        if isinstance(node, FunctionNode) and node.called is not None:
            found[node.function, *node.called[:2]].append(at)
    loops = []
    for members in found.values():
        ones = [node for at in members if isinstance(node := nodes[at], FunctionNode)]
        seconds = sum(one.called[2] for one in ones if one.called)
        if len(ones) < CALLS_MIN or seconds < call_s * len(ones) or not place_of(ones[0]):
            continue
        if not _has_chain({*members}, order, targets):
            loops.append(SlowLoop(ones[0].function, place_of(ones[0]), len(ones), seconds))
    return sorted(loops, key=lambda loop: -loop.seconds)


def _has_chain(members: set[int], order: Sequence[int], targets: Sequence[Iterable[int]]) -> bool:
    """Whether gradients flow from one of the members to another."""
    behind = set[int]()
    for at in order:
        if at in members and at in behind:
            return True
        if at in members or at in behind:
            behind.update(targets[at])
    return False
