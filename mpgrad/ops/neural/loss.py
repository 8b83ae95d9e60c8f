"""Losses of classes and probabilities: negative log-likelihood, cross-entropy, divergence."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpgrad.arrays.cpu.array_program import value_check
from mpgrad.arrays.cpu.cpu_indexing import INDEX
from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.ops.by_index.indexing import getitem
from mpgrad.ops.calling.promotion import cast, operands
from mpgrad.ops.elementwise.arithmetic import add, div, mul, neg, sub
from mpgrad.ops.elementwise.comparison import ne
from mpgrad.ops.elementwise.minimum_maximum import where
from mpgrad.ops.elementwise.transcendental import exp, xlogy
from mpgrad.ops.neural.activation import log_softmax, logsigmoid
from mpgrad.ops.neural.loss_reduction import meant_reduction, reduced
from mpgrad.ops.reductions import reduction as reductions
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor


def _class_dim(shape: tuple[int, ...]) -> int:
    """Classes come first in a single sample, second in a batch."""
    return 0 if len(shape) == 1 else 1


def _sample_weights(
    xp: Any, target: Any, weight: Any, ignore_index: int, dtype: Any
) -> tuple[Any, Any, Any]:
    """Which samples count, their weights (0 for others), and the targets without ignored ones."""
    counts = xp.not_equal(target, ignore_index)
    safe = xp.where(counts, target, 0)
    if weight is None:
        return counts, xp.astype(counts, dtype), safe
    weights = xp.where(counts, xp.getitem(weight, (INDEX,), (safe,)), 0.0)
    return counts, xp.astype(weights, dtype), safe


def _with_class(xp: Any, x: Any, dim: int) -> Any:
    """``x`` with a class dimension of length 1."""
    return xp.reshape(x, (*x.shape[:dim], 1, *x.shape[dim:]))


def _nll_forward(
    xp: Any, input: Any, target: Any, weight: Any, *, ignore_index: int, reduction: str
) -> Any:
    dim = _class_dim(input.shape)
    counts, weights, safe = _sample_weights(xp, target, weight, ignore_index, input.dtype)
    if input.ndim == 2:
        picked = xp.getitem(input, (INDEX, INDEX), (xp.arange(len(input)), safe))
    else:
        picked = xp.reshape(
            xp.take_along_axis(input, _with_class(xp, safe, dim), dim), target.shape
        )
    losses = xp.negative(picked)
    if weight is not None:
        losses = xp.multiply(losses, weights)
    # Selected, not multiplied by 0: an ignored value may be infinite.
    losses = xp.where(counts, losses, 0.0)
    if reduction == "none":
        return losses
    total = xp.sum(losses)
    return total if reduction == "sum" else xp.divide(total, xp.sum(weights))


def _nll_grad(
    xp: Any,
    grad: Any,
    target: Any,
    weight: Any,
    input_shape: tuple[int, ...],
    input_dtype: Any,
    ignore_index: int,
    reduction: str,
) -> Any:
    dim = _class_dim(input_shape)
    counts, weights, safe = _sample_weights(xp, target, weight, ignore_index, input_dtype)
    if reduction == "mean":
        grad = xp.divide(grad, xp.sum(weights))
    share = xp.negative(grad if weight is None else xp.multiply(weights, grad))
    share = xp.where(counts, share, 0.0)
    return xp.scatter_along_axis(
        _with_class(xp, share, dim), _with_class(xp, safe, dim), dim, input_shape[dim]
    )


_nll_loss = operator("nll_loss", _nll_forward, input=_nll_grad)


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The negative log-probability of each target class.

    Args:
        input: log-probabilities, (batch, classes), (batch, classes, ...) or (classes,).
        target: class indices, of that shape without the classes.
        weight: (classes,), one factor per class, or None.
        ignore_index: targets of this value count nothing.
        size_average: an older form of ``reduction``, as is ``reduce``.
        reduction: ``"mean"`` (weighted), ``"sum"`` or ``"none"``.

    Raises:
        IndexError: a target is no class.
        ValueError: the batches of ``input`` and ``target`` differ.
        RuntimeError: other shapes do not fit, or the targets are no integers.
    """
    reduction = meant_reduction(reduction, size_average, reduce)
    shape, samples = input._array.shape, target._array.shape
    dim = _class_dim(shape)
    expected = shape[:dim] + shape[dim + 1 :]
    if len(shape) > 1 and shape[0] != (samples[0] if samples else 0):
        raise ValueError(
            f"nll_loss: Expected input batch_size ({shape[0]}) to match target batch_size "
            f"({samples[0] if samples else 0})."
        )
    if not shape or samples != expected:
        raise RuntimeError(f"nll_loss: Expected target size {list(expected)}, got {list(samples)}")
    if target._array.dtype.kind not in "iu":
        raise RuntimeError(f"nll_loss: expected integer class indices, but got {target.dtype}")
    _check_weight(weight, shape[dim])
    check_targets(on_host(target._array), shape[dim], ignore_index)
    return _nll_loss.run(  # type: ignore[no-any-return]
        input, target, weight, ignore_index=ignore_index, reduction=reduction
    )


def _check_weight(weight: Tensor | None, classes: int) -> None:
    if weight is not None and weight.shape != (classes,):
        raise RuntimeError(
            f"weight tensor should be defined either for all {classes} classes or no classes but "
            f"got weight tensor of shape: {list(weight.shape)}"
        )


@value_check
def check_targets(array: Any, classes: int, ignore_index: int) -> None:
    """Check the elements of ``array``.

    Raises:
        IndexError: an element is neither in [0, ``classes``) nor ``ignore_index``.
    """
    # A negative number without its sign is larger than any class.
    if np.maximum.reduce(array.view(f"u{array.itemsize}"), axis=None, initial=0) < classes:
        return
    wrong = ((array < 0) | (array >= classes)) & (array != ignore_index)
    if wrong.any():
        raise IndexError(f"Target {array[wrong].flat[0]} is out of bounds for {classes} classes.")


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """:func:`nll_loss` of ``log_softmax(input)``.

    Args:
        input: logits, (batch, classes), (batch, classes, ...) or (classes,).
        target: class indices, or class probabilities of the shape of ``input``.
        weight: (classes,), one factor per class, or None.
        ignore_index: class indices of this value count nothing.
        size_average: an older form of ``reduction``, as is ``reduce``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: share of each target that is spread over all classes evenly.

    Raises:
        IndexError: a target is no class.
        ValueError: the batches of ``input`` and ``target`` differ.
        RuntimeError: other shapes or dtypes do not fit, or ``label_smoothing`` is out of [0, 1].
    """
    reduction = meant_reduction(reduction, size_average, reduce)
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    shape = input._array.shape
    dim = _class_dim(shape)
    if len(shape) > 1 and target._array.shape[:1] not in ((), shape[:1]):
        raise ValueError(
            f"Expected input batch_size ({shape[0]}) to match target batch_size "
            f"({target.shape[0]})."
        )
    logs = log_softmax(input, dim)
    _check_weight(weight, shape[dim])
    if target._array.shape == shape and target._array.dtype.kind == "f":
        if ignore_index >= 0:
            raise RuntimeError("ignore_index is not supported for floating point target")
        return _soft_cross_entropy(logs, target, weight, reduction, label_smoothing)
    plain = nll_loss(logs, target, weight, ignore_index=ignore_index, reduction=reduction)
    if label_smoothing == 0:
        return plain
    counts = ne(target, ignore_index)
    spread = where(counts, neg(reductions.sum(_per_class(logs, weight), dim)), 0.0)
    if reduction == "mean":
        kept = where(counts, target, 0)
        weights = (
            cast(counts, logs.dtype)
            if weight is None
            else (where(counts, getitem(weight, kept), 0.0))
        )
        spread = div(reductions.sum(spread), reductions.sum(weights))
    else:
        spread = reduced(spread, reduction)
    share = label_smoothing / input.shape[dim]
    return add(mul(plain, 1 - label_smoothing), mul(spread, share))


def _per_class(logs: Tensor, weight: Tensor | None) -> Tensor:
    """``logs`` times the weight of each class."""
    if weight is None:
        return logs
    dim = _class_dim(logs.shape)
    return mul(logs, getitem(weight, (slice(None), *(None,) * (logs.ndim - dim - 1))))


def _soft_cross_entropy(
    logs: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float
) -> Tensor:
    dim = _class_dim(logs.shape)
    if smoothing:
        target = add(mul(target, 1 - smoothing), smoothing / logs.shape[dim])
    losses = neg(reductions.sum(mul(target, _per_class(logs, weight)), dim))
    return reduced(losses, reduction)


#: The least value of logarithms of probabilities, and of the product of both probabilities.
_LOG_MIN, _VARIANCE_MIN = -100.0, 1e-12


def _limited_logs(xp: Any, input: Any) -> tuple[Any, Any]:
    hit, miss = xp.log(input), xp.log1p(xp.negative(input))
    return xp.maximum(hit, _LOG_MIN), xp.maximum(miss, _LOG_MIN)


def _bce_values(xp: Any, input: Any, target: Any) -> Any:
    hit, miss = _limited_logs(xp, input)
    return xp.subtract(xp.multiply(xp.subtract(target, 1), miss), xp.multiply(target, hit))


def _bce_grad(xp: Any, grad: Any, input: Any, target: Any) -> Any:
    """Finite even if a probability is 0 or 1."""
    variance = xp.maximum(xp.multiply(xp.subtract(1, input), input), _VARIANCE_MIN)
    return xp.divide(xp.multiply(grad, xp.subtract(input, target)), variance)


def _bce_target_grad(xp: Any, grad: Any, input: Any) -> Any:
    return xp.multiply(grad, xp.subtract(xp.log1p(xp.negative(input)), xp.log(input)))


_binary_cross_entropy = operator(
    "binary_cross_entropy", _bce_values, input=_bce_grad, target=_bce_target_grad
)


def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Cross-entropy of probabilities ``input``; logarithms are limited to -100, as in PyTorch.

    Raises:
        ValueError: ``target`` has another shape than ``input``.
    """
    reduction = meant_reduction(reduction, size_average, reduce)
    if input.shape != target.shape:
        raise ValueError(
            f"binary_cross_entropy: using a target size {tuple(target.shape)} that is different "
            f"to the input size {tuple(input.shape)} is not supported. Make them the same size."
        )
    losses = call(_binary_cross_entropy, *operands(input, target, float_result=True))
    return reduced(losses if weight is None else mul(losses, weight), reduction)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of ``sigmoid(input)``: ``(1 - target) * input - logsigmoid(input)``.

    Args:
        input: logits.
        target: of the same shape.
        weight: factors of the losses, or None.
        size_average: an older form of ``reduction``, as is ``reduce``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        pos_weight: factors of the share of ``target`` in each loss, or None.

    Raises:
        ValueError: ``target`` has another shape.
    """
    reduction = meant_reduction(reduction, size_average, reduce)
    if input.shape != target.shape:
        raise ValueError(
            f"Target size ({tuple(target.shape)}) must be the same as input size "
            f"({tuple(input.shape)})"
        )
    logs = logsigmoid(input)
    if pos_weight is not None:
        logs = mul(logs, add(mul(sub(pos_weight, 1), target), 1))
    losses = sub(mul(sub(1, target), input), logs)
    losses = losses if weight is None else mul(losses, weight)
    # PyTorch computes in the memory of ``1 - target``.
    dtype = target.dtype if target.dtype.kind == "f" else losses.dtype
    return reduced(cast(losses, dtype), reduction)


def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """The Kullback-Leibler divergence ``target * (log(target) - input)``.

    Args:
        input: log-probabilities.
        target: probabilities, or log-probabilities with ``log_target``.
        size_average: an older form of ``reduction``, as is ``reduce``.
        reduction: ``"mean"`` over elements, ``"batchmean"``, ``"sum"`` or ``"none"``.
        log_target: ``target`` is in logarithms.
    """
    if reduction != "batchmean" or size_average is not None or reduce is not None:
        reduction = meant_reduction(reduction, size_average, reduce)
    if log_target:
        losses = mul(exp(target), sub(target, input))
    else:
        losses = sub(xlogy(target, target), mul(target, input))
    if reduction == "batchmean":
        return div(reductions.sum(losses), input.shape[0] if input.ndim else 1)
    return reduced(losses, reduction)
