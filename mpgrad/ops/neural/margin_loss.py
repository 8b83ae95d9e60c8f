"""Losses that are made of other operators: distances, margins and likelihoods."""

from __future__ import annotations

import math

from mpgrad.ops.calling.promotion import cast
from mpgrad.ops.elementwise.arithmetic import abs as absolute
from mpgrad.ops.elementwise.arithmetic import add, div, mul, neg, sqrt, square, sub
from mpgrad.ops.elementwise.comparison import eq, ge, gt, logical_not, lt
from mpgrad.ops.elementwise.minimum_maximum import clamp_min, minimum, where
from mpgrad.ops.elementwise.transcendental import exp, log
from mpgrad.ops.linear_algebra.norms import norm
from mpgrad.ops.neural.activation import logsigmoid, softplus
from mpgrad.ops.neural.loss_reduction import alike, check_reduction, meant_reduction, reduced
from mpgrad.ops.new_tensors.creation import ones_like
from mpgrad.ops.reductions import reduction as reductions
from mpgrad.recording.tensors.tensor import Tensor


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


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """The p-norm of ``x1 - x2 + eps`` over the last dimension."""
    return norm(add(sub(x1, x2), eps), p, -1, keepdim)


def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """``max(0, margin - target * (input1 - input2))`` for targets 1 and -1.

    Raises:
        RuntimeError: the three have different numbers of dimensions.
    """
    reduction = meant_reduction(reduction, size_average, reduce)
    if not input1.ndim == input2.ndim == target.ndim:
        raise RuntimeError(
            "margin_ranking_loss : All input tensors should have same dimension but got sizes: "
            f"input1: {input1.shape}, input2: {input2.shape}, target: {target.shape} "
        )
    # The target is negated first, as in PyTorch: bytes wrap around.
    return reduced(
        clamp_min(add(mul(neg(target), sub(input1, input2)), float(margin)), 0), reduction
    )


def hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """``input`` where the target is 1, ``max(0, margin - input)`` where it is -1."""
    reduction = meant_reduction(reduction, size_average, reduce)
    apart = where(eq(target, 1), 0, clamp_min(sub(margin, input), 0))
    near = where(eq(target, -1), 0, input)
    return reduced(add(apart, near), reduction)


def soft_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """``log(1 + exp(-target * input))`` for targets 1 and -1."""
    reduction = meant_reduction(reduction, size_average, reduce)
    losses = softplus(neg(mul(target, input)), threshold=math.inf)
    losses = cast(losses, input.dtype) if input.dtype.kind == "f" else losses
    return reduced(losses, reduction)


def multilabel_soft_margin_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Binary cross-entropy of logits, its mean over the classes (``input``'s last dimension)."""
    reduction = meant_reduction(reduction, size_average, reduce)
    hit = mul(target, logsigmoid(input))
    losses = neg(add(hit, mul(sub(1, target), logsigmoid(neg(input)))))
    losses = losses if weight is None else mul(losses, weight)
    classes = input.ndim - 1
    return reduced(div(reductions.sum(losses, classes), input.shape[classes]), reduction)


def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """``1 - cosine`` where the target is 1, ``max(0, cosine - margin)`` where it is -1.

    Args:
        input1: (batch, features) or (features,).
        input2: of the same shape.
        target: (batch,) or ().
        margin: cosines below it are no loss.
        size_average: an older form of ``reduction``, as is ``reduce``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Raises:
        RuntimeError: the shapes do not fit.
    """
    reduction = meant_reduction(reduction, size_average, reduce)
    if input1.ndim != target.ndim + 1 or input2.ndim != input1.ndim:
        raise RuntimeError(
            f"{target.ndim}D target tensor expects {target.ndim + 1}D input tensors, but found "
            f"inputs with sizes {list(input1.shape)} and {list(input2.shape)}."
        )

    def squares(a: Tensor) -> Tensor:
        return add(reductions.sum(square(a), -1), 1e-12)

    product = reductions.sum(mul(input1, input2), -1)
    cosine = div(product, sqrt(mul(squares(input1), squares(input2))))
    near = where(eq(target, 1), sub(1, cosine), 0.0)
    apart = where(eq(target, -1), clamp_min(sub(cosine, margin), 0), 0.0)
    return reduced(add(near, apart), reduction)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """``max(0, margin + |anchor - positive| - |anchor - negative|)``, in p-norms.

    Args:
        anchor: (batch, features) or (features,).
        positive: of the same shape.
        negative: of the same shape.
        margin: by how much the second distance has to be greater.
        p: which norm.
        eps: added to the differences.
        swap: take the distance of positive and negative where that is smaller.
        size_average: an older form of ``reduction``, as is ``reduce``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Raises:
        ValueError: ``margin`` is not positive.
        RuntimeError: the three have different numbers of dimensions.
    """
    reduction = meant_reduction(reduction, size_average, reduce)
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    if not anchor.ndim == positive.ndim == negative.ndim:
        raise RuntimeError(
            "The anchor, positive, and negative tensors are expected to have the same number of "
            f"dimensions, but got: anchor {anchor.ndim}D, positive {positive.ndim}D, and negative "
            f"{negative.ndim}D inputs"
        )
    near = pairwise_distance(anchor, positive, p, eps)
    apart = pairwise_distance(anchor, negative, p, eps)
    if swap:
        apart = minimum(apart, pairwise_distance(positive, negative, p, eps))
    return reduced(clamp_min(sub(add(near, margin), apart), 0), reduction)


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
