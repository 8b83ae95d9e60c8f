"""FormRules: source for each form of Node, for graphs with many that are alike.

The source of a Node takes memory and time. But the Nodes of a large graph are mostly of a few
forms: the same operator, shapes, dtypes and attributes. Each form is written out once, as a graph
of one Node: for a graph that is written out as a whole (:mod:`mpgrad.engine.compiled`), and for
the steps of one that is not (:mod:`mpgrad.engine.graph_steps`).
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from mpgrad.autograd.freezing.frozen_graph import FrozenGraph, expected_of
from mpgrad.base.generated_code import compiled, forget
from mpgrad.engine.graph_source import GraphSource, SharedRule
from mpgrad.recording.dispatch.operator_node import OperatorNode
from mpgrad.recording.graph.node import InputMetadata
from mpgrad.recording.graph.registry import OPERATORS
from mpgrad.scheduler.graph_spec import NodeSpec

#: The forms that are kept written out; all are forgotten when there are more.
FORMS_MAX = 512
#: The Nodes of a graph that must have a form, for which it is written out.
NODES_MIN = 16
#: The same in a graph that may not come again. To write a form out takes as long as its rule saves
#: for so many Nodes.
NODES_MIN_ONCE = 200

_shared: dict[Any, SharedRule] = {}


class _Form:
    """A form of Nodes in one graph."""

    __slots__ = ("count", "form", "rule")

    def __init__(self, form: Any) -> None:
        #: None: Nodes that have none.
        self.form = form
        self.count = 0
        self.rule: SharedRule | None = None


class FormRules:
    """The functions of those forms that many Nodes of a graph have.

    Args:
        frozen: the graph.
        comes_again: whether all its Nodes are counted first; else a form has a function from the
            moment on that it has come often, or if it has one already.
    """

    def __init__(self, frozen: FrozenGraph, *, comes_again: bool) -> None:
        self._frozen, self._comes_again = frozen, comes_again
        self._least: float = NODES_MIN if comes_again else NODES_MIN_ONCE
        self._looks_max = len(frozen.nodes) if comes_again else FORMS_MAX
        self._by_look: dict[Any, _Form] = {}
        self._by_form: dict[Any, _Form] = {}
        #: By ``input_info``: the last Node with a rule, what its consumers expect, and the rule.
        self._last: dict[int, tuple[Any, Sequence[InputMetadata | None], SharedRule]] = {}
        if comes_again:
            if len(frozen.nodes) >= self._least:
                self.all()
            self._least = math.inf

    def all(self) -> list[SharedRule | None]:
        """For each Node the function of its form; None if it has none."""
        return [
            self.of(at, expected_of(self._frozen, at)) if runs else None
            for at, runs in enumerate(self._frozen.runs)
        ]

    def of(self, at: int, expected: Sequence[InputMetadata | None]) -> SharedRule | None:
        """The function of a Node's form; None if it has none.

        Args:
            at: the Node.
            expected: what the consumers of its outputs expect.
        """
        node = self._frozen.nodes[at]
        if not isinstance(node, OperatorNode):
            return None
        last = self._last.get(id(node.input_info))
        if last is not None:
            before, wanted, rule = last
            if (
                node.input_metadata is before.input_metadata
                and type(node) is type(before)
                and expected == wanted
                and rule.fits((node,))
            ):
                return rule
        found = self._rule(node, at, expected)
        if found is not None and found.fits((node,)):
            self._last[id(node.input_info)] = node, expected, found
            return found
        return None

    def _rule(
        self, node: OperatorNode, at: int, expected: Sequence[InputMetadata | None]
    ) -> SharedRule | None:
        look = _look(node, expected)
        found = self._by_look.get(look)
        if found is None:
            if len(self._by_look) >= self._looks_max:
                return None
            form = None if look is None else _form(node, expected)
            found = self._by_look[look] = self._by_form.setdefault(form, _Form(form))
        if found.rule is None and found.form is not None:
            found.count += 1
            if found.count >= self._least:
                found.rule = _shared_rule(found.form, self._frozen, at)
            elif found.count == 1 and not self._comes_again:
                found.rule = _shared.get(found.form)
        return found.rule


def _look(node: OperatorNode, expected: Sequence[InputMetadata | None]) -> Any:
    """What is equal for Nodes of one form, and takes a quarter of the time of the form; None for a
    Node that has none.

    Nodes that are alike share the objects that describe them, which live as long as the graph.
    """
    inputs = node.operator.inputs
    plain = [
        type(value) if type(value) in _NUMBERS and name in inputs else value
        for name, value in node.plain.items()
    ]
    look = (
        type(node),
        id(node.input_metadata),
        id(node.input_info),
        *map(id, expected),
        len(plain),
        *plain,
        *(node._saved or ()),
    )
    try:
        hash(look)
    except TypeError:  # an attribute that can be changed
        return None
    return look


#: Operands that are no part of a form: only their types are.
_NUMBERS = frozenset({int, float})


def _form(node: Any, expected: Sequence[InputMetadata | None]) -> Any:
    """All that its source depends on; None for a Node that has none."""
    if not isinstance(node, OperatorNode) or node.operator.name not in OPERATORS:
        return None
    inputs = node.operator.inputs
    plain = [
        (name, type(value) if name in inputs and type(value) in _NUMBERS else (value,))
        for name, value in node.plain.items()
    ]
    form = type(node), node.input_info, node.input_metadata, tuple(expected), tuple(plain)
    try:
        hash(form)
    except TypeError:  # an attribute that can be changed
        return None
    return (*form, tuple(node._saved or ()))


def _shared_rule(form: Any, frozen: FrozenGraph, at: int) -> SharedRule:
    with suppress(KeyError):  # another thread may clear them at any time
        return _shared[form]
    if len(_shared) >= FORMS_MAX:
        _shared.clear()
    source = _NodeSource(_graph_of_one(frozen, at))  # type: ignore[arg-type]
    rule = _shared[form] = source.rule(frozen.spec.nodes[at])
    return rule


def _begin_anew_in_child() -> None:
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
