"""CheckpointFunction: checkpointing by a backward inside the backward (``use_reentrant=True``)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from mpgrad.autograd.backward import backward
from mpgrad.autograd.function import Function
from mpgrad.autograd.function_nodes.context import FunctionContext
from mpgrad.autograd.running.running_backward import checkpoint_is_valid
from mpgrad.ops.generators import fork_rng, get_rng_state, set_rng_state
from mpgrad.recording.graph.grad_modes import enable_grad
from mpgrad.recording.tensors.tensor import Tensor


def detach_variable(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The tensors of ``inputs`` without their history; other values unchanged.

    Raises:
        RuntimeError: ``inputs`` is not a tuple.
    """
    if not isinstance(inputs, tuple):
        raise RuntimeError(
            "Only tuple of tensors is supported. Got Unsupported input type: "
            f"{type(inputs).__name__}"
        )
    return tuple(
        value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value
        for value in inputs
    )


def check_backward_validity(inputs: Iterable[Any]) -> None:
    """Warn if no tensor of ``inputs`` requires grad: then there will be no gradients."""
    if not any(isinstance(value, Tensor) and value.requires_grad for value in inputs):
        warnings.warn(
            "None of the inputs have requires_grad=True. Gradients will be None",
            UserWarning,
            stacklevel=2,
        )


class CheckpointFunction(Function):
    """Runs a function unrecorded; its backward runs it again, recorded, and differentiates it.

    ``apply(function, preserve_rng_state, *args)``.
    """

    run_on: ClassVar[str | None] = "client"

    @staticmethod
    def forward(
        ctx: Any, function: Callable[..., Any], preserve_rng_state: bool, *args: Any
    ) -> Any:
        check_backward_validity(args)
        ctx.function = function
        ctx.rng_state = get_rng_state() if preserve_rng_state else None
        ctx.inputs = [None if isinstance(value, Tensor) else value for value in args]
        ctx.positions = [at for at, value in enumerate(args) if isinstance(value, Tensor)]
        ctx.save_for_backward(*(args[at] for at in ctx.positions))
        return function(*args)

    @staticmethod
    def backward(ctx: FunctionContext, *grads: Any) -> Any:
        """
        Raises:
            RuntimeError: only some gradients are computed, or no output of the function requires
                grad.
        """
        if not checkpoint_is_valid():
            raise RuntimeError(
                "When use_reentrant=True, mpgrad.utils.checkpoint is incompatible with .grad() or "
                "passing an `inputs` parameter to .backward(). To resolve this error, you can "
                "either set use_reentrant=False, or call .backward() without passing the `inputs` "
                "argument."
            )
        inputs, outputs = _call_again(ctx)
        chosen = [
            (output, grad)
            for output, grad in zip(outputs, grads, strict=False)
            if isinstance(output, Tensor) and output.requires_grad
        ]
        if not chosen:
            raise RuntimeError(
                "none of output has requires_grad=True, this checkpoint() is not necessary"
            )
        backward([output for output, _ in chosen], [grad for _, grad in chosen])
        found = (value.grad if isinstance(value, Tensor) else None for value in inputs)
        return None, None, *found


def _call_again(ctx: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The inputs without their history, and the outputs of the function for them."""
    values = list(ctx.inputs)
    for at, tensor in zip(ctx.positions, ctx.saved_tensors, strict=True):
        values[at] = tensor
    inputs = detach_variable(tuple(values))
    with fork_rng(ctx.rng_state is not None), enable_grad():
        if ctx.rng_state is not None:
            set_rng_state(ctx.rng_state)
        outputs = ctx.function(*inputs)
    return inputs, outputs if isinstance(outputs, tuple) else (outputs,)
