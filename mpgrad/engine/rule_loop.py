"""RuleLoop: the loop of :mod:`mpgrad.engine.local` over a large graph, by rules of Nodes' forms.

What the tables of the graph decide is looked up before a Node runs, for a graph that comes again
once: which rule it has, and where its gradients flow. What is called, and in which order, is the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from mpgrad.autograd.freezing.frozen_graph import FrozenGraph, expected_of
from mpgrad.autograd.higher_order.recording import has_only_operators
from mpgrad.autograd.running.validate_outputs import add_notes
from mpgrad.engine.graph_source import SharedRule
from mpgrad.engine.node_rules import FormRules
from mpgrad.graph.node import InputMetadata

#: ``run(frozen, at, gradients)``: the gradients that a Node without a rule passes on, or None, for
#: each input that needs one.
RunNode = Callable[[FrozenGraph, int, list[Any]], Sequence[Any]]
#: ``rule_of(node, expected)``: the function of a Node's form; None if it has none.
RuleOf = Callable[[int, Sequence[InputMetadata | None]], SharedRule | None]

#: What becomes of a Node's one input: it is the gradient of all its outputs; its rule gives the
#: gradient of one output; its rule gives several. Or its inputs are taken by ``RunNode``.
_PASSED, _ONE, _SEVERAL, _OTHER = range(4)

#: A Node that runs: one of these; the Node; its input's slot, or the slice of its inputs' slots;
#: the rule; the slot that the gradient flows into, or the slots, or per gradient the slot and the
#: number of the result (-1: it is passed on); captured inputs, and the numbers of these captures. A
#: slot is the place of what flows into one input of a Node.
_Step: TypeAlias = tuple[int, int, Any, Any, Any, Sequence[tuple[int, int]]]


class RuleLoop:
    """The backwards of graphs with the tables of ``frozen``.

    Args:
        frozen: the graph.
        comes_again: whether the steps are kept for later graphs.
    """

    def __init__(self, frozen: FrozenGraph, *, comes_again: bool) -> None:
        widths = [len(node.input_metadata) for node in frozen.nodes]
        #: For each Node the slot of its first input. Most graphs need no list of them.
        self._first: Sequence[int] = range(len(widths) + 1)
        if max(widths) > 1:
            self._first = list(accumulate(widths, initial=0))
        self._kept: list[_Step] | None = None
        #: By Node, the rules of these steps.
        self._rules: dict[int, SharedRule] = {}
        if comes_again:
            self._keep(frozen)

    def _keep(self, frozen: FrozenGraph) -> None:
        rules = FormRules(frozen, comes_again=True)

        def rule_of(at: int, expected: Sequence[InputMetadata | None]) -> SharedRule | None:
            rule = rules.of(at, expected)
            if rule is not None:
                self._rules[at] = rule
            return rule

        self._kept = [*self._steps(frozen, rule_of)]
        alike: dict[int, list[int]] = {}
        for at, rule in self._rules.items():
            alike.setdefault(id(rule), []).append(at)
        self._alike = [*alike.values()]

    def _steps(self, frozen: FrozenGraph, rule_of: RuleOf) -> Iterator[_Step]:
        """The Nodes that run, in order."""
        nodes, specs, runs, first = frozen.nodes, frozen.spec.nodes, frozen.runs, self._first
        captures: dict[int, list[tuple[int, int]]] = {}
        for number, (at, input_nr) in enumerate(frozen.spec.captures):
            if runs[at]:
                captures.setdefault(at, []).append((input_nr, number))
        for at in frozen.spec.order:
            if not runs[at]:
                continue
            slots: list[int] = []
            expected: list[InputMetadata | None] = []
            for edge in specs[at].edges:
                if edge is None:
                    expected.append(None)
                else:
                    to, input_nr = edge
                    slots.append(first[to] + input_nr)
                    expected.append(nodes[to].input_metadata[input_nr])
            start, end = first[at], first[at + 1]
            rule = rule_of(at, expected)
            wanted = captures.get(at, ()) if captures else ()
            if rule is None:
                yield _OTHER, at, slice(start, end), None, slots, wanted
            elif end - start > 1:
                picks = _picks(rule, expected, slots)
                yield _OTHER, at, slice(start, end), rule.run, picks, wanted
            elif not rule.computed:
                yield _PASSED, at, start, None, slots, wanted
            elif len(slots) == 1:
                yield _ONE, at, start, rule.run, slots[0], wanted
            else:
                yield _SEVERAL, at, start, rule.run, _picks(rule, expected, slots), wanted

    def _fits(self, frozen: FrozenGraph) -> bool:
        """Whether the rules of the kept steps may run these Nodes."""
        nodes = frozen.nodes
        return all(self._rules[ats[0]].fits([nodes[at] for at in ats]) for ats in self._alike)

    def _one_by_one(self, frozen: FrozenGraph, kept: Sequence[_Step]) -> Iterator[_Step]:
        """The kept steps. Each Node is checked when its turn comes: user code may change it."""
        first = self._first
        for step in kept:
            at = step[1]
            rule = self._rules.get(at)
            if rule is None or rule.fits((frozen.nodes[at],)):
                yield step
            else:
                edges = frozen.spec.nodes[at].edges
                slots = [first[edge[0]] + edge[1] for edge in edges if edge is not None]
                yield _OTHER, at, slice(first[at], first[at + 1]), None, slots, step[5]

    def run(self, frozen: FrozenGraph, times: list[float] | None, run_node: RunNode) -> list[Any]:
        """The captured gradients.

        Args:
            frozen: the graph.
            times: gets when each rule began and ended (``perf_counter``).
            run_node: runs a Node that has no rule.
        """
        steps: Iterable[_Step]
        if self._kept is not None and not has_only_operators(frozen):
            steps = self._one_by_one(frozen, self._kept)
        elif self._kept is not None and self._fits(frozen):
            steps = self._kept
        else:
            steps = self._steps(frozen, FormRules(frozen, comes_again=False).of)
        running = _Backward(frozen, self._first, times, run_node)
        running.run(steps)
        return running.results


class _Backward:
    """One backward.

    Args:
        frozen: the graph.
        first: for each Node the slot of its first input.
        times: as in ``RuleLoop.run``.
        run_node: likewise.

    Attributes:
        results: the captured gradients.
    """

    def __init__(
        self,
        frozen: FrozenGraph,
        first: Sequence[int],
        times: list[float] | None,
        run_node: RunNode,
    ) -> None:
        self._frozen, self._first, self._times, self._run_node = frozen, first, times, run_node
        self._slots: list[Any] = [None] * first[-1]
        #: Those whose gradient is a sum made here, which may be added to in place.
        self._sums: set[int] = set()
        self.results: list[Any] = [None] * len(frozen.spec.captures)

    def run(self, steps: Iterable[_Step]) -> None:
        """Run the Nodes, from the seeds to the captures."""
        frozen, first = self._frozen, self._first
        for (at, input_nr), seed in zip(frozen.spec.seeds, frozen.seeds, strict=True):
            self._flow(first[at] + input_nr, seed)
        self._run(steps)
        # The captures of Nodes that do not run: what has flowed there in the end.
        for number, (at, input_nr) in enumerate(frozen.spec.captures):
            if not frozen.runs[at]:
                slot = first[at] + input_nr
                self.results[number], self._slots[slot] = self._slots[slot], None

    def _run(self, steps: Iterable[_Step]) -> None:
        slots, times, nodes = self._slots, self._times, self._frozen.nodes
        results, flow, keeps = self.results, self._flow, self._frozen.keep_graph
        grad: Any = None
        found: Any = None
        for step in steps:
            kind, at, place, run, targets, captures = step
            if kind == _OTHER or slots[place] is None:
                self._run_other(step)
                continue
            grad, slots[place] = slots[place], None
            for _, number in captures:
                results[number] = grad
            if kind == _PASSED:
                if times is not None:
                    times += (perf_counter(), perf_counter())
                for slot in targets:
                    if slots[slot] is None:
                        slots[slot] = grad
                    else:
                        flow(slot, grad)
            else:
                try:
                    found = run(nodes[at], grad, keeps, times)
                except Exception as error:
                    self._note(error, at)
                    raise
                if kind == _ONE and slots[targets] is None:
                    slots[targets] = found
                elif kind == _ONE:
                    flow(targets, found)
                else:
                    self._spread(found, grad, targets)
            # A rule may change an array in place if nobody else holds it.
            grad = found = None

    def _run_other(self, step: _Step) -> None:
        """Run a Node with several inputs, or without a rule, or with undefined gradients."""
        kind, at, place, run, targets, captures = step
        slots = self._slots
        if kind != _OTHER:
            place = slice(place, place + 1)
        grads = slots[place]
        slots[place] = [None] * len(grads)
        for input_nr, number in captures:
            self.results[number] = grads[input_nr]
        if run is not None and not [1 for grad in grads if grad is None]:
            try:
                found = run(self._frozen.nodes[at], *grads, self._frozen.keep_graph, self._times)
            except Exception as error:
                self._note(error, at)
                raise
            self._spread(found, grads[0], targets)
            return
        if run is not None:
            edges = self._frozen.spec.nodes[at].edges
            targets = [self._first[edge[0]] + edge[1] for edge in edges if edge is not None]
        started = 0.0 if self._times is None else perf_counter()
        outputs = self._run_node(self._frozen, at, grads)
        if self._times is not None:
            self._times += (started, perf_counter())
        for slot, grad in zip(targets, outputs, strict=True):
            self._flow(slot, grad)

    def _spread(self, found: Any, grad: Any, targets: Sequence[tuple[int, int]]) -> None:
        """The results of a rule, or ``grad``, flow on."""
        several = found if found.__class__ is tuple else (found,)
        for slot, number in targets:
            self._flow(slot, grad if number < 0 else several[number])

    def _flow(self, slot: int, grad: Any) -> None:
        """One more contribution to an input."""
        before = self._slots[slot]
        if before is None:
            self._slots[slot] = grad
        elif grad is None:
            return
        elif slot in self._sums:
            before += grad
        else:
            self._sums.add(slot)
            self._slots[slot] = np.asarray(before + grad)

    def _note(self, error: Exception, at: int) -> None:
        """Add to ``error`` the Node whose rule raised it."""
        node, expected = self._frozen.nodes[at], expected_of(self._frozen, at)
        name = self._frozen.spec.nodes[at].name
        add_notes(error, name, node.input_metadata, expected, node.takes_undefined)


def _picks(
    rule: SharedRule, expected: Sequence[InputMetadata | None], slots: Sequence[int]
) -> list[tuple[int, int]]:
    """For each gradient of a Node its slot, and which of the rule's results it is; -1: none, but
    what flows in."""
    computed = [*rule.computed]
    wanted = [nr for nr, meta in enumerate(expected) if meta is not None]
    numbers = [computed.index(nr) if nr in rule.computed else -1 for nr in wanted]
    return [*zip(slots, numbers, strict=True)]
