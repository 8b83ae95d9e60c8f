"""Losses with a margin, and distances."""

from __future__ import annotations

import math

from mpgrad.ops.calling.promotion import cast
from mpgrad.ops.elementwise.arithmetic import add, div, mul, neg, sqrt, square, sub
from mpgrad.ops.elementwise.comparison import eq
from mpgrad.ops.elementwise.minimum_maximum import clamp_min, minimum, where
from mpgrad.ops.linear_algebra.norms import norm
from mpgrad.ops.neural.activation import logsigmoid, softplus
from mpgrad.ops.neural.loss_reduction import meant_reduction, reduced
from mpgrad.ops.reductions import reduction as reductions
from mpgrad.recording.tensors.tensor import Tensor


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
