"""Losses of numbers: squared and absolute errors, Huber's, likelihoods of counts and of normals."""

from __future__ import annotations

import math
from typing import Any

from mpgrad.ops.calling.promotion import cast, operands, refuse_complex
from mpgrad.ops.elementwise.arithmetic import abs as absolute
from mpgrad.ops.elementwise.arithmetic import add, div, mul, square, sub
from mpgrad.ops.elementwise.comparison import ge, gt, logical_not, lt
from mpgrad.ops.elementwise.minimum_maximum import where
from mpgrad.ops.elementwise.transcendental import exp, log
from mpgrad.ops.neural.loss_reduction import alike, check_reduction, meant_reduction, reduced
from mpgrad.ops.new_tensors.creation import ones_like
from mpgrad.ops.reductions import reduction as reductions
from mpgrad.ops.reductions.reduction import mean_of
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor


def _mse_forward(xp: Any, input: Any, target: Any, *, reduction: str) -> Any:
    squares = xp.square(xp.subtract(input, target))
    if reduction == "none":
        return squares
    return xp.sum(squares) if reduction == "sum" else mean_of(xp, squares, None, keepdim=False)


def _mse_grad(xp: Any, grad: Any, input: Any, target: Any, reduction: str) -> Any:
    difference = xp.subtract(input, target)
    scale = 2 / max(math.prod(difference.shape), 1) if reduction == "mean" else 2
    return xp.multiply(difference, xp.multiply(grad, scale))


_mse_loss = operator(
    "mse_loss",
    _mse_forward,
    input=lambda xp, grad, input, target, input_shape, reduction: xp.sum_to(
        _mse_grad(xp, grad, input, target, reduction), input_shape
    ),
    target=lambda xp, grad, input, target, target_shape, reduction: xp.sum_to(
        xp.negative(_mse_grad(xp, grad, input, target, reduction)), target_shape
    ),
)


def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The squared difference of each pair of elements."""
    reduction = meant_reduction(reduction, size_average, reduce)
    a, b = operands(*alike("mse_loss", input, target), float_result=True)
    refuse_complex("mse_loss", a, b)
    return call(_mse_loss, a, b, reduction=reduction)


def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The absolute difference of each pair of elements."""
    reduction = meant_reduction(reduction, size_average, reduce)
    return reduced(absolute(sub(*alike("l1_loss", input, target))), reduction)


def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """Squared below ``beta``, absolute above it (Girshick, "Fast R-CNN", 2015).

    Raises:
        RuntimeError: ``beta`` is negative.
    """
    reduction = meant_reduction(reduction, size_average, reduce)
    if beta < 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")
    difference = sub(*alike("smooth_l1_loss", input, target))
    error = absolute(difference)
    if beta == 0:
        return reduced(error, reduction)
    # As in huber_loss.
    is_small = logical_not(ge(error, beta))
    inside = mul(square(where(is_small, difference, 0.0)), 0.5 / beta)
    return reduced(where(is_small, inside, sub(error, 0.5 * beta)), reduction)


def huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    """Half the square below ``delta``, ``delta`` times the absolute error above (Huber, 1964).

    The mean is that over the elements, also where they have weights.

    Raises:
        RuntimeError: ``delta`` is not positive.
        ValueError: ``weight`` has another shape than ``input``.
    """
    check_reduction(reduction)
    if delta <= 0:
        raise RuntimeError("huber_loss does not support non-positive values for delta.")
    alike("huber_loss", input, target)
    difference = sub(input, target)
    error = absolute(difference)
    # Only selected values are squared: other squares might overflow, and spoil the gradient. They
    # keep their sign: the square of an absolute value has no second derivative at 0.
    is_small = logical_not(ge(error, delta))
    inside = mul(square(where(is_small, difference, 0.0)), 0.5)
    losses = where(is_small, inside, mul(sub(error, 0.5 * delta), delta))
    losses = cast(losses, input.dtype) if input.dtype.kind == "f" else losses
    if weight is not None:
        if weight.shape != input.shape:
            raise ValueError(
                f"huber_loss(): weights and input must have the same size, but they have the "
                f"shapes {tuple(weight.shape)} and {tuple(input.shape)}"
            )
        losses = mul(losses, weight)
    return reduced(losses, reduction)


def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The negative log-likelihood of counts ``target`` under Poisson distributions.

    Args:
        input: the rates, or their logarithms with ``log_input``.
        target: counts.
        log_input: ``input`` is in logarithms.
        full: add Stirling's approximation of ``log(target!)`` where the count is above 1.
        eps: added to the rates before the logarithm.
        size_average: an older form of ``reduction``, as is ``reduce``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
    """
    reduction = meant_reduction(reduction, size_average, reduce)
    if log_input:
        losses = sub(exp(input), mul(target, input))
    else:
        losses = sub(input, mul(target, log(add(input, eps))))
    if full:
        many = gt(target, 1)
        counts = where(many, target, 1)
        stirling = add(
            sub(mul(counts, log(counts)), counts), mul(log(mul(counts, 2 * math.pi)), 0.5)
        )
        losses = add(losses, where(many, stirling, 0.0))
    return reduced(losses, reduction)


def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """The negative log-likelihood of ``target`` under normal distributions.

    Args:
        input: the means.
        target: of the same shape, or one that broadcasts.
        var: the variances: of the shape of ``input``, without its last dimension, or with length 1
            in one of them; or one number.
        full: add the constant ``log(2 * pi) / 2``.
        eps: variances are at least this, in gradients only through those above.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Raises:
        ValueError: a variance is negative, or the shapes do not fit.
    """
    check_reduction(reduction)
    if not isinstance(var, Tensor):
        if var < 0:
            raise ValueError("var has negative entry/entries")
        var = mul(ones_like(input), var)
    if var.shape != input.shape:
        others = [n for n, length in zip(var.shape, input.shape, strict=False) if n != length]
        if input.shape[:-1] == var.shape:
            var = var.unsqueeze(-1)
        elif var.ndim != input.ndim or others != [1]:
            raise ValueError("var is of incorrect size")
    if bool(reductions.any(lt(var, 0)).item()):
        raise ValueError("var has negative entry/entries")
    # The gradient passes through the limit unchanged, as in PyTorch.
    limited = where(lt(var, eps), add(sub(var, var.detach()), eps), var)
    losses = mul(add(log(limited), div(square(sub(input, target)), limited)), 0.5)
    if full:
        losses = add(losses, 0.5 * math.log(2 * math.pi))
    return reduced(losses, reduction)
