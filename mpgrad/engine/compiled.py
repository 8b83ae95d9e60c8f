"""compile_graph(): a graph that comes again as straight-line source, which ``local`` runs.

Nothing is walked, looked up or dispatched in a step: each rule's formula stands in its place, a sum
is an addition where its next part arrives, and a gradient that a Node passes on is the same name.
What is called, and in which order, is what :func:`mpgrad.workers.executor.run_steps` would call, so
the bits are the same. Whatever could differ in the next step (saved tensors, their versions,
attributes, whether a result is contiguous) is read or checked there.

A graph of which anything is not known beforehand is not compiled: :func:`why_not` says why.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from mpgrad.autograd.frozen_graph import FrozenGraph
from mpgrad.autograd.nodes.node import InputMetadata, Node
from mpgrad.autograd.validate_outputs import validate_output
from mpgrad.backends.blockwise import WHOLE_BYTES
from mpgrad.backends.column_parts import count_parts
from mpgrad.dispatch import OperatorNode, cpu
from mpgrad.errors import add_note
from mpgrad.generated_code import compiled, forget
from mpgrad.ops.registry import Operator, Source
from mpgrad.workers.executor import Wiring, describe

#: Nodes of a graph that is compiled at most: source takes memory and time for each of them.
NODES_MAX = 1000


class Wired(NamedTuple):
    """What surrounds the rules of a graph; the same whenever one like it is run."""

    #: In serial order.
    wirings: list[Wiring]
    #: (step, input number) of each seed.
    seeded: list[tuple[int, int]]


def why_not(frozen: FrozenGraph) -> str | None:
    """Why such a graph is not compiled; None if it can be."""
    if len(frozen.nodes) > NODES_MAX:
        return f"it has more than {NODES_MAX} Nodes"
    for node, runs in zip(frozen.nodes, frozen.runs, strict=True):
        if runs and not isinstance(node, OperatorNode):
            return f"{node.label} is no operator's Node"
    return None


def compiled_graph(frozen: FrozenGraph, wired: Wired) -> Compiled | str:
    """What runs graphs like this one, or why there is no such thing."""
    return why_not(frozen) or Compiled(frozen, wired)


class Compiled:
    """A graph as source, and the functions made of it.

    Args:
        frozen: one like the ones that it will run.
        wired: what surrounds its rules.
    """

    def __init__(self, frozen: FrozenGraph, wired: Wired) -> None:
        self._wirings = wired.wirings
        #: Positions in ``frozen.nodes`` of the Nodes whose rules run, in serial order.
        self._running = [index for index in frozen.spec.order if frozen.runs[index]]
        nodes = [frozen.nodes[index] for index in self._running]
        self._looks = [node.input_info for node in nodes]  # type: ignore[attr-defined]
        writer = _Writer(frozen, wired)
        self.source = "\n".join(writer.lines) + "\n"
        #: For each line of it the step that it belongs to.
        self._steps = writer.steps
        place = f"backward {id(self):#x} of {frozen.nodes[0].name()}"
        self._backward = compiled("backward", self.source, writer.known, place)
        self._code = self._backward.__code__
        weakref.finalize(self, forget, place)

    def run(self, frozen: FrozenGraph, timings: list[float] | None) -> list[Any] | None:
        """The gradients that are captured; None if the graph is another one after all.

        Args:
            frozen: the graph.
            timings: gets when each rule began and ended (``perf_counter``).
        """
        nodes = [frozen.nodes[index] for index in self._running]
        if [node.input_info for node in nodes] != self._looks:  # type: ignore[attr-defined]
            return None
        try:
            found: list[Any] = self._backward(nodes, frozen.seeds, frozen.keep_graph, timings)
        except Exception as error:
            add_note(error, f"in the backward graph at {describe(self._failed(error))}")
            raise
        return found

    def _failed(self, error: Exception) -> Wiring:
        """The step whose line raised ``error``."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code is not self._code:
            trace = trace.tb_next
        assert trace is not None
        return self._wirings[self._steps[trace.tb_lineno - 1]]


# ---------------------------------------------------------------------- the source


class _Writer:
    """Writes ``def backward(nodes, seeds, keeps, timings)``, and notes what its names stand for."""

    def __init__(self, frozen: FrozenGraph, wired: Wired) -> None:
        self._wirings = wired.wirings
        self._nodes = [frozen.nodes[index] for index in frozen.spec.order]
        runs = [frozen.runs[index] for index in frozen.spec.order]
        self.lines: list[str] = []
        self.steps: list[int] = []
        self.known: dict[str, Any] = {
            "asarray": np.asarray,
            "clock": perf_counter,
            "ndarray": np.ndarray,
            "validated": validate_output,
            "xp": cpu,
        }
        self._captured: dict[int, str] = {}
        #: The name of what has flowed into each input so far, and which of them are sums made here.
        self._names: dict[tuple[int, int], str] = {}
        self._sums: set[tuple[int, int]] = set()
        #: How many inputs and captures each name still serves.
        self._uses: dict[str, int] = {}
        self._step = 0
        self._write("def backward(nodes, seeds, keeps, timings):")
        self._write(f"    {_listed([f'n{k}' for k, run in enumerate(runs) if run])} = nodes")
        seeds = [f"seed{k}" for k in range(len(wired.seeded))]
        self._write(f"    {_listed(seeds)} = seeds")
        for seed, target in zip(seeds, wired.seeded, strict=True):
            self._flow(seed, target)
        for step, (node, run) in enumerate(zip(self._nodes, runs, strict=True)):
            self._step = step
            self._write_step(node, self._wirings[step], run)
        count = max(self._captured, default=-1) + 1
        self._write(f"    return [{', '.join(self._captured[k] for k in range(count))}]")

    def _write(self, line: str) -> None:
        self.lines.append(line)
        self.steps.append(self._step)

    def _flow(self, name: str, target: tuple[int, int]) -> None:
        """One more contribution to an input."""
        old = self._names.get(target)
        if old is None:
            self._names[target] = name
            self._uses[name] = self._uses.get(name, 0) + 1
        elif target in self._sums:
            self._write(f"    {old} += {name}")
        else:
            total = f"sum{target[0]}_{target[1]}"
            self._write(f"    {total} = asarray({old} + {name})")
            self._names[target] = total
            self._sums.add(target)
            self._uses[total] = 1
            self._use(old)

    def _use(self, name: str) -> None:
        """An input that was ``name`` is read no more: nothing is kept longer than it is needed."""
        self._uses[name] -= 1
        if not self._uses[name]:
            self._write(f"    del {name}")

    def _write_step(self, node: Node, wiring: Wiring, runs: bool) -> None:
        inputs = [self._names.pop((self._step, nr), None) for nr in range(len(wiring.inputs))]
        for input_nr, number in wiring.captures:
            name = inputs[input_nr]
            self._captured[number] = name or "None"
            if name is not None:
                self._uses[name] += 1
        if runs:
            assert isinstance(node, OperatorNode)
            self._write(f"    # {describe(wiring)}")
            self._write("    if timings is not None: timings.append(clock())")
            results = self._write_rule(node, wiring, inputs)
            self._write("    if timings is not None: timings.append(clock())")
            for result, route in zip(results, wiring.routes, strict=True):
                if route is not None:
                    self._flow(result, route)  # type: ignore[arg-type]
            for result in results:
                if result and result not in self._uses:  # part of a sum by now
                    self._write(f"    del {result}")
        for name in inputs:
            if name is not None:
                self._use(name)

    def _write_rule(
        self, node: OperatorNode, wiring: Wiring, inputs: Sequence[str | None]
    ) -> list[str]:
        """The names of the results, "" where none is wanted."""
        this, grad = f"n{self._step}", inputs[0] or ""
        results = [f"g{self._step}_{nr}" if need else "" for nr, need in enumerate(wiring.needs)]
        if wiring.passes_on:
            for nr, meta in enumerate(wiring.outputs):
                if results[nr] and meta == wiring.inputs[0]:
                    results[nr] = grad
        computed = [nr for nr, result in enumerate(results) if result and result != grad]
        formulas = are_plain(node.operator, wiring)
        saves = not formulas or any(kind in _SAVED for _, kind, _ in _sources(node))
        if saves:
            self._write(f"    saved = {this}._saved")
            self._write(f"    if saved is None: {this}.saved  # raises")
        if formulas:
            for nr in computed:
                self._write(f"    {results[nr]} = {self._formula(node, wiring, nr, grad)}")
        else:
            grads = [
                name or f"xp.zeros({meta.shape}, {self._dtype(meta)})"
                for name, meta in zip(inputs, wiring.inputs, strict=True)
            ]
            unpacked = _listed([result or "_" for result in results])
            self._write(f"    {unpacked} = {this}.apply(xp, [{', '.join(grads)}], {wiring.needs})")
        for nr in computed:
            self._write_check(results[nr], nr, wiring)
        if saves:
            self._write(f"    if saved and not keeps: {this}._saved = None")
            self._write("    del saved")
        return results

    def _formula(self, node: OperatorNode, wiring: Wiring, position: int, grad: str) -> str:
        """The call of the formula for one input."""
        operator, this = node.operator, f"n{self._step}"
        formula, wanted = operator.derivatives[operator.inputs[position]], []
        for name in operator.asked_by(position):
            if name == "grad":
                wanted.append(grad)
            elif name == "result":
                wanted.append(f"saved['result'].array({this})")
            elif name not in operator.inputs:
                wanted.append(f"{this}.plain[{name!r}]")
            elif node.input_info[operator.inputs.index(name)] is not None:
                wanted.append(f"saved[{name!r}].array({this})")
            else:  # a tensor without gradient, or a number
                array, number = f"saved[{name!r}].array({this})", f"{this}.plain[{name!r}]"
                wanted.append(f"({array} if {name!r} in saved else {number})")
        name = f"{operator.name}_{operator.inputs[position]}"
        self.known[name] = formula
        is_whole = wanted and wanted[0] == grad and wiring.inputs[0].nbytes < WHOLE_BYTES
        if operator.elementwise and not is_whole:
            return f"xp.blockwise({', '.join([name, *wanted])})"
        return f"{name}({', '.join(['xp', *wanted])})"

    def _write_check(self, result: str, nr: int, wiring: Wiring) -> None:
        """What :func:`validate_output` would change is seen in one line."""
        meta = wiring.outputs[nr]
        assert meta is not None
        dtype, form = self._dtype(meta), f"form{self._step}_{nr}"
        self.known[form] = meta
        self._write(
            f"    if not (type({result}) is ndarray and {result}.shape == {meta.shape} and "
            f"{result}.dtype is {dtype} and {result}.flags.c_contiguous):"
        )
        self._write(f"        {result} = validated({wiring.name!r}, {nr}, {result}, {form}, xp)")

    def _dtype(self, meta: InputMetadata) -> str:
        name = meta.dtype.name if meta.dtype.isnative else f"swapped_{meta.dtype.name}"
        self.known[name] = meta.dtype
        return name


#: Kinds of what a Node keeps as saved tensors.
_SAVED = frozenset({"input", "result", "results"})


def _sources(node: OperatorNode) -> tuple[Source, ...]:
    """What the Node saved in forward."""
    return node.operator.sources([info is not None for info in node.input_info])


def are_plain(operator: Operator, wiring: Wiring) -> bool:
    """Whether each gradient that is wanted is one call of a formula, and nothing around it."""
    meta, first = wiring.inputs[0], wiring.outputs[0] if wiring.outputs else None
    if operator.variadic or operator.joint is not None or len(wiring.inputs) != 1:
        return False
    if operator.conjugates and meta.dtype.kind == "c":
        return False
    if operator.in_columns is not None and first is not None:
        return count_parts(meta.shape, first.shape[-1]) == 1
    asked = {name for nr, need in enumerate(wiring.needs) if need for name in operator.asked_by(nr)}
    return not asked & {"grads", "needs", "index", "results"}


def _listed(names: Sequence[str]) -> str:
    """The inside of a tuple."""
    return ", ".join(names) + ("," if len(names) == 1 else "")
