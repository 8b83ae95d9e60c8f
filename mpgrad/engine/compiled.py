"""compiled_graph(): a graph that comes again as straight-line source, which ``local`` runs.

Nothing is walked, looked up or dispatched in a step: each rule's formula stands in its place (small
ones as calls of NumPy: :mod:`mpgrad.engine.lowered_formulas`), a sum is an addition where its next
part arrives, and a gradient that a Node passes on is the same name. What is called, and in which
order, is what the loop in :mod:`mpgrad.engine.local` would call, so the bits are the same. Whatever
could differ in the next step (saved tensors and their versions, attributes, whether a result is
contiguous) is read or checked there.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from mpgrad.autograd.freezing.frozen_graph import FrozenGraph
from mpgrad.autograd.freezing.recurring_graphs import Remembered
from mpgrad.autograd.running.validate_outputs import add_notes, described, validate_output
from mpgrad.backends.blockwise import WHOLE_BYTES
from mpgrad.backends.column_parts import count_parts
from mpgrad.base.generated_code import compiled, forget, listed
from mpgrad.dispatch.operator_call import cpu
from mpgrad.dispatch.operator_node import OperatorNode
from mpgrad.engine.lowered_formulas import LoweredFormulas
from mpgrad.graph.node import InputMetadata
from mpgrad.graph.registry import OPERATORS

#: Nodes of a graph that is compiled at most: source takes memory and time for each of them.
NODES_MAX = 1000
#: Nodes of all graphs that are kept as source; what was compiled first goes first.
KEPT_NODES_MAX = 20_000


def compiled_graph(frozen: FrozenGraph) -> Compiled | str:
    """What runs graphs with these tables, or why there is no such thing."""
    if len(frozen.nodes) > NODES_MAX:
        return f"it has more than {NODES_MAX} Nodes"
    if not any(frozen.runs):
        return "no Node runs"
    for node, runs in zip(frozen.nodes, frozen.runs, strict=True):
        if runs and not (isinstance(node, OperatorNode) and node.operator.name in OPERATORS):
            # A Function, or the derivative of an operator, may give no gradient at all.
            return f"{node.label} is no operator's Node"
    return Compiled(frozen)


def source_of(frozen: FrozenGraph) -> str:
    """The source of such a graph, or why it has none; for people to read."""
    if frozen.remembered is None:
        return "not compiled: it has hooks, packed tensors or Nodes that are not known to recur"
    made = compiled_graph(frozen)
    return f"not compiled: {made}" if isinstance(made, str) else made.source


class Kept:
    """The graphs that are kept as source. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._programs: deque[tuple[weakref.ref[Remembered], int]] = deque()

    def add(self, known: Remembered, frozen: FrozenGraph) -> Compiled | str:
        """Compile a graph for all that have its tables."""
        known.program = compiled_graph(frozen)
        with self._lock:
            if isinstance(known.program, Compiled):
                self._programs.append((weakref.ref(known), len(frozen.nodes)))
            while self.count()[1] > KEPT_NODES_MAX:
                dropped = self._programs.popleft()[0]()
                if dropped is not None:
                    dropped.program = None
        return known.program

    def count(self) -> tuple[int, int]:
        """How many graphs, and how many Nodes they have."""
        alive = [nodes for known, nodes in list(self._programs) if known() is not None]
        return len(alive), sum(alive)


kept = Kept()


def _begin_anew_in_child() -> None:
    # A thread that does not exist in the child may have held the lock.
    global kept
    kept = Kept()


os.register_at_fork(after_in_child=_begin_anew_in_child)


class Compiled:
    """A graph as source, and the function made of it.

    Args:
        frozen: one like the ones that it will run: all Nodes that run are operators'.
    """

    def __init__(self, frozen: FrozenGraph) -> None:
        #: What the inputs of forward looked like; compared, for the tables do not say it.
        self._looks = [_look(node) for node in frozen.nodes]
        source = _Source(frozen)
        self.source = "\n".join(source.lines) + "\n"
        #: For each line of it the Node that it belongs to.
        self._node_at = source.nodes
        place = f"backward {id(self):#x} of {frozen.nodes[0].name()}"
        self._backward = compiled("backward", self.source, source.known, place)
        weakref.finalize(self, forget, place)

    def run(self, frozen: FrozenGraph, times: list[float] | None) -> list[Any] | None:
        """The gradients that are captured; None if this is another graph after all.

        Args:
            frozen: the graph.
            times: gets when each rule began and ended (``perf_counter``).
        """
        if [_look(node) for node in frozen.nodes] != self._looks:
            return None
        if [1 for seed in frozen.seeds if seed is None]:
            return None
        try:
            found: list[Any] | None = self._backward(
                frozen.nodes, frozen.seeds, frozen.keep_graph, times
            )
        except Exception as error:
            at = self._failed(error)
            node, name = frozen.nodes[at], frozen.spec.nodes[at].name
            add_notes(error, name, node.input_metadata, _expected(frozen, at), False)
            raise
        return found

    def _failed(self, error: Exception) -> int:
        """The Node whose line raised ``error``."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code is not self._backward.__code__:
            trace = trace.tb_next
        assert trace is not None
        return self._node_at[trace.tb_lineno - 1]


def _look(node: Any) -> Any:
    return node.input_info if isinstance(node, OperatorNode) else None


def _expected(frozen: FrozenGraph, at: int) -> list[InputMetadata | None]:
    """What the consumer of each output of a Node expects."""
    return [
        None if edge is None else frozen.nodes[edge[0]].input_metadata[edge[1]]
        for edge in frozen.spec.nodes[at].edges
    ]


# ---------------------------------------------------------------------- the source


class _Source:
    """``def backward(nodes, seeds, keeps, times)``, line by line.

    Attributes:
        lines: the source.
        nodes: for each line the Node that it belongs to.
        known: what its free names stand for.
    """

    def __init__(self, frozen: FrozenGraph) -> None:
        self._frozen = frozen
        self.lines: list[str] = []
        self.nodes: list[int] = []
        self.known: dict[str, Any] = {
            "asarray": np.asarray,
            "clock": perf_counter,
            "ndarray": np.ndarray,
            "validated": validate_output,
            "xp": cpu,
        }
        self.formulas = LoweredFormulas(self.known)
        self._at = frozen.spec.order[0]
        #: The name of what has flowed into each input so far, and which of them are sums made here.
        self._inflow: dict[tuple[int, int], str] = {}
        self._sums: set[tuple[int, int]] = set()
        #: For how many inputs and captures each name still stands.
        self._uses: dict[str, int] = {}
        wanted: dict[int, list[tuple[int, int]]] = {}
        for number, (at, input_nr) in enumerate(frozen.spec.captures):
            wanted.setdefault(at, []).append((input_nr, number))
        captured = ["None"] * len(frozen.spec.captures)
        seeds = [f"seed{number}" for number in range(len(frozen.spec.seeds))]
        self._write("def backward(nodes, seeds, keeps, times):", indent="")
        self._write(f"{listed([f'n{at}' for at in range(len(frozen.nodes))])} = nodes")
        self._write(f"{listed(seeds)} = seeds")
        for seed, target in zip(seeds, frozen.spec.seeds, strict=True):
            self._flow(seed, target)
        for self._at in frozen.spec.order:
            count = len(frozen.nodes[self._at].input_metadata)
            inputs = [self._inflow.pop((self._at, nr), None) for nr in range(count)]
            for input_nr, number in wanted.get(self._at, ()):
                name = inputs[input_nr]
                if name is not None:
                    captured[number] = name
                    self._uses[name] += 1
            if frozen.runs[self._at]:
                self._write_node(inputs)
            for name in inputs:
                if name is not None:
                    self._let_go(name)
        self._write(f"return [{', '.join(captured)}]")
        self._write_checks()

    def _write_checks(self) -> None:
        """Before anything is computed, or let go."""
        lines = [f"    if not ({check}): return None" for check in self.formulas.checks]
        self.lines[2:2] = lines
        self.nodes[2:2] = [self._at] * len(lines)

    def _write(self, line: str, indent: str = "    ") -> None:
        self.lines.append(indent + line)
        self.nodes.append(self._at)

    def _flow(self, name: str, target: tuple[int, int]) -> None:
        """One more contribution to an input."""
        before = self._inflow.get(target)
        if before is None:
            self._inflow[target] = name
            self._uses[name] = self._uses.get(name, 0) + 1
        elif target in self._sums:
            self._write(f"{before} += {name}")
        else:
            total = f"sum{target[0]}_{target[1]}"
            self._write(f"{total} = asarray({before} + {name})")
            self._inflow[target], self._uses[total] = total, 1
            self._sums.add(target)
            self._let_go(before)

    def _let_go(self, name: str) -> None:
        """It stands for one input less: nothing is kept longer than it is needed."""
        self._uses[name] -= 1
        if not self._uses[name]:
            self._write(f"del {name}")

    def _write_node(self, inputs: Sequence[str | None]) -> None:
        node: Any = self._frozen.nodes[self._at]
        expected = _expected(self._frozen, self._at)
        name = self._frozen.spec.nodes[self._at].name
        self._write(f"# {described(name, node.input_metadata, expected)}")
        self._write("if times is not None: times.append(clock())")
        results = self._write_rule(node, name, inputs, expected)
        self._write("if times is not None: times.append(clock())")
        for result, edge in zip(results, self._frozen.spec.nodes[self._at].edges, strict=True):
            if edge is not None:
                self._flow(result, edge)
        for result in results:
            if result and result not in self._uses:  # it is part of a sum by now
                self._write(f"del {result}")

    def _write_rule(
        self,
        node: OperatorNode,
        name: str,
        inputs: Sequence[str | None],
        expected: Sequence[InputMetadata | None],
    ) -> list[str]:
        """The names of the results; "" where none is wanted."""
        this, grad = f"n{self._at}", inputs[0] or ""
        results = [f"g{self._at}_{nr}" if meta else "" for nr, meta in enumerate(expected)]
        if node.passes_on:
            for nr, meta in enumerate(expected):
                if meta == node.input_metadata[0]:
                    results[nr] = grad
        computed = [nr for nr, result in enumerate(results) if result and result != grad]
        saves = any(kind in ("input", "result", "results") for _, kind, _ in _sources(node))
        if saves:
            self._write(f"saved = {this}._saved")
            self._write(f"if saved is None: {this}.saved  # raises")
        if are_plain_formulas(node, computed, expected):
            for nr in computed:
                results[nr] = self._write_formula(node, nr, grad, results[nr], expected[nr])
            computed = [nr for nr in computed if results[nr] != grad]
        else:
            grads = [
                name or f"xp.zeros({meta.shape}, {self._dtype(meta)})"
                for name, meta in zip(inputs, node.input_metadata, strict=True)
            ]
            needs = tuple([meta is not None for meta in expected])
            unpacked = listed([result or "_" for result in results])
            self._write(f"{unpacked} = {this}.apply(xp, [{', '.join(grads)}], {needs})")
        for nr in computed:
            meta, form = expected[nr], f"form{self._at}_{nr}"
            assert meta is not None
            self.known[form] = meta
            result = results[nr]
            # What ``validate_output`` would change is seen in one line.
            self._write(
                f"if not (type({result}) is ndarray and {result}.shape == {meta.shape} and "
                f"{result}.dtype is {self._dtype(meta)} and {result}.flags.c_contiguous):"
            )
            self._write(f"    {result} = validated({name!r}, {nr}, {result}, {form}, xp)")
        if saves:
            self._write(f"if saved and not keeps: {this}._saved = None")
            self._write("del saved")
        return results

    def _write_formula(
        self, node: OperatorNode, nr: int, grad: str, name: str, expected: InputMetadata | None
    ) -> str:
        """Write the formula of an input out, or its call; the name of the gradient."""
        assert expected is not None
        lowered = self.formulas.lines(node, self._at, nr, grad, expected)
        if lowered is None:
            self._write(f"{name} = {self._formula(node, nr, grad)}")
            return name
        for line in lowered[0]:
            self._write(line)
        return lowered[1]

    def _formula(self, node: OperatorNode, position: int, grad: str) -> str:
        """The call of the formula for one input."""
        operator, this = node.operator, f"n{self._at}"
        wanted = []
        for name in operator.asked_by(position):
            array, plain = f"saved[{name!r}].array({this})", f"{this}.plain[{name!r}]"
            if name == "grad":
                wanted.append(grad)
            elif name not in (*operator.inputs, "result"):
                wanted.append(plain)
            elif name == "result" or node.input_info[operator.inputs.index(name)] is not None:
                wanted.append(array)
            else:  # a tensor without gradient, or a number
                wanted.append(f"({array} if {name!r} in saved else {plain})")
        name = f"{operator.name}_{operator.inputs[position]}"
        self.known[name] = operator.derivatives[operator.inputs[position]]
        is_whole = wanted[:1] == [grad] and node.input_metadata[0].nbytes < WHOLE_BYTES
        if operator.elementwise and not is_whole:
            return f"xp.blockwise({', '.join([name, *wanted])})"
        return f"{name}({', '.join(['xp', *wanted])})"

    def _dtype(self, meta: InputMetadata) -> str:
        name = meta.dtype.name if meta.dtype.isnative else f"swapped_{meta.dtype.name}"
        self.known[name] = meta.dtype
        return name


def _sources(node: OperatorNode) -> Sequence[Any]:
    """What the Node saved in forward."""
    return node.operator.sources([info is not None for info in node.input_info])


def are_plain_formulas(
    node: OperatorNode, computed: Sequence[int], expected: Sequence[InputMetadata | None]
) -> bool:
    """Whether the gradients that are computed are one call of a formula each, and no more."""
    operator, meta = node.operator, node.input_metadata[0]
    if operator.variadic or operator.joint is not None or len(node.input_metadata) != 1:
        return False
    if operator.conjugates and meta.dtype.kind == "c":
        return False
    first = expected[0]
    if operator.in_columns is not None and first is not None:
        return count_parts(meta.shape, first.shape[-1]) == 1
    asked = {name for nr in computed for name in operator.asked_by(nr)}
    return not asked & {"grads", "needs", "index", "results"}
