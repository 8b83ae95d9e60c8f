"""run_local(): the whole graph in this process, on this thread, with the workers' own executor."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from mpgrad.autograd import costs
from mpgrad.autograd.freeze import FrozenGraph
from mpgrad.autograd.function_node import FunctionNode
from mpgrad.autograd.node import InputMetadata
from mpgrad.dispatch import cpu
from mpgrad.workers.executor import Step, run_steps

#: Steps that were expected to be and are this short teach nothing, in microseconds.
NEGLIGIBLE_US = 25.0

#: References to an array that nobody but us holds, when ``is_exclusive`` looks at it: the list of
#: results, the argument, and that of ``getrefcount``.
_OWN_REFERENCES = 3


def run_local(frozen: FrozenGraph) -> list[tuple[Any, bool]]:
    """Execute ``frozen`` in the serial engine's order.

    Returns:
        For each capture its array (None if undefined), and whether nobody else holds it.
    """
    captures: dict[int, list[tuple[int, int]]] = {}
    for number, (node, input_nr) in enumerate(frozen.spec.captures):
        captures.setdefault(node, []).append((input_nr, number))
    rank = {node: at for at, node in enumerate(frozen.spec.order)}
    steps = [_step(frozen, node, rank, captures.get(node, ())) for node in frozen.spec.order]
    contributions = [
        (rank[node], input_nr, seed)
        for (node, input_nr), seed in zip(frozen.spec.seeds, frozen.seeds, strict=True)
    ]
    results: list[Any] = [None] * len(frozen.sinks)
    timings: list[float] = []
    run_steps(steps, contributions, results.__setitem__, cpu, timings=timings)
    del contributions
    _learn(frozen, timings)
    shared = _appearing_twice(results)
    return [
        (array, array is not None and id(array) not in shared and is_exclusive(array))
        for array in _drained(results)
    ]


def _step(
    frozen: FrozenGraph,
    index: int,
    rank: dict[int, int],
    captures: Any,
) -> Step:
    node, spec = frozen.nodes[index], frozen.spec.nodes[index]
    runs = frozen.runs[index]
    return Step(
        spec.name,
        node.apply if runs else None,
        node.input_metadata,
        output_metadata(frozen, index),
        [None if target is None else (rank[target[0]], target[1]) for target in spec.edges],
        captures,
        takes_undefined=isinstance(node, FunctionNode),
        release=_release(frozen, index),
    )


def output_metadata(frozen: FrozenGraph, index: int) -> list[InputMetadata | None]:
    """For each output of a node what its consumer expects, None where nobody wants it."""
    return [
        None if target is None else frozen.nodes[target[0]].input_metadata[target[1]]
        for target in frozen.spec.nodes[index].edges
    ]


def _release(frozen: FrozenGraph, index: int) -> Callable[[], None] | None:
    if frozen.keep_graph or not frozen.runs[index]:
        return None
    return frozen.nodes[index].release_saved


def _learn(frozen: FrozenGraph, timings: list[float]) -> None:
    """Tell the cost model what the steps took, where it matters to a plan."""
    ran = (index for index in frozen.spec.order if frozen.runs[index])
    for index, seconds in zip(ran, timings, strict=True):
        microseconds = seconds * 1e6
        if max(microseconds, frozen.spec.nodes[index].cost_us) > NEGLIGIBLE_US:
            costs.observe(frozen.nodes[index], microseconds)


def _appearing_twice(arrays: list[Any]) -> set[int]:
    seen: set[int] = set()
    return {id(a) for a in arrays if a is not None and (id(a) in seen or seen.add(id(a)))}  # type: ignore[func-returns-value]


def _drained(arrays: list[Any]) -> Any:
    """Each array in turn, the list no longer holding it."""
    arrays.reverse()
    while arrays:
        yield arrays.pop()


def is_exclusive(array: np.ndarray[Any, Any]) -> bool:
    """Whether only the caller holds ``array``, so that ``.grad`` may become it."""
    return (
        array.flags.owndata and array.flags.writeable and sys.getrefcount(array) <= _OWN_REFERENCES
    )
