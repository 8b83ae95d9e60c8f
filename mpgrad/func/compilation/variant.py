"""Variant: one compiled case of a function: what has to hold for it, and the program, as source.

The source asks for shapes, dtypes, layouts, flags and the function's surroundings; it gives MISS
where anything is different. Then it does what the traced call did, and leaves Tensors, their
versions and their ``.grad`` as that call left them.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.arrays.cpu.array_proxies import ArrayProxy
from mpgrad.arrays.cpu.cpu_backend import CpuBackend
from mpgrad.base.generated_code import compiled, forget
from mpgrad.calls.custom_functions.constants import is_constant, same
from mpgrad.func.compilation.arguments import Arguments, is_namedtuple
from mpgrad.func.compilation.outside import Outside
from mpgrad.func.compilation.recorded_calls import RecordedCalls
from mpgrad.func.compilation.reused_memory import ReusedMemory
from mpgrad.func.compilation.traced_call import CallProgram
from mpgrad.recording.dispatch.operator_call import cpu
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.recording.tensors.view import View

#: What a variant gives for arguments that it is not made for.
MISS = object()

#: Results of at least this many bytes are let go after their last use.
_LET_GO_BYTES = 4096
_TEMPORARY = re.compile(r"\bt\d+\b")


class Variant:
    """One compiled case.

    Args:
        name: of the function.
        program: what the traced call computed.
        arguments: what it was called with.
        outside: the Tensors that were there before the call, and what became of them.
        conditions: what has to hold, each an expression.
        result: what the call returned.

    Attributes:
        source: of ``run(args, kwargs)``.
        reason: why there is no such program; empty if there is.
    """

    def __init__(
        self,
        name: str,
        program: CallProgram,
        arguments: Arguments,
        outside: Outside,
        conditions: Sequence[str],
        result: Any,
    ) -> None:
        self._program, self._outside = program, outside
        self._names = outside.names()
        self._tail: list[str] = []
        self._counters: dict[int, str] = {}
        program.known.update(MISS=MISS, Tensor=Tensor, View=View, same=same, ndarray=np.ndarray)
        self._recorded = RecordedCalls(program, self._names)
        returned = self._expression(result, "its result")
        self._leave_as_it_was()
        program.lines = self._recorded.inserted()
        if not self._recorded.is_made:  # else a later backward may need them in workers
            known = program.bound(cpu, "xp")
            program.known[known] = CpuBackend(ReusedMemory(cpu.empty).empty)
        self.reason = program.reason
        if self.reason:
            return
        lines = [f"# {name}", "def run(args, kwargs):", "    try:"]
        lines += [f"        {line}" for line in arguments.lines]
        for condition in [*conditions, *arguments.conditions, *outside.conditions(program)]:
            lines += [f"        if not ({condition}):", "            return MISS"]
        lines += ["    except (LookupError, AttributeError, ValueError, TypeError):"]
        lines += ["        return MISS"]
        body = [*outside.entry(program), *program.lines]
        tail = [*self._tail, f"return {returned}"]
        lines += [f"    {line}" for line in [*_with_ends(body, tail, program.nbytes), *tail]]
        self.source = "\n".join(lines) + "\n"
        place = f"compiled {id(self):#x} of {name}"
        self.run: Any = compiled("run", self.source, program.known, place)
        weakref.finalize(self, forget, place)
        # What the traced call computed is not kept.
        del self._program, self._outside, self._names, self._recorded

    # ------------------------------------------------------------------ what the call returned

    def _expression(self, value: Any, what: str) -> str:
        """``value`` of a further run."""
        if isinstance(value, Tensor):
            return self._tensor(value, what)
        kind = type(value)
        if kind in (list, tuple) or is_namedtuple(kind):
            items = [self._expression(item, f"{what}[{at}]") for at, item in enumerate(value)]
            if kind is list:
                return f"[{', '.join(items)}]"
            inside = f"({', '.join(items)}{',' if len(items) == 1 else ''})"
            return inside if kind is tuple else f"{self._program.bound(kind)}(*{inside})"
        if kind is dict:
            pairs = [
                f"{self._program.text(key)}: {self._expression(item, f'{what}[{key!r}]')}"
                for key, item in value.items()
            ]
            return f"{{{', '.join(pairs)}}}"
        if is_constant(value):
            return self._program.text(value)
        self._program.give_up(f"{what} is a {kind.__name__}, which is not compiled")
        return "None"

    def _tensor(self, tensor: Tensor, what: str) -> str:
        found = self._names.get(id(tensor))
        if found is not None:
            return found[0]
        found_name = self._recorded.name_of(tensor)
        if found_name is not None:
            return found_name
        program, node = self._program, tensor._grad_fn
        if type(tensor) is not Tensor or tensor._grad is not None or tensor._retains_grad:
            program.give_up(f"{what} is no plain Tensor, or has a .grad")
        if tensor._leaf_hooks is not None or tensor._post_accumulate_hooks is not None:
            program.give_up(f"{what} has hooks")
        array = program.array_of(tensor)
        if type(array) is not ArrayProxy:
            program.give_up(f"{what} is no tensor that it computed")
            return "None"
        given = [program.text(array)]
        if tensor._requires_grad:
            given.append("requires_grad=True")
        if node is not None:
            if node not in program.used_up:
                return self._recorded.make(tensor, what)
            given.append(f"grad_fn={program.bound(node, 'node')}, output_nr={tensor._output_nr}")
        counter = self._counters.get(id(tensor._version_counter))
        counter = counter or self._outside.counter_of(tensor)
        if counter is not None:
            given.append(f"version_counter={counter}")
        view = None if tensor._view is None else self._view(tensor._view, what)
        name = f"r{len(self._names)}"
        self._names[id(tensor)] = name, tensor
        self._tail.append(f"{name} = Tensor({', '.join(given)})")
        if counter is None:
            self._counters[id(tensor._version_counter)] = f"{name}._version_counter"
            if tensor._version_counter.value:
                value = tensor._version_counter.value
                self._tail.append(f"{name}._version_counter.value = {value}")
        if view is not None:
            self._tail.append(f"{name}._view = {view}")
        return name

    def _view(self, view: View, what: str) -> str:
        """The place of a result in the memory of another tensor."""
        base = self._tensor(view.base, what)
        counter = view.base._version_counter
        self._counters.setdefault(id(counter), f"{base}._version_counter")
        parent = "None" if view.parent is None else self._view(view.parent, what)
        text = self._program.text
        given = f"{base}, {parent}, {text(view.operator)}, {text(view.attributes)}"
        return f"View({given}, {text(view.creation)})"

    # ------------------------------------------------------------------ what the call changed

    def _leave_as_it_was(self) -> None:
        """Versions and ``.grad`` of the Tensors that were there before."""
        changed = list(self._outside.changed(self._program))
        for name, tensor, before in changed:
            counter = tensor._version_counter
            delta = counter.value - before.version - self._program.counted.get(id(counter), 0)
            if delta and not self._outside.is_counted(tensor):
                self._tail.append(f"{name}._version_counter.value += {delta}")
        for name, tensor, before in changed:
            if name in self._outside.grads:
                continue
            if tensor._grad is not before.grad:
                made = "None" if tensor._grad is None else self._tensor(tensor._grad, "a .grad")
                self._tail.append(f"{name}._grad = {made}")


def _with_ends(body: Sequence[str], tail: Sequence[str], nbytes: dict[str, int]) -> list[str]:
    """``body``, where each large result that ``tail`` does not need ends after its last use."""
    needed = {name for line in tail for name in _TEMPORARY.findall(line)}
    last: dict[str, int] = {}
    for at, line in enumerate(body):
        for name in _TEMPORARY.findall(line):
            if nbytes.get(name, 0) >= _LET_GO_BYTES and name not in needed:
                last[name] = at
    ends: dict[int, list[str]] = {}
    for name, at in last.items():
        ends.setdefault(at, []).append(name)
    lines = []
    for at, line in enumerate(body):
        lines.append(line)
        if at in ends:
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(f"{indent}del {', '.join(ends[at])}")
    return lines
