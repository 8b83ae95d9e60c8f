"""LoweredFormulas: derivative formulas written out as calls of NumPy, for compiled graphs.

A formula is run once on samples, and what it calls is noted. That holds for the shapes and dtypes
of the graph; what the tables of the graph do not say (attributes, saved tensors without a gradient)
is checked before the graph is run. Where a formula decides by values, it stays a call.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mpgrad.arrays.cpu.array_program import ArrayProgram, Unreadable
from mpgrad.arrays.cpu.array_proxies import ArrayProxy, NumberProxy
from mpgrad.arrays.cpu.cpu_backend import LARGE_BYTES
from mpgrad.arrays.cpu.traced_namespace import TracedNamespace
from mpgrad.calls.custom_functions.constants import is_constant, same
from mpgrad.recording.dispatch.operator_call import cpu
from mpgrad.recording.dispatch.operator_node import OperatorNode
from mpgrad.recording.graph.node import InputMetadata
from mpgrad.recording.graph.registry import Operator, Source
from mpgrad.recording.tensors.saved_tensor import SavedTensor

#: Formulas that are kept written out: one for each operator, shapes and dtypes.
FORMULAS_MAX = 1024

_TEMPORARY = re.compile(r"\bt\d+\b")
_NUMBERS = (int, float)


class _Array(NamedTuple):
    """An array that a formula gets."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]


class _Formula(NamedTuple):
    """A formula that is written out; what it gets is t0, t1 ..., in its order."""

    lines: tuple[str, ...]
    result: str
    #: What its free names stand for.
    known: dict[str, Any]


class LoweredFormulas:
    """Writes out the formulas of one graph.

    Args:
        known: what the free names of its source stand for.

    Attributes:
        checks: what must hold of the Nodes before the graph runs, each an expression.
        are_behind_user_code: the next formula's saved tensors may be others by then.
    """

    def __init__(self, known: dict[str, Any]) -> None:
        self._known, self._count = known, 0
        self.checks: dict[str, None] = {}
        self.are_behind_user_code = False
        known.update(same=same, has_signature=has_signature, nothing=has_signature)

    def lines(
        self, node: OperatorNode, at: int, position: int, grad: str, result: InputMetadata
    ) -> tuple[list[str], str] | None:
        """The lines of a formula and the name of its result; None where it stays a call.

        Args:
            node: whose formula.
            at: its name is this number behind an n.
            position: of the input that the gradient is for.
            grad: the name of the gradient that flows in.
            result: what the gradient of the input must be.
        """
        meta = node.input_metadata[0]
        if max(meta.nbytes, result.nbytes) >= LARGE_BYTES or meta.dtype.char not in "fd":
            return None
        checks, signatures, texts = dict[str, None](), list[Any](), list[str]()
        try:
            for name in node.operator.asked_by(position):
                signature, text = self._operand(node, at, name, grad, checks)
                signatures.append(signature)
                texts.append(text)
        except (Unreadable, RuntimeError):  # where it matters it is raised again, in a run
            return None
        found = _written_out(node.operator, position, tuple(signatures))
        if found is None:
            return None
        self.checks.update(checks)
        self._known.update(found.known)
        return self._renamed(found, texts, grad)

    def _renamed(self, formula: _Formula, texts: Sequence[str], grad: str) -> tuple[list[str], str]:
        """The lines of ``formula`` with names of their own."""
        names: dict[str, str] = {}
        lines = []
        for number, text in enumerate(texts):
            if text == grad:
                names[f"t{number}"] = grad
            elif text:
                names[f"t{number}"] = self._fresh()
                lines.append(f"{names[f't{number}']} = {text}")
        ours = list(names.values())

        def name(match: re.Match[str]) -> str:
            if match[0] not in names:
                names[match[0]] = self._fresh()
                ours.append(names[match[0]])
            return names[match[0]]

        lines += [_TEMPORARY.sub(name, line) for line in formula.lines]
        result = _TEMPORARY.sub(name, formula.result)
        ends = [one for one in ours if one not in (result, grad)]
        return [*lines, *([f"del {', '.join(ends)}"] if ends else [])], result

    def _fresh(self) -> str:
        self._count += 1
        return f"t{self._count}"

    def _operand(
        self, node: OperatorNode, at: int, name: str, grad: str, checks: dict[str, None]
    ) -> tuple[Any, str]:
        """The signature of what a formula asks for, and what reads it."""
        if name == "grad":
            meta = node.input_metadata[0]
            return _Array(meta.shape, meta.dtype, ()), grad
        source = _source(node, name)
        if name in (node._saved or {}):
            return self._saved(node, at, source, checks)
        value = node.plain.get(name, Unreadable)
        if source.kind == "input" and type(value) in _NUMBERS:
            kind = type(value).__name__
            checks[f"type(n{at}.plain.get({name!r})) is {kind}"] = None
            return type(value), f"n{at}.plain[{name!r}]"
        if not is_constant(value):
            raise Unreadable(name)
        if source.kind not in ("shape", "dtype") or node.input_info[source.position] is None:
            constant = f"constant{len(checks)}_{at}_{name}"
            self._known[constant] = value
            plain = f"n{at}.plain.get({name!r}, nothing)"
            checks[f"{plain} is {constant} or same({plain}, {constant})"] = None
        return (value, type(value)), ""

    def _saved(
        self, node: OperatorNode, at: int, source: Source, checks: dict[str, None]
    ) -> tuple[Any, str]:
        saved = node.saved[source.name]
        if type(saved) is not SavedTensor:
            raise Unreadable(source.name)
        array = saved.array(node)
        if type(array) is not np.ndarray or array.nbytes >= LARGE_BYTES:
            raise Unreadable(source.name)
        if source.kind == "input" and node.input_info[source.position] is None:
            if self.are_behind_user_code:
                raise Unreadable(source.name)
            dtype = f"dtype{at}_{source.name}"
            self._known[dtype] = array.dtype
            wanted = f"n{at}._saved.get({source.name!r}), {array.shape}, {dtype}"
            checks[f"n{at}._saved is None or has_signature({wanted})"] = None
        signature = _Array(array.shape, array.dtype, array.strides)
        return signature, f"saved[{source.name!r}].array(n{at})"


def _source(node: OperatorNode, name: str) -> Source:
    needs = [info is not None for info in node.input_info]
    return next(source for source in node.operator.sources(needs) if source.name == name)


def has_signature(saved: Any, shape: tuple[int, ...], dtype: Any) -> bool:
    """Whether a saved tensor is an input of that shape and dtype."""
    if type(saved) is not SavedTensor or saved._tensor is None:
        return False
    array = saved._tensor._array
    return type(array) is np.ndarray and array.shape == shape and array.dtype is dtype


# ---------------------------------------------------------------------- written out once


@functools.lru_cache(FORMULAS_MAX)
def _written_out(operator: Operator, position: int, signatures: tuple[Any, ...]) -> _Formula | None:
    """A formula for operands of these signatures; None where it decides by values."""
    program = _Lines()
    operands = [
        _sample(program, f"t{number}", signature) for number, signature in enumerate(signatures)
    ]
    program.skip(len(signatures))
    xp = TracedNamespace(program, cpu, is_fixed=False)
    formula = operator.derivatives[operator.inputs[position]]
    try:
        with np.errstate(all="ignore"):
            value = xp.checked(formula, operands)
    except (Unreadable, TypeError, ValueError, AttributeError, LookupError, RuntimeError):
        return None
    if type(value) is not ArrayProxy or type(value._value) is not np.ndarray:
        return None
    return _Formula(_with_memory_of_its_own(program, value), value._name, program.known)


def _with_memory_of_its_own(program: _Lines, value: ArrayProxy) -> tuple[str, ...]:
    """The lines; a result that would only be repeated is written out at once."""
    lines, view = list(program.lines), f"{value._name} = xp.broadcast_to("
    if lines and lines[-1].startswith(view) and not value._value.flags.c_contiguous:
        program.known["filled"] = _filled
        lines[-1] = f"{value._name} = filled({lines[-1].removeprefix(view)}"
    return tuple(lines)


def _filled(x: Any, shape: tuple[int, ...]) -> Any:
    """``x`` broadcast to ``shape``, as ``np.ascontiguousarray`` would copy it."""
    out = np.empty(shape, x.dtype)
    out[...] = x
    return out


class _Lines(ArrayProgram):
    """The lines of one formula."""

    def skip(self, count: int) -> None:
        """So many names are taken."""
        self._count += count

    def admit(self, array: Any) -> None:
        raise Unreadable("an array of its own")

    def number(self, expression: str, value: Any) -> NumberProxy:
        """A number that is computed in each run."""
        name = self.fresh()
        self.write(f"{name} = {expression}")
        return NumberProxy(self, value, name)


def _sample(program: _Lines, name: str, signature: Any) -> Any:
    """What stands for an operand: an array, a number, or a constant itself."""
    if type(signature) is _Array:
        return program.named(_sample_array(signature), name)
    if signature in _NUMBERS:
        return NumberProxy(program, signature(3), name)
    return signature[0]


@functools.lru_cache(FORMULAS_MAX)
def _sample_array(signature: _Array) -> Any:
    """What is checked on it: that NumPy's own calls give the bits of the namespace's. Zeros and
    ones are right for indices and for masks."""
    values: Any = np.arange(int(np.prod(signature.shape))) % 7 * 0.37 - 1
    if signature.dtype.kind != "f":
        values = np.arange(values.size) % 2
    array = np.empty(signature.shape, signature.dtype)
    if signature.strides and signature.strides != array.strides and 0 not in signature.strides:
        order = np.argsort([-step for step in signature.strides], kind="stable")
        shape = [signature.shape[axis] for axis in order]
        array = np.empty(shape, signature.dtype).transpose(np.argsort(order))
    array[...] = values.reshape(signature.shape)
    return array
