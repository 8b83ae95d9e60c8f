"""SignatureRules: source for each signature of Nodes, for graphs with many that are alike.

The source of a Node takes memory and time. But the Nodes of a large graph mostly have a few
signatures: the same operator, shapes, dtypes and attributes. Each one is written out once, as a
graph of one Node: for a graph that is written out as a whole (:mod:`mpgrad.engine.compiled`), and
for the steps of one that is not (:mod:`mpgrad.engine.graph_steps`).
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph, expected_of
from mpgrad.base.generated_code import compiled, forget
from mpgrad.engine.graph_source import GraphSource, SharedRule
from mpgrad.recording.dispatch.operator_node import OperatorNode
from mpgrad.recording.graph.node import InputMetadata
from mpgrad.recording.graph.registry import OPERATORS
from mpgrad.scheduler.graph_spec import NodeSpec

#: The signatures that are kept written out; all are forgotten when there are more.
SIGNATURES_MAX = 512
#: The Nodes of a graph that must have a signature, for which it is written out.
NODES_MIN = 16
#: The same in a graph that is not cached. To write a signature out takes as long as its rule saves
#: for so many Nodes.
NODES_MIN_ONCE = 200

_shared: dict[Any, SharedRule] = {}


class _Signature:
    """A signature of Nodes in one graph."""

    __slots__ = ("count", "rule", "signature")

    def __init__(self, signature: Any) -> None:
        #: None: Nodes that have none.
        self.signature = signature
        self.count = 0
        self.rule: SharedRule | None = None


class SignatureRules:
    """The functions of those signatures that many Nodes of a graph have.

    Args:
        frozen: the graph.
        is_cached: whether all its Nodes are counted first; else a signature has a function from the
            moment on that it was met often, or if it has one already.
    """

    def __init__(self, frozen: FrozenGraph, *, is_cached: bool) -> None:
        self._frozen, self._is_cached = frozen, is_cached
        self._least: float = NODES_MIN if is_cached else NODES_MIN_ONCE
        self._keys_max = len(frozen.nodes) if is_cached else SIGNATURES_MAX
        self._by_key: dict[Any, _Signature] = {}
        self._by_signature: dict[Any, _Signature] = {}
        #: By ``input_info``: the last Node with a rule, what its consumers expect, and the rule.
        self._last: dict[int, tuple[Any, Sequence[InputMetadata | None], SharedRule]] = {}
        if is_cached:
            if len(frozen.nodes) >= self._least:
                self.all()
            self._least = math.inf

    def all(self) -> list[SharedRule | None]:
        """For each Node the function of its signature; None if it has none."""
        return [
            self.of(at, expected_of(self._frozen, at)) if runs else None
            for at, runs in enumerate(self._frozen.runs)
        ]

    def of(self, at: int, expected: Sequence[InputMetadata | None]) -> SharedRule | None:
        """The function of a Node's signature; None if it has none.

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
        key = _key(node, expected)
        found = self._by_key.get(key)
        if found is None:
            if len(self._by_key) >= self._keys_max:
                return None
            signature = None if key is None else _signature(node, expected)
            found = self._by_key[key] = self._by_signature.setdefault(
                signature, _Signature(signature)
            )
        if found.rule is None and found.signature is not None:
            found.count += 1
            if found.count >= self._least:
                found.rule = _shared_rule(found.signature, self._frozen, at)
            elif found.count == 1 and not self._is_cached:
                found.rule = _shared.get(found.signature)
        return found.rule


def _key(node: OperatorNode, expected: Sequence[InputMetadata | None]) -> Any:
    """What is equal for Nodes of one signature, and takes a quarter of its time; None for a Node
    that has none.

    Nodes that are alike share the objects that describe them, which live as long as the graph.
    """
    inputs = node.operator.inputs
    plain = [
        type(value) if type(value) in _NUMBERS and name in inputs else value
        for name, value in node.plain.items()
    ]
    key = (
        type(node),
        id(node.input_metadata),
        id(node.input_info),
        *map(id, expected),
        len(plain),
        *plain,
        *(node._saved or ()),
    )
    try:
        hash(key)
    except TypeError:  # an attribute that can be changed
        return None
    return key


#: Operands that are no part of a signature: only their types are.
_NUMBERS = frozenset({int, float})


def _signature(node: Any, expected: Sequence[InputMetadata | None]) -> Any:
    """All that its source depends on; None for a Node that has none."""
    if not isinstance(node, OperatorNode) or node.operator.name not in OPERATORS:
        return None
    inputs = node.operator.inputs
    plain = [
        (name, type(value) if name in inputs and type(value) in _NUMBERS else (value,))
        for name, value in node.plain.items()
    ]
    signature = type(node), node.input_info, node.input_metadata, tuple(expected), tuple(plain)
    try:
        hash(signature)
    except TypeError:  # an attribute that can be changed
        return None
    return (*signature, tuple(node._saved or ()))


def _shared_rule(signature: Any, frozen: FrozenGraph, at: int) -> SharedRule:
    with suppress(KeyError):  # another thread may clear them at any time
        return _shared[signature]
    if len(_shared) >= SIGNATURES_MAX:
        _shared.clear()
    source = _NodeSource(_graph_of_one(frozen, at))  # type: ignore[arg-type]
    rule = _shared[signature] = source.rule(frozen.spec.nodes[at])
    return rule


def _begin_anew_in_child() -> None:
    _shared.clear()


os.register_at_fork(after_in_child=_begin_anew_in_child)


class _NodeSource(GraphSource):
    """``def run(n0, seed0, ..., keeps, times)`` and ``def fits(nodes)`` for Nodes of one signature.

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
