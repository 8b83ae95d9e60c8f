"""Backward hooks of a Module: they get the gradients of the inputs and outputs of one call.

The Module's inputs and outputs pass through an identity Function each; a hook on the Node of either
gets the gradients of all of them together.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mpgrad.autograd.function import Function
from mpgrad.autograd.functions.context import FunctionContext
from mpgrad.graph.grad_modes import is_grad_enabled
from mpgrad.graph.hooks import Hooks
from mpgrad.graph.node import Node
from mpgrad.tensors.tensor import Tensor

if TYPE_CHECKING:
    from mpgrad.nn.module import Module


class BackwardHookFunction(Function):
    """The identity on any number of tensors."""

    #: Its Node is between hooks, which run in the client.
    run_on = "client"

    @staticmethod
    def forward(ctx: FunctionContext, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.mark_non_differentiable(*[tensor for tensor in tensors if not tensor.requires_grad])
        return tensors

    @staticmethod
    def backward(ctx: FunctionContext, *grads: Tensor) -> tuple[Tensor, ...]:
        return grads


class ModuleHooks:
    """The hooks that are registered on one Module."""

    def __init__(self) -> None:
        self.before = Hooks()
        self.after = Hooks()
        #: ``(module, args, kwargs) -> (args, kwargs)``.
        self.before_forward = Hooks()
        #: ``(module, args, kwargs, result) -> result``.
        self.after_forward = Hooks()

    def call(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``module.forward``, with the hooks around it and its backward."""
        for hook in self.before_forward:
            args, kwargs = hook(module, args, kwargs)
        if self.before or self.after:
            result = self._call_watched(module, args, kwargs)
        else:
            result = module.forward(*args, **kwargs)
        for hook in self.after_forward:
            result = hook(module, args, kwargs, result)
        return result

    def _call_watched(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hooked = _HookedCall(module, self)
        result = module.forward(*hooked.with_inputs(args), **kwargs)
        if isinstance(result, tuple):
            return _like(result, hooked.with_outputs(result))
        if not isinstance(result, Tensor):
            warnings.warn(
                "For backward hooks to be called, module output should be a Tensor or a tuple of "
                f"Tensors but received {type(result)}",
                stacklevel=4,
            )
            return result
        return hooked.with_outputs((result,))[0]


class _HookedCall:
    """One call of a Module, until its backward has passed."""

    def __init__(self, module: Module, hooks: ModuleHooks) -> None:
        self._module, self._hooks = module, hooks
        #: Which arguments are tensors; None if no argument requires grad.
        self._inputs: list[int] | None = None
        self._input_count = 0
        self._outputs: list[int] | None = None
        self._output_count = 0
        #: The gradients of the outputs in this backward.
        self._grad_outputs: tuple[Any, ...] | None = None

    def with_inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments that ``forward`` gets."""
        self._input_count = len(args)
        args, self._inputs = _passed_through(args, self._after_inputs)
        return args

    def with_outputs(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The outputs that the caller gets."""
        self._output_count = len(values)
        values, self._outputs = _passed_through(values, self._after_outputs)
        return values

    # ------------------------------------------------------------------ in backward

    def _after_outputs(self, _: tuple[Any, ...], grads: tuple[Any, ...]) -> tuple[Any, ...]:
        """Post-hook of the outputs' Node, which is the first of the Module's to run."""
        assert self._outputs is not None
        grad_outputs = _spread(grads, self._outputs, self._output_count)
        for hook in self._hooks.before:
            returned = hook(self._module, grad_outputs)
            if returned is not None:
                grad_outputs = _replaced("Backward pre hook", "grad_output", returned, grad_outputs)
        if self._inputs is None:
            self._call_without_inputs(grad_outputs)
        else:
            self._grad_outputs = grad_outputs
        return tuple(grad_outputs[at] for at in self._outputs)

    def _call_without_inputs(self, grad_outputs: tuple[Any, ...]) -> None:
        warnings.warn(
            "Full backward hook is firing when gradients are computed with respect to module "
            "outputs since no inputs require gradients.",
            stacklevel=2,
        )
        nothing = (None,) * self._input_count
        for hook in self._hooks.after:
            returned = hook(self._module, nothing, grad_outputs)
            if returned is not None and not (
                isinstance(returned, tuple) and all(value is None for value in returned)
            ):
                raise RuntimeError(
                    "Backward hook for Modules where no input requires gradient should always "
                    "return None or None for all gradients."
                )

    def _after_inputs(self, grads: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Post-hook of the inputs' Node, the last one."""
        grad_outputs, self._grad_outputs = self._grad_outputs, None
        if grad_outputs is None:
            return None  # the gradient reached the inputs by another path than through the outputs
        assert self._inputs is not None
        grad_inputs = _spread(grads, self._inputs, self._input_count)
        for hook in self._hooks.after:
            returned = hook(self._module, grad_inputs, grad_outputs)
            if returned is not None:
                grad_inputs = _replaced("Backward hook", "grad_input", returned, grad_inputs)
        return tuple(grad_inputs[at] for at in self._inputs)


def _passed_through(
    values: tuple[Any, ...], hook: Callable[..., Any]
) -> tuple[tuple[Any, ...], list[int] | None]:
    """``values`` with the tensors sent through the identity, whose Node gets ``hook``.

    Returns:
        The values, and which of them are tensors; None if nothing is recorded.
    """
    positions = [at for at, value in enumerate(values) if isinstance(value, Tensor)]
    if not is_grad_enabled() or not any(values[at].requires_grad for at in positions):
        return values, None
    passed = BackwardHookFunction.apply(*[values[at] for at in positions])
    _node_of(passed).register_hook(hook)
    result = list(values)
    for at, tensor in zip(positions, passed, strict=True):
        result[at] = tensor
    return tuple(result), positions


def _node_of(tensors: Sequence[Tensor]) -> Node:
    return next(tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None)


def _spread(values: Sequence[Any], positions: Sequence[int], count: int) -> tuple[Any, ...]:
    """``count`` values: those given at ``positions``, None elsewhere."""
    result: list[Any] = [None] * count
    for at, value in zip(positions, values, strict=True):
        result[at] = value
    return tuple(result)


def _replaced(who: str, what: str, returned: Any, previous: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(returned) != len(previous):
        raise RuntimeError(
            f"{who} returned an invalid number of {what}, got {len(returned)}, but expected "
            f"{len(previous)}"
        )
    return tuple(returned)


def _like(original: tuple[Any, ...], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """``values`` in the type of ``original``, which may be a named tuple."""
    return values if type(original) is tuple else type(original)(*values)
