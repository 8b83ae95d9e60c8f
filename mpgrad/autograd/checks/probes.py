"""The checks of gradcheck beside the numbers: repetition, zero and undefined gradients, dtypes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.autograd.backward import grad
from mpgrad.autograd.checks.jacobians import Problem, from_reals, gradients_of, real_count
from mpgrad.autograd.function import Function
from mpgrad.ops.new_tensors import creation
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.recording.tensors.tensor import Tensor


class GradcheckError(RuntimeError):
    """A gradient is wrong; the message says how."""


class _Undefined(Function):
    """The identity, with a backward that returns no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> None:
        return None


def check_zero_seeds(problem: Problem) -> None:
    """Backward is linear: zeros in, zeros out, with the metadata of the inputs.

    Raises:
        GradcheckError: they are not.
    """
    outputs = problem.differentiable_outputs()
    seeds = [creation.zeros_like(out) for out in outputs]
    for number, (found, tensor) in enumerate(
        zip(gradients_of(outputs, problem.inputs, seeds), problem.inputs, strict=True)
    ):
        if found is None:
            continue
        if np.any(on_host(found._array)):
            raise GradcheckError(
                f"backward not multiplied by grad_output: the gradient of input {number} is not "
                "zero where all gradients of the outputs are"
            )
        if found.shape != tensor.shape:
            raise GradcheckError(
                f"grad is incorrect size: {found.shape} for input {number}, expected {tensor.shape}"
            )


def check_undefined(problem: Problem) -> None:
    """A backward must accept undefined gradients, for all or some of the outputs.

    Raises:
        GradcheckError: a gradient is neither undefined nor zero.
    """
    count = len(problem.differentiable_outputs())
    # First no output gets a gradient; then all but one get zeros and one gets none.
    choices = [set(range(count)), *({number} for number in range(count) if count > 1)]
    for undefined in choices:
        outputs = [
            _Undefined.apply(out) if number in undefined else out
            for number, out in enumerate(problem.differentiable_outputs())
        ]
        seeds = [creation.zeros_like(out) for out in outputs]
        try:
            found = gradients_of(outputs, problem.inputs, seeds)
        except RuntimeError as error:
            warnings.warn(
                "Backwards compatibility: New undefined gradient support checking feature is "
                "enabled by default; check_undefined_grad=False leaves it out.",
                UserWarning,
                stacklevel=4,
            )
            raise GradcheckError(
                "Expected backward function to handle undefined output grads, but it raised "
                f"{type(error).__name__}: {error}. A Function or a hook must accept None, or pass "
                "check_undefined_grad=False to skip this check."
            ) from error
        if any(value is not None and np.any(on_host(value._array)) for value in found):
            raise GradcheckError(
                "Expected all input grads to be undefined or zero when all output grads are "
                "undefined or zero. Let backward return None, or multiply by its gradients; "
                "check_undefined_grad=False skips this check."
            )


def check_dtypes(problem: Problem) -> None:
    """Each gradient has the dtype of its input.

    Raises:
        GradcheckError: a gradient has another dtype.
    """
    outputs = problem.differentiable_outputs()
    seeds = [creation.ones_like(out) for out in outputs]
    for number, (found, tensor) in enumerate(
        zip(gradients_of(outputs, problem.inputs, seeds), problem.inputs, strict=True)
    ):
        if found is not None and found.dtype != tensor.dtype:
            raise GradcheckError(
                f"Gradient has dtype mismatch: {found.dtype} for input {number}, expected "
                f"{tensor.dtype}"
            )


def check_batched(problem: Problem, generator: np.random.Generator) -> None:
    """``is_grads_batched`` gives the same results as one backward for each seed.

    Raises:
        GradcheckError: the results differ.
    """
    for number, output in enumerate(problem.differentiable_outputs()):
        seeds = [
            from_reals(generator.standard_normal(real_count(output)), output._array)
            for _ in range(2)
        ]
        single = [gradients_of([output], problem.inputs, [beside(output, s)]) for s in seeds]
        together = grad(
            [output],
            list(problem.inputs),
            [beside(output, np.stack(seeds))],
            retain_graph=True,
            allow_unused=True,
            is_grads_batched=True,
        )
        for at, (batch, *rows) in enumerate(zip(together, *single, strict=True)):
            if batch is not None and not _same_rows(batch, rows):
                raise GradcheckError(
                    "While computing batched gradients, got gradients of output "
                    f"{number} with respect to input {at} that differ from those of one backward "
                    "for each seed"
                )


def _same_rows(batch: Tensor, rows: Sequence[Tensor | None]) -> bool:
    return all(
        row is not None and np.allclose(part, on_host(row._array))
        for part, row in zip(on_host(batch._array), rows, strict=True)
    )
