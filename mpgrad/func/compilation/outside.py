"""Outside: the Tensors that were there before a traced call, and what it made of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpgrad.arrays.cpu.array_program import ArrayProgram
from mpgrad.func.compilation.arguments import flags, looks
from mpgrad.func.compilation.traced_call import CallProgram
from mpgrad.recording.tensors.storage import INFERENCE
from mpgrad.recording.tensors.tensor import Tensor


class Before(NamedTuple):
    """What a Tensor was like."""

    version: int
    grad: Tensor | None
    requires_grad: bool
    grad_fn: Any
    view: Any
    array: Any
    #: Stands for it while the call is traced.
    traced: Any


class Outside:
    """The arguments, the Tensors of the surroundings, and the ``.grad`` of both.

    Args:
        program: of the call.
        arguments: (name, Tensor): their arrays have other names in each run.
        tensors: those of the surroundings: each is the same Tensor in each run.
    """

    def __init__(
        self,
        program: ArrayProgram,
        arguments: Sequence[tuple[str, Tensor]],
        tensors: Sequence[Tensor],
    ) -> None:
        self._before: dict[str, tuple[Tensor, Before]] = {}
        self._counted: set[int] = set()
        self._arguments = [name for name, _ in arguments]
        self.grads: dict[str, str] = {}
        self.reason = ""
        taken: set[int] = set()
        for name, tensor in arguments:
            taken.add(id(tensor))
            self._add(program, name, f"a{name[1:]}", tensor)
        for tensor in tensors:
            if id(tensor) not in taken:
                taken.add(id(tensor))
                name = program.bound(tensor, "p")
                self._add(program, name, program.bound(tensor._array, f"{name}_array"), tensor)
        for name, (tensor, _) in list(self._before.items()):
            grad = tensor._grad
            if grad is not None and id(grad) not in taken:
                taken.add(id(grad))
                self.grads[f"{name}._grad"] = traced = f"grad_{name}"
                self._add(program, f"{name}._grad", traced, grad)

    def _add(self, program: ArrayProgram, name: str, array_name: str, tensor: Tensor) -> None:
        array = tensor._array
        if type(array) is not np.ndarray:
            self.reason = "a tensor on a GPU is not compiled"
        elif tensor._leaf_hooks is not None or tensor._post_accumulate_hooks:
            self.reason = "a tensor with hooks is not compiled"
        self._before[name] = (
            tensor,
            Before(
                tensor._version_counter.value,
                tensor._grad,
                tensor._requires_grad,
                tensor._grad_fn,
                tensor._view,
                array,
                program.named(array, array_name),
            ),
        )

    # ------------------------------------------------------------------ while it is traced

    def enter(self) -> None:
        """From here on their arrays are traced."""
        for tensor, before in self._before.values():
            tensor._array = before.traced

    def leave(self) -> None:
        """They have real arrays again."""
        for tensor, before in self._before.values():
            if tensor._array is before.traced:
                tensor._array = before.array

    # ------------------------------------------------------------------ what became of them

    def names(self) -> dict[int, tuple[str, Tensor]]:
        """By id what a Tensor is called in the program."""
        return {id(tensor): (name, tensor) for name, (tensor, _) in self._before.items()}

    def changed(self, program: CallProgram) -> Iterator[tuple[str, Tensor, Before]]:
        """All of them, as they were before."""
        for name, (tensor, before) in self._before.items():
            if tensor._array is not before.traced and tensor._array is not before.array:
                program.give_up("it gives a tensor other memory (set_, .data, resize_)")
            state = (tensor._requires_grad, tensor._grad_fn, tensor._view)
            if state != (before.requires_grad, before.grad_fn, before.view):
                program.give_up("it changes whether a tensor requires grad, or its history")
            if tensor._version_counter.value != before.version and before.view is not None:
                program.give_up("it changes a view that it was given in place")
            yield name, tensor, before

    def is_counted(self, tensor: Tensor) -> bool:
        """Whether the version counter of ``tensor`` was asked for before: several may share it."""
        key = id(tensor._version_counter)
        if tensor._version_counter is INFERENCE or key in self._counted:
            return True
        self._counted.add(key)
        return False

    def counter_of(self, tensor: Tensor) -> str | None:
        """The version counter that a result shares with one of these."""
        for name, (other, _) in self._before.items():
            if other._version_counter is tensor._version_counter:
                return f"{name}._version_counter"
        return None

    # ------------------------------------------------------------------ a further call

    def conditions(self, program: CallProgram) -> list[str]:
        """What has to hold of them."""
        found = []
        arrays = []
        for name, (tensor, before) in self._before.items():
            if name in self._arguments:
                arrays.append(before.array)
            elif name in self.grads:
                if self._is_used(program, self.grads[name]):
                    array = f"{name}._array"
                    found += [*looks(program, array, before.array), *_as_it_was(name, before)]
            else:
                array = program.bound(before.array, f"{name}_array")
                found.append(f"{name}._array is {array} and {flags_then(name, tensor, before)}")
        others = [b.array for n, (_, b) in self._before.items() if n not in self._arguments]
        roots = {id(root_of(array)) for array in others}
        if not lie_apart(arrays, frozenset(roots)):
            program.give_up("arguments share memory, with another or with a parameter")
        program.known["lie_apart"] = lie_apart
        names = ", ".join(f"a{name[1:]}" for name in self._arguments)
        if names:
            memory = program.bound(frozenset(roots), "memory")
            program.bound([root_of(array) for array in others], "held")  # so that ids stay theirs
            found.append(f"lie_apart(({names},), {memory})")
        return found

    def entry(self, program: CallProgram) -> list[str]:
        """Gives the arrays of those ``.grad`` names that the program reads."""
        return [
            f"{traced} = {name}._array"
            for name, traced in self.grads.items()
            if self._is_used(program, traced)
        ]

    def _is_used(self, program: CallProgram, name: str) -> bool:
        return any(name in line for line in program.lines)


def _as_it_was(name: str, before: Before) -> list[str]:
    return [f"{name}._requires_grad is {before.requires_grad} and {name}._view is None"]


def flags_then(name: str, tensor: Tensor, before: Before) -> str:
    """As ``flags``, of what the Tensor was before the call."""
    now, tensor._grad = tensor._grad, before.grad
    try:
        return flags(name, tensor)[0]
    finally:
        tensor._grad = now


def root_of(array: Any) -> Any:
    """The array whose memory it is."""
    while type(array.base) is np.ndarray:
        array = array.base
    return array


def lie_apart(arrays: Sequence[Any], roots: frozenset[int]) -> bool:
    """Whether none of ``arrays`` shares memory with another, or with what has the ids ``roots``."""
    seen: dict[int, Any] = {}
    for array in arrays:
        key = id(array if array.base is None else root_of(array))
        if key in roots:
            return False
        if key in seen and any(np.may_share_memory(array, other) for other in arrays
                               if other is not array):  # fmt: skip
            return False
        seen[key] = array
    return True
