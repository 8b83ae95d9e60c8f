"""Backward hooks of a Module: they get the gradients of the inputs and outputs of one call.

The Module's inputs and outputs pass through an identity Function each; a hook on the Node of either
gets the gradients of all of them together.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from mpgrad.autograd.function import Function
from mpgrad.autograd.function_nodes.context import FunctionContext
from mpgrad.recording.graph.grad_modes import is_grad_enabled
from mpgrad.recording.graph.node import Node
from mpgrad.recording.tensors.tensor import Tensor

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


Hook = Callable[..., Any]


class WatchedCall:
    """One call of a Module with hooks around its backward, until that has passed.

    Args:
        module: whose call it is.
        before: hooks that get the gradients of the outputs.
        after: hooks that get those of the inputs, too.
    """

    def __init__(self, module: Module, before: Sequence[Hook], after: Sequence[Hook]) -> None:
        self._module, self._before, self._after = module, before, after
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

    def with_result(self, result: Any) -> Any:
        """The result that the caller gets."""
        if isinstance(result, tuple):
            return _like(result, self._with_outputs(result))
        if isinstance(result, Tensor):
            return self._with_outputs((result,))[0]
        warnings.warn(
            "For backward hooks to be called, module output should be a Tensor or a tuple of "
            f"Tensors but received {type(result)}",
            stacklevel=6,
        )
        return result

    def _with_outputs(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        self._output_count = len(values)
        values, self._outputs = _passed_through(values, self._after_outputs)
        return values

    # ------------------------------------------------------------------ in backward

    def _after_outputs(self, _: tuple[Any, ...], grads: tuple[Any, ...]) -> tuple[Any, ...]:
        """Post-hook of the outputs' Node, which is the first of the Module's to run."""
        assert self._outputs is not None
        grad_outputs = _spread(grads, self._outputs, self._output_count)
        for hook in self._before:
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
        for hook in self._after:
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
        for hook in self._after:
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


def watch_last_node(
    module: Module, args: tuple[Any, ...], result: Any, hooks: Sequence[Hook]
) -> None:
    """Register ``hooks`` of ``module`` on the Node of the first tensor in ``result``.

    A warning says so if that is not the only Node of the call.
    """
    first = result
    while not isinstance(first, Tensor):
        values = iter(first.values() if isinstance(first, dict) else first)
        first = next((v for v in values if isinstance(v, Tensor | tuple | list | dict)), None)
        if first is None:
            return
    node = first.grad_fn
    if node is None:
        return
    for hook in hooks:
        node.register_hook(partial(hook, module))
    results = (result,) if isinstance(result, Tensor) else result
    if not (_are_tensors(results) and _are_tensors(args)):
        why = "takes or returns something else than Tensors"
    elif {tensor.grad_fn for tensor in results} - {None} != {node}:
        why = "has outputs of different autograd Nodes"
    elif {tensor.grad_fn for tensor in args} - {None} != {to for to, _ in node.next_functions}:
        why = "contains multiple autograd Nodes"
    else:
        return
    warnings.warn(
        f"Using a non-full backward hook on a Module whose forward {why} is deprecated: the hook "
        "will be missing some grad_input or grad_output. Please use register_full_backward_hook "
        "to get the documented behavior.",
        FutureWarning,
        stacklevel=5,
    )


def _are_tensors(values: Any) -> bool:
    return isinstance(values, tuple) and all(isinstance(value, Tensor) for value in values)


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
