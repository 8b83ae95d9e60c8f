"""Nodes that freeze adds and that only the client may run: they call what the user registered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpgrad.autograd.accumulate_grad import AccumulateGrad
from mpgrad.autograd.grad_mode import no_grad
from mpgrad.autograd.node import Node
from mpgrad.autograd.running import note_early_change
from mpgrad.tensor import Tensor


class TensorHooks(Node):
    """Runs the tensor hooks of ``node``'s inputs between its producers and itself."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        super().__init__((), node.input_metadata, node.sequence_nr)
        self.node = node

    def name(self) -> str:
        return f"TensorHooks({self.node.name()})"

    def apply(self, xp: Any, grads: list[Any], needs: Sequence[bool]) -> list[Any]:
        hooks = self.node.tensor_hooks or {}
        return [
            _call_hooks(hooks[nr], grad) if grad is not None and nr in hooks else grad
            for nr, grad in enumerate(grads)
        ]


def _call_hooks(hooks: Any, array: Any) -> Any:
    grad = Tensor(array)
    with no_grad():
        for hook in hooks:
            returned = hook(grad)
            if returned is not None:
                _check_returned(hook, returned, grad)
                grad = returned
    return grad._array


def _check_returned(hook: Any, returned: Any, grad: Tensor) -> None:
    name = getattr(hook, "__name__", "<unknown>")
    if not isinstance(returned, Tensor):
        raise TypeError(
            f"hook '{name}' returned a {type(returned).__name__}; expected a Tensor or None"
        )
    if returned.shape != grad.shape:
        raise RuntimeError(
            f"hook '{name}' has changed the size of value: {grad.shape} to {returned.shape}"
        )
    if returned.dtype != grad.dtype:
        raise RuntimeError(
            f"hook '{name}' has changed the type of value: {grad.dtype} to {returned.dtype}"
        )


class PostAccumulate(Node):
    """Adds to ``.grad`` at once and calls the leaf's post-accumulate hooks.

    Optimizer-in-backward needs the gradient as soon as it is complete, so such a leaf does not
    wait for the commit at the end.
    """

    __slots__ = ("accumulator",)

    def __init__(self, accumulator: AccumulateGrad) -> None:
        super().__init__((), accumulator.input_metadata, accumulator.sequence_nr)
        self.accumulator = accumulator

    def name(self) -> str:
        return "AccumulateGrad"

    def apply(self, xp: Any, grads: list[Any], needs: Sequence[bool]) -> list[Any]:
        variable = self.accumulator.variable
        if grads[0] is None:
            return []
        self.accumulator.check()
        note_early_change(variable)
        self.accumulator.accumulate(grads[0], exclusive=False)
        with no_grad():
            for hook in variable._post_accumulate_hooks or ():
                if hook(variable) is not None:
                    raise RuntimeError("post accumulate grad hooks should return None")
        return []
