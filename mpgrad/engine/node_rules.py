"""rules_of(), shared_rules(): source for each form of Node, for graphs with many that are alike.

The source of a Node takes memory and time. But the Nodes of a large graph are mostly of a few
forms: the same operator, shapes, dtypes and attributes. Each form is written out once, as a graph
of one Node: for the loop over a graph that is not written out as a whole (``rules_of``), and for
one that is (``shared_rules``; :mod:`mpgrad.engine.compiled`).
"""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from mpgrad.autograd.freezing.frozen_graph import FrozenGraph
from mpgrad.base.generated_code import compiled, forget
from mpgrad.dispatch.operator_node import OperatorNode
from mpgrad.engine.graph_source import GraphSource, SharedRule, expected_of
from mpgrad.graph.node import InputMetadata
from mpgrad.graph.registry import OPERATORS
from mpgrad.scheduler.graph_spec import NodeSpec

#: The forms that are kept written out; all are forgotten when there are more.
FORMS_MAX = 512
#: The Nodes of a graph that must have a form, for which it is written out.
NODES_MIN = 16

#: ``rule((node, None), gradients, keep_graph, None)`` gives the gradients of those inputs that need
#: one, or None if the Node is not of this form after all.
Rule: TypeAlias = Callable[[Any, Sequence[Any], bool, None], "list[Any] | None"]

_rules: dict[Any, Rule] = {}
#: None: it only passes its gradient on, which takes no function.
_shared: dict[Any, SharedRule | None] = {}


def rules_of(frozen: FrozenGraph) -> list[Rule | None]:
    """For each Node the rule of its form; None if it has none."""
    return [
        None if form is None else _rule(form, frozen, at)
        for at, form in enumerate(_frequent_forms(frozen))
    ]


def shared_rules(frozen: FrozenGraph) -> list[SharedRule | None]:
    """For each Node the function of its form; None if it has none."""
    found = []
    for at, form in enumerate(_frequent_forms(frozen)):
        rule = None if form is None else _shared_rule(form, frozen, at)
        found.append(rule if rule is not None and rule.fits([frozen.nodes[at]]) else None)
    return found


def _frequent_forms(frozen: FrozenGraph) -> list[Any]:
    """For each Node its form, if enough others have it; else None."""
    if len(frozen.nodes) < NODES_MIN:
        return [None] * len(frozen.nodes)
    forms = [
        _form(node, expected_of(frozen, at)) if runs else None
        for at, (node, runs) in enumerate(zip(frozen.nodes, frozen.runs, strict=True))
    ]
    counts = Counter(forms)
    return [None if counts[form] < NODES_MIN else form for form in forms]


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


def _shared_rule(form: Any, frozen: FrozenGraph, at: int) -> SharedRule | None:
    with suppress(KeyError):  # another thread may clear them at any time
        return _shared[form]
    if len(_shared) >= FORMS_MAX:
        _shared.clear()
    source = _NodeSource(_graph_of_one(frozen, at))  # type: ignore[arg-type]
    rule = _shared[form] = source.rule(frozen.spec.nodes[at]) if source.computed else None
    return rule


def _forget_all() -> None:
    for rule in _rules.values():
        forget(rule.__code__.co_filename[1:-1])  # type: ignore[attr-defined]
    _rules.clear()


def _begin_anew_in_child() -> None:
    _rules.clear()
    _shared.clear()


os.register_at_fork(after_in_child=_begin_anew_in_child)


class _NodeSource(GraphSource):
    """``def run(n0, seed0, ..., keeps, times)`` and ``def fits(nodes)`` for the Nodes of a form.

    Attributes:
        computed: as in a SharedRule, of the gradients that are wanted.
    """

    computed: dict[int, bool]

    def _write_head(self, seeds: Sequence[str]) -> None:
        self._write(f"def run(n0, {', '.join(seeds)}, keeps, times):")
        self._indent = "    "

    def _write_end(self, captured: Sequence[str]) -> None:
        self.computed = {
            nr: name in self._optional for nr, name in enumerate(captured) if name != "seed0"
        }
        self._write(f"return {', '.join([captured[nr] for nr in self.computed])}")
        self._indent = ""
        self._write("def fits(nodes):")
        self._write("    for n0 in nodes:")
        for check in self.misfits():
            self._write(f"        if {check}: return False")
        self._write("    return True")

    def rule(self, spec: NodeSpec) -> SharedRule:
        """The function, for Nodes with these edges."""
        wanted = [nr for nr, edge in enumerate(spec.edges) if edge is not None]
        text = "\n".join(self.lines) + "\n"
        place = f"rule of {spec.name} {id(self.known):#x}"
        run = compiled("run", text, self.known, place)
        weakref.finalize(run, forget, place)
        return SharedRule(
            run,
            self.known["fits"],
            {wanted[nr]: is_optional for nr, is_optional in self.computed.items()},
            [wanted[nr] for nr in range(len(wanted)) if nr not in self.computed],
            text,
        )


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
