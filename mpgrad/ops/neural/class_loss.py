"""Losses of classes and sequences: margins between classes, triplets, connectionist labels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.ops.by_index.indexing import gather, index_select, select, take_along_axis
from mpgrad.ops.elementwise.arithmetic import add, div, mul, neg, sub
from mpgrad.ops.elementwise.arithmetic import pow as power
from mpgrad.ops.elementwise.comparison import ge, gt
from mpgrad.ops.elementwise.minimum_maximum import clamp_min, minimum, where
from mpgrad.ops.elementwise.transcendental import relu
from mpgrad.ops.linear_algebra.matrix_products import linear
from mpgrad.ops.neural.activation import log_softmax
from mpgrad.ops.neural.loss import cross_entropy
from mpgrad.ops.neural.loss_reduction import check_reduction, meant_reduction, reduced
from mpgrad.ops.neural.margin_loss import pairwise_distance
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.reductions.reduction import logsumexp
from mpgrad.ops.reductions.reduction import sum as sum_over
from mpgrad.ops.shapes.shape import cat, reshape, squeeze, stack, unsqueeze
from mpgrad.recording.tensors.tensor import Tensor

#: In place of minus infinity, whose gradient is NaN: no sum of logarithms comes near it.
_IMPOSSIBLE = -1e30


def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean of ``max(0, margin - input[target] + input[other]) ** p`` over the classes.

    Args:
        input: (batch, classes) or (classes,).
        target: (batch,) or 0-d, int64.
        p: 1 or 2.
        margin: by which the right class is to win.
        weight: (classes,), of the right class.
        size_average: an older form of ``reduction``, as is ``reduce``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Raises:
        ValueError: another ``p`` or ``reduction``.
        RuntimeError: the shapes do not fit.
    """
    reduction = meant_reduction(reduction, size_average, reduce)
    if p not in (1, 2):
        raise ValueError("only p == 1 and p == 2 supported")
    scores = input if input.ndim == 2 else reshape(input, (1, -1))
    classes = reshape(target, (-1,))
    if input.ndim > 2 or classes.shape[0] != scores.shape[0]:
        raise RuntimeError(
            f"multi_margin_loss: inconsistent target size, expected {scores.shape[0]} but got "
            f"{list(target.shape)}"
        )
    if weight is not None and weight.ndim != 1:
        raise ValueError("weight must be one-dimensional")
    if weight is not None and tuple(weight.shape) != (scores.shape[1],):
        raise RuntimeError(
            f"multi_margin_loss: inconsistent weight size, expected {scores.shape[1]} but got "
            f"{list(weight.shape)}"
        )
    column = unsqueeze(classes, 1)
    lacking = relu(add(sub(scores, gather(scores, 1, column)), margin))
    others = np.ones(scores.shape, scores.dtype)
    np.put_along_axis(others, on_host(column._array), 0, 1)
    losses = mul(power(lacking, p) if p == 2 else lacking, beside(input, others))
    if weight is not None:
        losses = mul(losses, unsqueeze(index_select(weight, 0, classes), 1))
    losses = div(sum_over(losses, 1), scores.shape[1])
    if input.ndim < 2 and reduction == "none":
        return reshape(losses, ())
    return reduced(losses, reduction)


def multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean of ``max(0, 1 - input[label] + input[other])`` over labels and other classes.

    Args:
        input: (batch, classes) or (classes,).
        target: of that shape: the labels in front, then -1.
        size_average: an older form of ``reduction``, as is ``reduce``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Raises:
        RuntimeError: the shapes do not fit, or the target is not of int64.
    """
    reduction = meant_reduction(reduction, size_average, reduce)
    if input.shape != target.shape or input.ndim > 2:
        raise RuntimeError(
            f"multilabel_margin_loss: inconsistent target size {list(target.shape)} for input of "
            f"size {list(input.shape)}"
        )
    if target.dtype != np.int64:
        raise RuntimeError(f"multilabel_margin_loss: int64 is expected, not {target.dtype}")
    scores, labels = reshape(input, (-1, input.shape[-1] if input.ndim else 1)), target._array
    marks = on_host(labels).reshape(scores.shape)
    if marks.size and marks.max() >= scores.shape[1]:
        raise RuntimeError("multilabel_margin_loss: argument #2 'target' is out of range")
    ends = np.logical_and.accumulate(marks >= 0, 1)
    places = np.where(ends, marks, 0)
    is_label = np.zeros(scores.shape, bool)
    rows, columns = np.nonzero(ends)
    is_label[rows, marks[rows, columns]] = True
    of_labels = take_along_axis(scores, beside(input, places), 1)
    lacking = relu(add(sub(unsqueeze(scores, 1), unsqueeze(of_labels, 2)), 1.0))
    counts = (ends[:, :, None] & ~is_label[:, None, :]).astype(scores.dtype)
    losses = div(sum_over(mul(lacking, beside(input, counts)), (1, 2)), scores.shape[1])
    if input.ndim < 2:
        losses = reshape(losses, ())
    return reduced(losses, reduction)


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """``max(0, d(anchor, positive) - d(anchor, negative) + margin)`` for any distance ``d``.

    Args:
        anchor: (batch, features), as are the others.
        positive: tensors that should be near ``anchor``.
        negative: tensors that should be far from it.
        distance_function: by default ``pairwise_distance``.
        margin: by how much.
        swap: take the distance of the negative from the positive, where it is smaller.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Raises:
        ValueError: ``margin`` is not positive.
    """
    check_reduction(reduction)
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    distance = pairwise_distance if distance_function is None else distance_function
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = minimum(far, distance(positive, negative))
    return reduced(clamp_min(add(sub(near, far), margin), 0), reduction)


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """The negative log-likelihood of label sequences over all ways to stretch them (Graves et al.,
    "Connectionist temporal classification", 2006).

    Args:
        log_probs: (time, batch, classes) or (time, classes), normalised, as ``log_softmax`` gives.
        targets: (batch, longest) or all in one row, without blanks.
        input_lengths: how many steps each sequence has.
        target_lengths: how many labels.
        blank: the class that means no label.
        reduction: ``"mean"`` over the batch of losses divided by the labels, ``"sum"``, ``"none"``.
        zero_infinity: 0 for a sequence that is too short for its labels.

    Returns:
        The loss. Its gradient is, as PyTorch's, that for what went into ``log_softmax``.

    Raises:
        RuntimeError: a length or the blank is out of range, or targets do not fit.
    """
    check_reduction(reduction)
    if log_probs.ndim == 2:
        options = (blank, reduction, zero_infinity)
        single = targets if targets.ndim != 1 else unsqueeze(targets, 0)
        steps_of, labels_of = (np.atleast_1d(_lengths(n)) for n in (input_lengths, target_lengths))
        loss = ctc_loss(unsqueeze(log_probs, 1), single, steps_of, labels_of, *options)
        return squeeze(loss, 0) if reduction == "none" else loss
    if log_probs.ndim != 3:
        raise RuntimeError(f"ctc_loss: log_probs must have 2 or 3 dimensions, not {log_probs.ndim}")
    steps, batch, classes = log_probs.shape
    times, counts = _lengths(input_lengths), _lengths(target_lengths)
    if targets.ndim not in (1, 2):
        raise RuntimeError(f"ctc_loss: targets must have 1 or 2 dimensions, not {targets.ndim}")
    if times.shape != (batch,) or counts.shape != (batch,):
        raise RuntimeError("ctc_loss: input_lengths and target_lengths must be of size batch_size")
    if not 0 <= blank < classes:
        raise RuntimeError("ctc_loss: blank must be in label range")
    if times.max(initial=0) > steps:
        raise RuntimeError(
            f"Expected input_lengths to have value at most {steps}, but got value {times.max()}"
        )
    rows, longest = (batch, counts.max(initial=0)) if targets.ndim == 2 else (counts.sum(), 0)
    if targets.shape[0] != rows or targets.shape[-1] < longest:
        raise RuntimeError(
            f"ctc_loss: targets have the shape {tuple(targets.shape)}, but target_lengths ask for "
            f"{(int(rows), int(longest)) if targets.ndim == 2 else (int(rows),)}"
        )
    labels = _extended_labels(on_host(targets._array), counts, blank)
    normal = log_softmax(log_probs, -1)
    normal = add(normal, sub(log_probs, normal).detach())
    nll = _alignments(normal, labels, times, counts)
    impossible = ge(nll, -_IMPOSSIBLE / 2)
    nll = where(impossible, 0.0 if zero_infinity else math.inf, nll)
    if reduction == "mean":
        each = np.maximum(counts, 1).astype(log_probs.dtype)
        return div(nll, beside(log_probs, each)).mean()
    return reduced(nll, reduction)


def _lengths(value: Any) -> Any:
    array = on_host(value._array) if isinstance(value, Tensor) else value
    return np.asarray(array, np.int64)


def _extended_labels(targets: Any, counts: Any, blank: int) -> Any:
    """(batch, 2 * longest + 1): each row of labels with blanks around all of them."""
    longest = int(counts.max(initial=0))
    rows = np.full((len(counts), 2 * longest + 1), blank, np.int64)
    starts = np.cumsum(counts) - counts
    for row, count in enumerate(counts):
        own = targets[row] if targets.ndim == 2 else targets[starts[row] :]
        rows[row, 1 : 2 * count : 2] = own[:count]
    return rows


def _alignments(log_probs: Tensor, labels: Any, times: Any, counts: Any) -> Tensor:
    """The negative logarithm of the sum of the probabilities of all ways, for each row."""
    batch, width = labels.shape
    # A label may follow the last but one where a blank stands between two different labels.
    skips = np.zeros((batch, width), bool)
    skips[:, 2:] = (labels[:, 2:] != labels[:, :-2]) & (np.arange(2, width) % 2 == 1)
    barred = beside(log_probs, np.where(skips, 0.0, _IMPOSSIBLE).astype(log_probs.dtype))
    column = np.full((batch, 2), _IMPOSSIBLE, log_probs.dtype)
    places = beside(log_probs, labels)
    start = np.full((batch, width), _IMPOSSIBLE, log_probs.dtype)
    start[:, : min(2, width)] = 0
    ways = add(beside(log_probs, start), gather(select(log_probs, 0, 0), 1, places))
    alive = times[:, None] > np.arange(log_probs.shape[0])
    none = beside(log_probs, column)
    for step in range(1, log_probs.shape[0]):
        padded = cat([none, ways], 1)
        before = padded[:, 1 : width + 1]
        skipped = add(padded[:, :width], barred)
        moved = logsumexp(stack([ways, before, skipped], 0), 0)
        moved = add(moved, gather(select(log_probs, 0, step), 1, places))
        ways = where(beside(log_probs, alive[:, step : step + 1]), moved, ways)
    last = np.stack([2 * counts, np.maximum(2 * counts - 1, 0)], 1)
    ends = gather(ways, 1, beside(log_probs, last))
    only = np.where(counts == 0, _IMPOSSIBLE, 0.0).astype(log_probs.dtype)
    ends = add(ends, beside(log_probs, np.stack([np.zeros_like(only), only], 1)))
    total = logsumexp(ends, 1)
    return neg(where(gt(beside(log_probs, times), 0), total, 0.0))


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: Any = None,
) -> Tensor:
    """``cross_entropy`` of the logits ``linear(input, linear_weight, linear_bias)``.

    Args:
        input: (batch, features) or (features,).
        linear_weight: (classes, features) or (classes, ..., features); the second needs a batch.
        target: class indices (batch, ...), or probabilities (batch, classes, ...).
        linear_bias: (classes, ...).
        weight: (classes,), one factor per class.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        ignore_index: class indices of this value count nothing; by default -100.
        label_smoothing: share of each target that is spread over all classes evenly.
        options: how PyTorch cuts the computation to save memory; without effect here.

    Raises:
        RuntimeError: the shapes do not fit, or ``ignore_index`` is given with probabilities.
    """
    if input.ndim not in (1, 2):
        raise RuntimeError(f"expected input with dimensionality 1 or 2, got {input.ndim}")
    if linear_weight.ndim < 2:
        raise RuntimeError(
            f"expected linear_weight with dimensionality at least 2, got {linear_weight.ndim}"
        )
    *lead, features = linear_weight.shape
    if input.shape[-1] != features:
        raise RuntimeError(
            "expected equal input and linear_weight last dimensions (in_features), got "
            f"{input.shape[-1]} and {features}, respectively"
        )
    if linear_bias is not None and list(linear_bias.shape) != lead:
        raise RuntimeError(
            f"expected linear_bias shape {tuple(lead)}, got {tuple(linear_bias.shape)}"
        )
    if len(lead) > 1 and input.ndim == 1:
        raise RuntimeError(
            f"K-dimensional loss defined by linear_weight shape {tuple(linear_weight.shape)} "
            f"requires batched input, (N, {features}), got unbatched input with shape "
            f"{tuple(input.shape)}"
        )
    shape = (*input.shape[:-1], *lead)
    if tuple(target.shape) == shape and ignore_index is not None:
        raise RuntimeError("ignore_index cannot be specified when target contains probabilities")
    bias = None if linear_bias is None else reshape(linear_bias, -1)
    rows = reshape(linear_weight, (math.prod(lead), features))
    logits = reshape(linear(input, rows, bias), shape)
    return cross_entropy(
        logits,
        target,
        weight,
        ignore_index=-100 if ignore_index is None else ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
