"""Arguments: what a function was called with, and how a further call is known to be alike."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpgrad.arrays.cpu.array_program import ArrayProgram
from mpgrad.calls.custom_functions.constants import is_constant
from mpgrad.recording.tensors.tensor import Tensor


def is_namedtuple(kind: type) -> bool:
    """Whether ``kind`` is a class of named tuples."""
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


class Arguments:
    """The arguments of the traced call.

    Attributes:
        lines: give each Tensor and its array a name.
        conditions: what has to hold of a further call's.
        tensors: (name, Tensor) of each.
        objects: other things than Tensors, containers and constants: (label, value).
        reason: why such a call is not compiled; empty if it is.
    """

    def __init__(self, program: ArrayProgram, args: Any, kwargs: dict[str, Any]) -> None:
        self._program = program
        self.lines: list[str] = []
        self.conditions: list[str] = []
        self.tensors: list[tuple[str, Tensor]] = []
        self.objects: list[tuple[str, Any]] = []
        self.reason = ""
        self._walk(args, "args", "args")
        self._walk(kwargs, "kwargs", "kwargs")

    def _walk(self, value: Any, expression: str, label: str) -> None:
        kind = type(value)
        if isinstance(value, Tensor):
            self._add_tensor(value, expression)
        elif kind in (list, tuple) or is_namedtuple(kind):
            name = self._program.bound(kind, kind.__name__)
            self._require(f"type({expression}) is {name} and len({expression}) == {len(value)}")
            for at, item in enumerate(value):
                self._walk(item, f"{expression}[{at}]", f"{label}[{at}]")
        elif kind is dict:
            keys = self._program.bound(list(value), "keys")
            self._require(f"list({expression}) == {keys}" if value else f"not {expression}")
            for key, item in value.items():
                name = f"[{self._program.text(key)}]"
                self._walk(item, expression + name, label + name)
        elif is_constant(value):
            name = self._program.bound(value, "k")
            self._require(f"{expression} is {name} or same({expression}, {name})")
        elif isinstance(value, np.ndarray):
            self.reason = f"{label} is a NumPy array; give the function a tensor"
        else:
            self._require(f"{expression} is {self._program.bound(value, 'k')}")
            self.objects.append((label, value))

    def _require(self, condition: str) -> None:
        # Among the lines: a Tensor is read only where the containers around it are as before.
        self.lines += [f"if not ({condition}):", "    return MISS"]

    def _add_tensor(self, tensor: Tensor, expression: str) -> None:
        known = [name for name, other in self.tensors if other is tensor]
        if known:
            self._require(f"{expression} is {known[0]}")
            return
        at = len(self.tensors)
        name, array = f"x{at}", f"a{at}"
        self.tensors.append((name, tensor))
        self.lines += [f"{name} = {expression}", f"{array} = {name}._array"]
        kind = self._program.bound(type(tensor), type(tensor).__name__)
        self.conditions += [f"type({name}) is {kind}", *looks(self._program, array, tensor._array)]
        self.conditions += flags(name, tensor)


def looks(program: ArrayProgram, name: str, array: Any) -> list[str]:
    """What an array has to be like."""
    dtype = program.bound(array.dtype, "dtype")
    return [
        f"type({name}) is ndarray and {name}.dtype is {dtype} and {name}.shape == {array.shape} "
        f"and {name}.strides == {array.strides}"
    ]


def flags(name: str, tensor: Tensor) -> list[str]:
    """What a Tensor has to be like, its array aside."""
    wanted = [
        f"{name}._requires_grad is {tensor._requires_grad}",
        f"{name}._grad_fn is {'' if tensor._grad_fn is None else 'not '}None",
        f"{name}._view is {'' if tensor._view is None else 'not '}None",
        f"{name}._leaf_hooks is None and not {name}._post_accumulate_hooks",
        f"{name}._grad is {'' if tensor._grad is None else 'not '}None",
    ]
    if tensor._view is not None:
        wanted.append(f"{name}.requires_grad is {tensor.requires_grad}")
    return [" and ".join(wanted)]
