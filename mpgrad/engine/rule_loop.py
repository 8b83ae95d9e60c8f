"""RuleLoop: the loop of :mod:`mpgrad.engine.local` over a large graph that comes again.

What the tables of the graph decide is looked up once: which rule each Node has, and where its
gradients flow. What is called, and in which order, is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from mpgrad.autograd.freezing.frozen_graph import FrozenGraph
from mpgrad.autograd.running.validate_outputs import add_notes
from mpgrad.engine.graph_source import expected_of
from mpgrad.engine.node_rules import Rule, rules_of

#: ``run(frozen, at, gradients)``: the gradients that a Node without a rule passes on, or None, for
#: each input that needs one.
RunNode = Callable[[FrozenGraph, int, list[Any]], Sequence[Any]]


class _Step(NamedTuple):
    """A Node that runs. A slot is the place of what flows into one input of a Node."""

    at: int
    #: The slots of its inputs.
    inputs: slice
    #: Its empty inputs.
    nothing: list[None]
    rule: Rule | None
    #: The slots that its gradients flow into.
    targets: tuple[int, ...]
    #: Captured inputs, and the numbers of these captures.
    captures: tuple[tuple[int, int], ...]


class RuleLoop:
    """All backwards of the graphs with the tables of ``frozen``."""

    def __init__(self, frozen: FrozenGraph) -> None:
        spec, rules = frozen.spec, rules_of(frozen)
        widths = [len(node.input_metadata) for node in frozen.nodes]
        first = list(accumulate(widths, initial=0))
        captures: dict[int, list[tuple[int, int]]] = {}
        for number, (at, input_nr) in enumerate(spec.captures):
            captures.setdefault(at, []).append((input_nr, number))
        self._count = first[-1]
        self._seeds = [first[at] + input_nr for at, input_nr in spec.seeds]
        self._steps = [
            _Step(
                at,
                slice(first[at], first[at + 1]),
                [None] * widths[at],
                rules[at],
                tuple([first[e[0]] + e[1] for e in spec.nodes[at].edges if e is not None]),
                tuple(captures.get(at, ())),
            )
            for at in spec.order
            if frozen.runs[at]
        ]
        #: The captures of Nodes that do not run: what has flowed there in the end.
        self._sinks = [
            (first[at] + input_nr, number)
            for number, (at, input_nr) in enumerate(spec.captures)
            if not frozen.runs[at]
        ]

    def run(self, frozen: FrozenGraph, times: list[float] | None, run_node: RunNode) -> list[Any]:
        """The captured gradients.

        Args:
            frozen: the graph.
            times: gets when each rule began and ended (``perf_counter``).
            run_node: runs a Node that has no rule.
        """
        nodes, keep_graph = frozen.nodes, frozen.keep_graph
        slots: list[Any] = [None] * self._count
        #: Those whose gradient is a sum made here, which may be added to in place.
        sums: set[int] = set()

        def add(slot: int, grad: Any) -> None:
            before = slots[slot]
            if before is None:
                slots[slot] = grad
            elif slot in sums:
                before += grad
            else:
                sums.add(slot)
                slots[slot] = np.asarray(before + grad)

        for slot, grad in zip(self._seeds, frozen.seeds, strict=True):
            if grad is not None:
                add(slot, grad)
        results: list[Any] = [None] * len(frozen.spec.captures)
        grads: Any = None
        outputs: Any = None
        started = 0.0
        for at, inputs, nothing, rule, targets, captures in self._steps:
            grads = slots[inputs]
            slots[inputs] = nothing
            for input_nr, number in captures:
                results[number] = grads[input_nr]
            if times is not None:
                started = perf_counter()
            if rule is not None:
                try:
                    outputs = rule((nodes[at], None), grads, keep_graph, None)
                except Exception as error:
                    node, expected = nodes[at], expected_of(frozen, at)
                    name = frozen.spec.nodes[at].name
                    add_notes(error, name, node.input_metadata, expected, node.takes_undefined)
                    raise
            if outputs is None:
                outputs = run_node(frozen, at, grads)
            if times is not None:
                times += (started, perf_counter())
            for slot, grad in zip(targets, outputs, strict=True):
                if grad is None:
                    continue
                if slots[slot] is None:
                    slots[slot] = grad
                else:
                    add(slot, grad)
            # A rule may change an array in place if nobody else holds it.
            grads = outputs = grad = None
        for slot, number in self._sinks:
            results[number], slots[slot] = slots[slot], None
        return results
