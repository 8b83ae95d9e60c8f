"""run_local(): the whole graph in this process, on this thread, with the workers' own executor."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from mpgrad.autograd import engine_slot, profiler
from mpgrad.autograd.anomaly_mode import explain_failure
from mpgrad.autograd.anomaly_mode import mode as anomaly
from mpgrad.autograd.client_nodes import HooksBefore, rule_of
from mpgrad.autograd.frozen_graph import FrozenGraph
from mpgrad.autograd.higher_order.recording import has_only_operators
from mpgrad.autograd.nodes.node import InputMetadata, Node
from mpgrad.autograd.running.collector import collector_held
from mpgrad.dispatch import OperatorNode, cpu
from mpgrad.engine.learning import durations_us, teach
from mpgrad.ops.arithmetic import PASSING_ON
from mpgrad.storage import is_exclusive
from mpgrad.workers.executor import Step, Wiring, run_steps

#: From this size on a backward of operators alone holds the garbage collector off.
HELD_ABOVE_NODES = 1000


def run_local(frozen: FrozenGraph) -> list[tuple[Any, bool]]:
    """Execute ``frozen`` in the serial engine's order.

    Returns:
        For each capture its array (None if undefined), and whether nobody else holds it.
    """
    if len(frozen.nodes) >= HELD_ABOVE_NODES and has_only_operators(frozen):
        with collector_held():
            return _run(frozen)
    return _run(frozen)


def _run(frozen: FrozenGraph) -> list[tuple[Any, bool]]:
    wirings, seeded = _wired(frozen)
    order = frozen.spec.order
    steps = [_step(frozen, node, wiring) for node, wiring in zip(order, wirings, strict=True)]
    contributions = [
        (step, input_nr, seed) for (step, input_nr), seed in zip(seeded, frozen.seeds, strict=True)
    ]
    results: list[Any] = [None] * len(frozen.sinks)
    timings: list[float] = []
    on_failure = None
    if anomaly.enabled and not engine_slot.is_inside_rule():
        blame_for_nan(steps, [frozen.nodes[node] for node in frozen.spec.order])
        on_failure = functools.partial(_explain, frozen)
    run_steps(
        steps,
        contributions,
        results.__setitem__,
        cpu,
        timings=timings,
        on_failure=on_failure,
    )
    del contributions
    known = frozen.remembered
    if timings and (known is None or known.teaches((timings[-1] - timings[0]) * 1e6)):
        teach(frozen, list(zip(_that_ran(frozen), durations_us(timings), strict=True)))
    profile = profiler.active()
    if profile is not None and not engine_slot.is_inside_rule():
        profile.note_nodes(frozen, _that_ran(frozen), timings)
    return claim(results)


def _that_ran(frozen: FrozenGraph) -> list[int]:
    """The Nodes that have a rule which ran, in serial order."""
    return [index for index in frozen.spec.order if frozen.runs[index]]


def _explain(frozen: FrozenGraph, step: int) -> None:
    explain_failure(frozen.nodes[frozen.spec.order[step]])


def blame_for_nan(steps: Sequence[Step], nodes: Sequence[Node]) -> None:
    """Anomaly mode: have what ``nodes`` return searched for NaN, where that is asked for.

    A hook before a Node may return NaN; the Node may not, be it by a hook behind it.
    """
    if anomaly.checks_nan:
        for step, node in zip(steps, nodes, strict=True):
            if not isinstance(node, HooksBefore):
                step.blamed = node.subject.name()


class _Wired(NamedTuple):
    """What is the same whenever a graph like this one is run."""

    #: In serial order.
    wirings: list[Wiring]
    #: (step, input number) of each seed.
    seeded: list[tuple[int, int]]


def _wired(frozen: FrozenGraph) -> _Wired:
    """Made once for graphs that come again and again."""
    known = frozen.remembered
    if known is not None and known.wired is not None:
        return cast("_Wired", known.wired)
    captures: dict[int, list[tuple[int, int]]] = {}
    for number, (node, input_nr) in enumerate(frozen.spec.captures):
        captures.setdefault(node, []).append((input_nr, number))
    rank = {node: at for at, node in enumerate(frozen.spec.order)}
    wirings = [
        Wiring(
            frozen.spec.nodes[node].name,
            frozen.nodes[node].input_metadata,
            output_metadata(frozen, node),
            [
                None if target is None else (rank[target[0]], target[1])
                for target in frozen.spec.nodes[node].edges
            ],
            captures.get(node, ()),
            takes_undefined=frozen.nodes[node].takes_undefined,
            passes_on=passes_on(frozen.nodes[node]),
        )
        for node in frozen.spec.order
    ]
    wired = _Wired(wirings, [(rank[node], input_nr) for node, input_nr in frozen.spec.seeds])
    if known is not None:
        known.wired = wired
    return wired


def passes_on(node: Node) -> bool:
    """See ``Wiring``."""
    return isinstance(node, OperatorNode) and node.operator.name in PASSING_ON


def _step(frozen: FrozenGraph, index: int, wiring: Wiring) -> Step:
    if not frozen.runs[index]:
        return Step(wiring, None)
    node = frozen.nodes[index]
    return Step(wiring, rule_of(node), None if frozen.keep_graph else node.release_saved)


def output_metadata(frozen: FrozenGraph, index: int) -> list[InputMetadata | None]:
    """For each output of a node what its consumer expects, None where nobody wants it."""
    return [
        None if target is None else frozen.nodes[target[0]].input_metadata[target[1]]
        for target in frozen.spec.nodes[index].edges
    ]


def claim(results: list[Any]) -> list[tuple[Any, bool]]:
    """Take the arrays out of ``results``; with each, whether nobody else holds it or its memory.

    Only such an array may become a ``.grad``, which is changed in place later.
    """
    claimed = []
    for number in range(len(results)):
        array = results[number]
        # An array that stands in the list twice keeps a reference there, and so is not exclusive.
        results[number] = None
        exclusive = array is not None and is_exclusive(array)
        claimed.append((array, exclusive))
    return claimed
