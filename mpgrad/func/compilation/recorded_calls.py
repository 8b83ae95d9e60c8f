"""RecordedCalls: the Nodes that a program records, where its results have a graph.

A function without a backward of its own (a network, a loss) returns Tensors that somebody
differentiates later. Its program makes the same Nodes in the same order as the operators do.
"""

from __future__ import annotations

from typing import Any

from mpgrad.arrays.cpu.array_proxies import ArrayProxy
from mpgrad.func.compilation.traced_call import Called, CallProgram
from mpgrad.recording.dispatch.call_source import is_written_out
from mpgrad.recording.dispatch.operator_call import record_call, recorder_of, wanted_gradients
from mpgrad.recording.dispatch.operator_node import OperatorNode
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.recording.tensors.view import share_memory


class RecordedCalls:
    """The calls of operators whose Nodes outlive the program.

    Args:
        program: of the call.
        names: by id the Tensors that have a name.

    Attributes:
        is_made: there are such Nodes.
    """

    def __init__(self, program: CallProgram, names: dict[int, tuple[str, Tensor]]) -> None:
        self._program, self._names = program, names
        self._made: dict[int, tuple[str, Tensor]] = {}
        self._lines: list[tuple[int, str]] = []
        self.is_made = False

    def name_of(self, tensor: Tensor) -> str | None:
        """A result that a recorded call gives."""
        found = self._made.get(id(tensor))
        return None if found is None else found[0]

    def make(self, tensor: Tensor, what: str) -> str:
        """Record the calls; what ``tensor``, a result with a graph, is called."""
        program = self._program
        if not self.is_made:
            self.is_made = True
            if program.has_backward:
                program.give_up(f"{what} has a graph that no backward inside has used up")
            elif program.rebased:
                program.give_up(f"{what} has a graph that was changed in place")
            else:
                for called in program.calls:
                    self._record(called)
        name = self.name_of(tensor)
        if name is None:
            program.give_up(f"{what} has a graph that no operator recorded")
        return name or "None"

    def inserted(self) -> list[str]:
        """The lines of the program, and these among them."""
        lines, at = [], 0
        for before, line in self._lines:
            lines += self._program.lines[at:before]
            lines.append(line)
            at = before
        return [*lines, *self._program.lines[at:]]

    def _record(self, called: Called) -> None:
        operator, outputs = called.operator, called.outputs
        is_recorded = [
            isinstance(t._grad_fn, OperatorNode) and t._grad_fn.operator is operator
            for t in outputs
        ]
        if not any(is_recorded) and operator.view is None:
            return
        program = self._program
        program.known.update(Tensor=Tensor, share_memory=share_memory, record_call=record_call)
        names: list[str] = []
        for output in outputs:
            if type(output._array) is not ArrayProxy:
                program.give_up("a result that is no array of its own")
                return
            names.append(f"n{len(self._made)}")
            self._made[id(output)] = names[-1], output
            self._add(called, f"{names[-1]} = Tensor({output._array._name})")
        attributes = program.text(dict(called.attributes))
        this = program.bound(operator, f"operator_{operator.name}")
        inputs = [self._input(called, value) for value in called.inputs]
        if operator.view is not None and len(inputs) == 1:
            self._add(
                called, f"share_memory({this}, {inputs[0]}, ({', '.join(names)},), {attributes})"
            )
        if not any(is_recorded):
            return
        needs = tuple(wanted_gradients(operator, called.inputs))
        is_plain = len(outputs) == 1 and len(called.inputs) == len(operator.inputs)
        if is_plain and is_written_out(operator):
            record = program.bound(recorder_of(operator, needs), f"record_{operator.name}")
            given = [program.text(called.attributes[name]) for name in operator.attributes]
            self._add(called, f"{record}({', '.join([*inputs, *given, names[0]])})")
        else:
            given = [f"({', '.join(inputs)},)", f"[{', '.join(names)}]", repr(needs), attributes]
            self._add(called, f"record_call({this}, {', '.join(given)})")

    def _input(self, called: Called, value: Any) -> str:
        if not isinstance(value, Tensor):
            return self._program.text(value)
        found = self._made.get(id(value)) or self._names.get(id(value))
        if found is not None:
            return found[0]
        if value._grad_fn is not None or value._requires_grad or value._view is not None:
            self._program.give_up("a tensor with a history that no operator recorded")
        if type(value._array) is not ArrayProxy:
            self._program.give_up("a tensor that it did not compute")
            return "None"
        name = f"n{len(self._made)}"
        self._made[id(value)] = name, value
        self._add(called, f"{name} = Tensor({value._array._name})")
        return name

    def _add(self, called: Called, line: str) -> None:
        self._lines.append((called.line, line))
