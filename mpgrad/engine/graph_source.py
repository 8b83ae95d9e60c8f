"""GraphSource: writes a graph out as straight-line source (see :mod:`mpgrad.engine.compiled`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from mpgrad.arrays.cpu.blockwise import WHOLE_BYTES
from mpgrad.arrays.cpu.column_parts import count_parts
from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph, expected_of
from mpgrad.autograd.running.hook_nodes import run_user_code
from mpgrad.autograd.running.validate_outputs import described, require_number, validate_output
from mpgrad.base.generated_code import listed
from mpgrad.engine.called_by_source import added, checked, undefined
from mpgrad.engine.lowered_formulas import LoweredFormulas
from mpgrad.recording.dispatch.operator_call import cpu
from mpgrad.recording.dispatch.operator_node import OperatorNode
from mpgrad.recording.graph.node import InputMetadata
from mpgrad.recording.graph.registry import RESULTS

#: The number of results of a Node that have a line each. It takes 90 us to compile and 0.11 to run;
#: a loop over more of them takes 0.18 us for each.
CHECKED_EACH_MAX = 16


class SharedRule(NamedTuple):
    """The function of all Nodes that are alike (:mod:`mpgrad.engine.node_rules`)."""

    #: ``run(node, gradients, keeps, times)``: the gradients that it computes.
    run: Callable[..., Any]
    #: ``fits(nodes)``: whether it may run them.
    fits: Callable[[Sequence[Any]], bool]
    #: The inputs of forward whose gradients it computes, and whether they may be undefined.
    computed: dict[int, bool]
    #: Those whose gradient is what flows in.
    passed_on: list[int]
    source: str


class GraphSource:
    """``def backward(nodes, seeds, keeps, times)``, line by line.

    Args:
        frozen: the graph.
        shared: for each Node its function; None: it is written out. Empty: all are.

    Attributes:
        lines: the source.
        nodes: for each line the Node that it belongs to.
        known: what its free names stand for.
    """

    def __init__(
        self, frozen: FrozenGraph, shared: Sequence[SharedRule | None] | None = None
    ) -> None:
        self._frozen, self._shared = frozen, shared or [None] * len(frozen.nodes)
        #: The functions that are called, and for which Nodes.
        self._called: dict[int, tuple[SharedRule, list[int]]] = {}
        self.lines: list[str] = []
        self.nodes: list[int] = []
        self.known: dict[str, Any] = {
            "added": added,
            "asarray": np.asarray,
            "checked": checked,
            "clock": perf_counter,
            "ndarray": np.ndarray,
            "require_number": require_number,
            "undefined": undefined,
            "run_user_code": run_user_code,
            "validated": validate_output,
            "xp": cpu,
        }
        self.formulas = LoweredFormulas(self.known)
        self._at, self._indent = frozen.spec.order[0], ""
        #: The name of what has flowed into each input so far, and which of them are sums made here.
        self._inflow: dict[tuple[int, int], str] = {}
        self._sums: set[tuple[int, int]] = set()
        #: For how many inputs and captures each name still stands.
        self._uses: dict[str, int] = {}
        #: The names of gradients that may be undefined: user code, or the derivative of an
        #: operator, may give none.
        self._optional: set[str] = set()
        wanted: dict[int, list[tuple[int, int]]] = {}
        for number, (at, input_nr) in enumerate(frozen.spec.captures):
            wanted.setdefault(at, []).append((input_nr, number))
        captured = ["None"] * len(frozen.spec.captures)
        seeds = [f"seed{number}" for number in range(len(frozen.spec.seeds))]
        self._write_head(seeds)
        self._head = len(self.lines)
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
        self._write_end(captured)

    def _write_head(self, seeds: Sequence[str]) -> None:
        self._write("def backward(nodes, seeds, keeps, times):")
        self._indent = "    "
        self._write(f"{listed([f'n{at}' for at in range(len(self._frozen.nodes))])} = nodes")
        self._write(f"{listed(seeds)} = seeds")

    def _write_end(self, captured: Sequence[str]) -> None:
        """What is returned; and the checks before anything is computed, or let go."""
        self._write(f"return [{', '.join(captured)}]")
        lines = [f"    if seed{at} is None: return None" for at in range(len(self._frozen.seeds))]
        lines += [f"    if {check}: return None" for check in self.misfits()]
        self.lines[self._head : self._head] = lines
        self.nodes[self._head : self._head] = [self._at] * len(lines)

    def misfits(self) -> list[str]:
        """What must not be true of the Nodes, each an expression."""
        called = {at for _, ats in self._called.values() for at in ats}
        infos = {
            at: node.input_info
            for at, node in enumerate(self._frozen.nodes)
            if isinstance(node, OperatorNode) and self._frozen.runs[at] and at not in called
        }
        checks = []
        # The metadata of the inputs of forward: the tables do not say it.
        if len(infos) == 1:
            ((at, self.known["info"]),) = infos.items()
            checks.append(f"n{at}.input_info is not info and n{at}.input_info != info")
        elif infos:
            self.known["infos"] = list(infos.values())
            checks.append(f"[{', '.join([f'n{at}.input_info' for at in infos])}] != infos")
        for number, (_, ats) in enumerate(self._called.values()):
            checks.append(f"not fits{number}([{', '.join([f'n{at}' for at in ats])}])")
        return checks + [f"not ({check})" for check in self.formulas.checks]

    def _write(self, line: str) -> None:
        self.lines.append(self._indent + line)
        self.nodes.append(self._at)

    def _flow(self, name: str, target: tuple[int, int]) -> None:
        """One more contribution to an input."""
        before = self._inflow.get(target)
        if before is None:
            self._inflow[target] = name
            self._uses[name] = self._uses.get(name, 0) + 1
        elif not {before, name} & self._optional:
            if target in self._sums:
                self._write(f"{before} += {name}")
                return
            total = f"sum{target[0]}_{target[1]}"
            self._write(f"{total} = asarray({before} + {name})")
            self._inflow[target], self._uses[total] = total, 1
            self._sums.add(target)
            self._let_go(before)
        else:
            # It may be one of both, which others may have, too: it is not added to in place.
            total = f"sum{target[0]}_{target[1]}_{len(self.lines)}"
            self._write(f"{total} = added({before}, {name})")
            self._inflow[target], self._uses[total] = total, 1
            self._sums.discard(target)
            if {before, name} <= self._optional:
                self._optional.add(total)
            self._let_go(before)

    def _let_go(self, name: str) -> None:
        """It stands for one input less: nothing is kept longer than it is needed."""
        self._uses[name] -= 1
        if not self._uses[name]:
            self._write(f"del {name}")

    def _write_node(self, inputs: list[str | None]) -> None:
        shared = self._shared[self._at]
        if shared is not None and shared.computed and self._may_call(inputs):
            results = self._write_call(shared, inputs)
        else:
            results = self._write_out(inputs)
        for result, edge in zip(results, self._frozen.spec.nodes[self._at].edges, strict=True):
            if edge is not None and result:
                self._flow(result, edge)
        for result in results:
            if result and result not in self._uses:  # it is part of a sum by now
                self._write(f"del {result}")

    def _may_call(self, inputs: Sequence[str | None]) -> bool:
        """Whether what was saved is what was checked, and no part of what flows in is undefined."""
        if None in inputs or self.formulas.are_behind_user_code:
            return False
        return len(inputs) == 1 or self._optional.isdisjoint(inputs)  # type: ignore[arg-type]

    def _write_call(self, shared: SharedRule, inputs: list[Any]) -> list[str]:
        """Call the function of a Node; the names of its results, "" where none is wanted."""
        number = len(self._called)
        if id(shared) not in self._called:
            self.known[f"rule{number}"], self.known[f"fits{number}"] = shared.run, shared.fits
            self._called[id(shared)] = shared, []
        else:
            number = list(self._called).index(id(shared))
        self._called[id(shared)][1].append(self._at)
        results = [""] * len(self._frozen.spec.nodes[self._at].edges)
        for nr in shared.passed_on:
            results[nr] = inputs[0]
        is_unsure = inputs[0] in self._optional
        for nr, is_optional in shared.computed.items():
            results[nr] = f"g{self._at}_{nr}"
            if is_optional or is_unsure:
                self._optional.add(results[nr])
        made = ", ".join([results[nr] for nr in shared.computed])
        call = f"rule{number}(n{self._at}, {', '.join(inputs)}, keeps, times)"
        if is_unsure:
            nothing = f"undefined({len(shared.computed)}, times)"
            call = f"{nothing} if {inputs[0]} is None else {call}"
        self._write(f"{made} = {call}")
        return results

    def _write_out(self, inputs: list[str | None]) -> list[str]:
        """Write out a Node; the names of its results, "" where none is wanted."""
        node: Any = self._frozen.nodes[self._at]
        expected = expected_of(self._frozen, self._at)
        name = self._frozen.spec.nodes[self._at].name
        self._write(f"# {described(name, node.input_metadata, expected)}")
        self._write("if times is not None: times.append(clock())")
        begun = len(self.lines)
        if isinstance(node, OperatorNode):
            results = self._write_operator(node, name, inputs, expected)
        else:
            results = self._write_user_code(name, inputs, expected)
        if len(self.lines) > begun:
            self._write("if times is not None: times.append(clock())")
        else:
            self.lines[-1] = f"{self._indent}if times is not None: times += clock(), clock()"
        return results

    def _write_user_code(
        self, name: str, inputs: list[str | None], expected: Sequence[InputMetadata | None]
    ) -> list[str]:
        """Call a Function's backward; the names of its results, "" where none is wanted."""
        this, count = f"n{self._at}", len(expected)
        results = [f"g{self._at}_{nr}" if meta else "" for nr, meta in enumerate(expected)]
        self._write(f"grads = [{', '.join([one or 'None' for one in inputs])}]")
        # It may change a gradient that nobody else holds.
        for one in inputs:
            if one is not None:
                self._let_go(one)
        inputs.clear()
        needs = tuple([meta is not None for meta in expected])
        self._write(f"found = run_user_code({this}, xp, grads, {needs})")
        self._write("del grads")
        self._write(f"if len(found) != {count}: require_number({name!r}, found, {count})")
        self._write(f"{listed([result or '_' for result in results])} = found")
        self._write("del found")
        for nr, result in enumerate(results):
            if result:
                self._optional.add(result)
                self._write_check(name, nr, result, expected[nr])
        self._write(f"if not keeps: {this}.release_saved()")
        self.formulas.are_behind_user_code = True
        return results

    def _write_operator(
        self,
        node: OperatorNode,
        name: str,
        inputs: Sequence[str | None],
        expected: Sequence[InputMetadata | None],
    ) -> list[str]:
        """Run a rule, unless all that flows in is undefined; the names of the results, "" where
        none is wanted."""
        grad = inputs[0] or ""
        results = [f"g{self._at}_{nr}" if meta else "" for nr, meta in enumerate(expected)]
        if node.passes_on:
            for nr, meta in enumerate(expected):
                if meta == node.input_metadata[0]:
                    results[nr] = grad
        computed = [nr for nr, result in enumerate(results) if result and result != grad]
        saves = any(kind == "input" or kind in RESULTS for _, kind, _ in _sources(node))
        if not (saves or computed):
            return results
        unsure = [one for one in inputs if one is not None and one in self._optional]
        may_skip = len(unsure) == len([one for one in inputs if one is not None])
        if may_skip:
            self._write(f"if {' or '.join([f'{one} is not None' for one in unsure]) or False}:")
            self._indent += "    "
        if saves:
            self._write(f"saved = n{self._at}._saved")
            self._write(f"if saved is None: n{self._at}.saved  # raises")
        results = self._write_rule(node, inputs, expected, results, computed)
        made = [result for result in results if result and result != grad]
        if len(made) <= CHECKED_EACH_MAX:
            for nr, result in enumerate(results):
                if result in made:
                    self._write_check(name, nr, result, expected[nr])
        if saves:
            self._write("del saved")
        if may_skip:
            if self.lines[-1].endswith(":"):  # a formula that gives its gradient on as it is
                self._write("pass")
            self._indent = self._indent[:-4]
            self._optional.update(made)
            if made:
                self._write(f"else: {' = '.join(made)} = None")
        if saves:
            self._write(f"if not keeps and n{self._at}._saved: n{self._at}._saved = None")
        return results

    def _write_rule(
        self,
        node: OperatorNode,
        inputs: Sequence[str | None],
        expected: Sequence[InputMetadata | None],
        results: list[str],
        computed: Sequence[int],
    ) -> list[str]:
        """Compute some of the results; the names of all."""
        grad = inputs[0] or ""
        if are_plain_formulas(node, computed, expected):
            for nr in computed:
                results[nr] = self._write_formula(node, nr, grad, results[nr], expected[nr])
            return results
        grads = []
        for one, meta in zip(inputs, node.input_metadata, strict=True):
            zeros = f"xp.zeros({meta.shape}, {self._dtype(meta)})"
            if one in self._optional and len(inputs) > 1:
                grads.append(f"{zeros} if {one} is None else {one}")
            else:
                grads.append(one or zeros)
        needs = tuple([meta is not None for meta in expected])
        unpacked = listed([result or "_" for result in results])
        self._optional.update([result for result in results if result and result != grad])
        call = f"n{self._at}.apply(xp, [{', '.join(grads)}], {needs})"
        made = [
            meta if result not in ("", grad) else None
            for result, meta in zip(results, expected, strict=True)
        ]
        if len(made) - made.count(None) > CHECKED_EACH_MAX:
            self.known[f"expected{self._at}"] = made
            call = f"checked({node.name()!r}, {call}, expected{self._at}, xp)"
        self._write(f"{unpacked} = {call}")
        return results

    def _write_check(self, name: str, nr: int, result: str, meta: InputMetadata | None) -> None:
        """What ``validate_output`` would change is seen in one line."""
        assert meta is not None
        expected = f"expected{self._at}_{nr}"
        self.known[expected] = meta
        asked = f"{result} is not None and not" if result in self._optional else "not"
        self._write(
            f"if {asked} (type({result}) is ndarray and {result}.shape == {meta.shape} and "
            f"{result}.dtype is {self._dtype(meta)} and {result}.flags.c_contiguous):"
        )
        self._write(f"    {result} = validated({name!r}, {nr}, {result}, {expected}, xp)")

    def _write_formula(
        self, node: OperatorNode, nr: int, grad: str, name: str, expected: InputMetadata | None
    ) -> str:
        """Write the formula of an input out, or its call; the name of the gradient."""
        assert expected is not None
        lowered = self.formulas.lines(node, self._at, nr, grad, expected)
        if lowered is None:
            self._write(f"{name} = {self._formula(node, nr, grad)}")
            self._optional.add(name)
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
    return not asked & {"grads", "needs", "results", "last_result"}
