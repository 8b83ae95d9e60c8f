"""GraphSteps: the Nodes of a graph as steps of the one loop over Nodes, for ``local``.

What the tables of the graph decide is looked up here: which rule a Node has, and where its
gradients flow. In a large graph the Nodes of one signature share a function
(:mod:`mpgrad.engine.node_rules`), and if it is cached, all is looked up once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TypeAlias

from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
from mpgrad.autograd.higher_order.recording import has_only_operators
from mpgrad.autograd.running import engine_slot
from mpgrad.autograd.running.hook_nodes import HooksBefore, rule_of
from mpgrad.autograd.running.node_loop import (
    JOINT,
    ONE,
    OTHER,
    PASSED,
    RULE,
    SEVERAL,
    NodeStep,
    Step,
)
from mpgrad.engine.graph_source import SharedRule
from mpgrad.engine.node_rules import SignatureRules
from mpgrad.recording.graph.anomaly import mode as anomaly
from mpgrad.recording.graph.node import InputMetadata
from mpgrad.wire.programs import passes_on_alone

#: ``rule_of(node, expected)``: the function of a Node's signature; None if it has none.
RuleOf: TypeAlias = Callable[[int, Sequence[InputMetadata | None]], SharedRule | None]


class GraphSteps:
    """The steps of graphs with the tables of ``frozen``.

    Args:
        frozen: the graph.
        shares_rules: whether Nodes of one signature share a function.
        is_cached: whether the steps with such functions are kept for later graphs.
    """

    def __init__(
        self, frozen: FrozenGraph, *, shares_rules: bool = False, is_cached: bool = False
    ) -> None:
        widths = [len(node.input_metadata) for node in frozen.nodes]
        #: For each Node the slot of its first input. Most graphs need no list of them.
        self.first: Sequence[int] = range(len(widths) + 1)
        if max(widths, default=0) > 1:
            self.first = list(accumulate(widths, initial=0))
        self._shares_rules = shares_rules
        self._kept: list[Step] | None = None
        #: By Node, the rules of these steps.
        self._rules: dict[int, SharedRule] = {}
        if is_cached:
            self._keep(frozen)

    def _keep(self, frozen: FrozenGraph) -> None:
        rules = SignatureRules(frozen, is_cached=True)

        def rule_of(at: int, expected: Sequence[InputMetadata | None]) -> SharedRule | None:
            rule = rules.of(at, expected)
            if rule is not None:
                self._rules[at] = rule
            return rule

        self._kept = [*self._by_signature(frozen, rule_of)]
        alike: dict[int, list[int]] = {}
        for at, rule in self._rules.items():
            alike.setdefault(id(rule), []).append(at)
        self._alike = [*alike.values()]

    def of(self, frozen: FrozenGraph) -> Iterable[Step]:
        """The Nodes of a graph that run, in order.

        A Node without a function is looked up when its turn comes: user code may change it.
        """
        if not self._shares_rules:
            return self._by_rule(frozen)
        if self._kept is not None and not has_only_operators(frozen):
            return self._one_by_one(frozen, self._kept)
        if self._kept is not None and self._fits(frozen):
            return self._kept
        return self._by_signature(frozen, SignatureRules(frozen, is_cached=False).of)

    def step(self, frozen: FrozenGraph, at: int, captures: Sequence[tuple[int, int]] = ()) -> Step:
        """A Node that runs by its rule."""
        node, spec, first = frozen.nodes[at], frozen.spec.nodes[at], self.first
        nodes = frozen.nodes
        outputs: list[InputMetadata | None] = []
        needs: list[bool] = []
        slots: list[int | None] = []
        for edge in spec.edges:
            if edge is None:
                outputs.append(None)
                needs.append(False)
                slots.append(None)
            else:
                to, input_nr = edge
                outputs.append(nodes[to].input_metadata[input_nr])
                needs.append(True)
                slots.append(first[to] + input_nr)
        inputs = node.input_metadata
        step = NodeStep(
            spec.name, inputs, outputs, tuple(needs), node.takes_undefined,
            node.passes_on and passes_on_alone(inputs, outputs),
            rule_of(node), None if frozen.keep_graph else node.release_saved,
        )  # fmt: skip
        # A hook may return NaN before a Node runs; the Node must not return it itself.
        if anomaly.checks_nan and not (
            isinstance(node, HooksBefore) or engine_slot.is_inside_rule()
        ):
            step.blamed = node.subject.name()
        start, end = first[at], first[at + 1]
        place = start if end - start == 1 else slice(start, end)
        return RULE, at, place, step, slots, captures

    def _by_rule(self, frozen: FrozenGraph) -> Iterator[Step]:
        runs, captures = frozen.runs, _captures_of(frozen)
        for at in frozen.spec.order:
            if runs[at]:
                yield self.step(frozen, at, captures.get(at, ()))

    def _by_signature(self, frozen: FrozenGraph, rule_of: RuleOf) -> Iterator[Step]:
        """The same, by the functions of Nodes' signatures."""
        nodes, specs, runs, first = frozen.nodes, frozen.spec.nodes, frozen.runs, self.first
        captures = _captures_of(frozen)
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
                yield OTHER, at, None, None, None, wanted
            elif end - start > 1:
                yield JOINT, at, slice(start, end), rule.run, _picks(rule, expected, slots), wanted
            elif not rule.computed:
                yield PASSED, at, start, None, slots, wanted
            elif len(slots) == 1:
                yield ONE, at, start, rule.run, slots[0], wanted
            else:
                yield SEVERAL, at, start, rule.run, _picks(rule, expected, slots), wanted

    def _fits(self, frozen: FrozenGraph) -> bool:
        """Whether the rules of the kept steps may run these Nodes."""
        nodes = frozen.nodes
        return all(self._rules[ats[0]].fits([nodes[at] for at in ats]) for ats in self._alike)

    def _one_by_one(self, frozen: FrozenGraph, kept: Sequence[Step]) -> Iterator[Step]:
        """The kept steps. Each Node is checked when its turn comes: user code may change it."""
        for step in kept:
            rule = self._rules.get(step[1])
            if rule is None or rule.fits((frozen.nodes[step[1]],)):
                yield step
            else:
                yield OTHER, step[1], None, None, None, step[5]


def _captures_of(frozen: FrozenGraph) -> dict[int, list[tuple[int, int]]]:
    """By Node that runs: its captured inputs with the numbers of the results."""
    captures: dict[int, list[tuple[int, int]]] = {}
    for number, (at, input_nr) in enumerate(frozen.spec.captures):
        if frozen.runs[at]:
            captures.setdefault(at, []).append((input_nr, number))
    return captures


def _picks(
    rule: SharedRule, expected: Sequence[InputMetadata | None], slots: Sequence[int]
) -> list[tuple[int, int]]:
    """For each gradient of a Node its slot, and which of the rule's results it is; -1: none, but
    what flows in."""
    computed = [*rule.computed]
    wanted = [nr for nr, meta in enumerate(expected) if meta is not None]
    numbers = [computed.index(nr) if nr in rule.computed else -1 for nr in wanted]
    return [*zip(slots, numbers, strict=True)]
