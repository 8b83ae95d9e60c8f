"""Losses of classes, triplets and sequences as Modules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mpgrad.nn import functional as F
from mpgrad.nn.layers import Linear
from mpgrad.nn.losses import _Loss
from mpgrad.recording.tensors.tensor import Tensor


class MultiMarginLoss(_Loss):
    """See ``mg.nn.functional.multi_margin_loss`` for the arguments."""

    weight: Tensor | None

    def __init__(
        self,
        p: int = 1,
        margin: float = 1.0,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        if p not in (1, 2):
            raise ValueError("only p == 1 and p == 2 supported")
        self.register_buffer("weight", weight)
        self.p, self.margin = p, margin

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Scores (batch, classes) and class indices (batch,) -> the loss."""
        options = (self.p, self.margin, self.weight)
        return F.multi_margin_loss(input, target, *options, reduction=self.reduction)


class MultiLabelMarginLoss(_Loss):
    """See ``mg.nn.functional.multilabel_margin_loss``."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Scores (batch, classes) and rows of labels -> the loss."""
        return F.multilabel_margin_loss(input, target, reduction=self.reduction)


class TripletMarginWithDistanceLoss(_Loss):
    """See ``mg.nn.functional.triplet_margin_with_distance_loss`` for the arguments."""

    def __init__(
        self,
        *,
        distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        if margin <= 0:
            raise ValueError(f"margin must be greater than 0, got {margin}")
        self.distance_function: Any = distance_function or F.pairwise_distance
        self.margin, self.swap = margin, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Three tensors of one shape -> the loss."""
        return F.triplet_margin_with_distance_loss(
            anchor,
            positive,
            negative,
            distance_function=self.distance_function,
            margin=self.margin,
            swap=self.swap,
            reduction=self.reduction,
        )


class CTCLoss(_Loss):
    """See ``mg.nn.functional.ctc_loss`` for the arguments."""

    def __init__(
        self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False
    ) -> None:
        super().__init__(reduction=reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def forward(
        self, log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any
    ) -> Tensor:
        """(time, batch, classes), labels and the lengths of both -> the loss."""
        options = (self.blank, self.reduction, self.zero_infinity)
        return F.ctc_loss(log_probs, targets, input_lengths, target_lengths, *options)


class LinearCrossEntropyLoss(_Loss):
    """A linear layer of the logits, and their cross entropy.

    Args:
        in_features: length of the input's last dimension.
        num_classes: classes.
        out_features: further dimensions of the logits.
        bias: add one to the logits.
        device: where the parameters lie.
        dtype: of the parameters.
        reduction: see ``mg.nn.functional.linear_cross_entropy``, as for the other arguments.

    Raises:
        RuntimeError: ``weight`` has another shape than (num_classes,), or ``label_smoothing`` is
            out of [0, 1].
    """

    weight: Tensor | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        options: Any = None,
    ) -> None:
        super().__init__(reduction=reduction)
        if weight is not None and tuple(weight.shape) != (num_classes,):
            raise RuntimeError(
                f"expected weight shape to be {(num_classes,)}, got {tuple(weight.shape)}"
            )
        if not 0 <= label_smoothing <= 1:
            raise RuntimeError(
                f"expected label_smoothing to be in range [0, 1], got {label_smoothing}"
            )
        self.register_buffer("weight", weight)
        self.num_classes, self.out_features = num_classes, out_features
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing
        logits = num_classes * math.prod(out_features)
        self.linear = Linear(in_features, logits, bias=bias, device=device, dtype=dtype)
        self.options = options

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """(batch, in_features) and classes (batch, ...) -> the loss."""
        shape, bias = (self.num_classes, *self.out_features), self.linear.bias
        return F.linear_cross_entropy(
            input,
            self.linear.weight.reshape(*shape, self.linear.in_features),
            target,
            linear_bias=None if bias is None else bias.reshape(shape),
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
        )
