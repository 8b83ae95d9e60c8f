"""rules_of(): source for each form of Node, for a large graph that comes again.

A graph of many thousand Nodes is not written out as a whole (:mod:`mpgrad.engine.compiled`): source
takes memory and time for each line. But its Nodes are mostly of a few forms: the same operator,
shapes, dtypes and attributes. Each form is written out once, as a graph of one Node.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from mpgrad.autograd.freezing.frozen_graph import FrozenGraph
from mpgrad.base.generated_code import compiled, forget
from mpgrad.dispatch.operator_node import OperatorNode
from mpgrad.engine.graph_source import GraphSource, expected_of
from mpgrad.graph.node import InputMetadata
from mpgrad.graph.registry import OPERATORS

#: The forms that are kept written out; all are forgotten when there are more.
FORMS_MAX = 512
#: The Nodes of a graph that must have a form, for which it is written out.
NODES_MIN = 16

#: ``rule((node, None), gradients, keep_graph, None)`` gives the gradients of those inputs that need
#: one, or None if the Node is not of this form after all.
Rule: TypeAlias = Callable[[Any, Sequence[Any], bool, None], "list[Any] | None"]

_rules: dict[Any, Rule] = {}


def rules_of(frozen: FrozenGraph) -> list[Rule | None]:
    """For each Node the rule of its form; None if it has none."""
    forms = [
        _form(node, expected_of(frozen, at)) if runs else None
        for at, (node, runs) in enumerate(zip(frozen.nodes, frozen.runs, strict=True))
    ]
    counts = Counter(forms)
    return [
        None if form is None or counts[form] < NODES_MIN else _rule(form, frozen, at)
        for at, form in enumerate(forms)
    ]


def _form(node: Any, expected: Sequence[InputMetadata | None]) -> Any:
    """All that its source depends on; None for a Node that has none."""
    if not isinstance(node, OperatorNode) or node.operator.name not in OPERATORS:
        return None
    inputs = node.operator.inputs
    plain = [
        (name, type(value) if name in inputs and type(value) in (int, float) else (value,))
        for name, value in node.plain.items()
    ]
    form = type(node), node.input_info, node.input_metadata, tuple(expected), tuple(plain)
    try:
        hash(form)
    except TypeError:  # an attribute that can be changed
        return None
    return (*form, tuple(node._saved or ()))


def _rule(form: Any, frozen: FrozenGraph, at: int) -> Rule:
    found = _rules.get(form)
    if found is None:
        if len(_rules) >= FORMS_MAX:
            _forget_all()
        name = frozen.spec.nodes[at].name
        source = GraphSource(_graph_of_one(frozen, at))  # type: ignore[arg-type]
        text = "\n".join(source.lines) + "\n"
        found = compiled("backward", text, source.known, f"rule {len(_rules)} of {name}")
        _rules[form] = found
    return found


def _forget_all() -> None:
    for rule in _rules.values():
        forget(rule.__code__.co_filename[1:-1])  # type: ignore[attr-defined]
    _rules.clear()


os.register_at_fork(after_in_child=_rules.clear)


# ---------------------------------------------------------------------- a graph of one Node


class _Sink(NamedTuple):
    """What takes the gradients of a Node."""

    input_metadata: tuple[InputMetadata, ...]


class _Tables(NamedTuple):
    """As far as GraphSource asks, a GraphSpec, a NodeSpec and a FrozenGraph."""

    nodes: Any = ()
    seeds: Any = ()
    captures: Any = ()
    order: Any = ()
    runs: Any = ()
    spec: Any = None
    name: str = ""
    edges: Any = ()


def _graph_of_one(frozen: FrozenGraph, at: int) -> _Tables:
    node = frozen.nodes[at]
    wanted = [meta for meta in expected_of(frozen, at) if meta is not None]
    numbers = iter(range(len(wanted)))
    edges = [None if edge is None else (1, next(numbers)) for edge in frozen.spec.nodes[at].edges]
    seeds = [(0, nr) for nr in range(len(node.input_metadata))]
    captures = [(1, nr) for nr in range(len(wanted))]
    specs = (_Tables(name=frozen.spec.nodes[at].name, edges=edges), _Tables())
    spec = _Tables(nodes=specs, seeds=seeds, captures=captures, order=(0, 1))
    sink = _Sink(tuple(wanted))
    return _Tables(nodes=(node, sink), runs=(True, False), spec=spec, seeds=seeds)
