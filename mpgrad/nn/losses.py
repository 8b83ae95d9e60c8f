"""Losses as Modules: CrossEntropyLoss and MSELoss."""

from __future__ import annotations

from mpgrad.nn import functional as F
from mpgrad.nn.module import Module
from mpgrad.tensor import Tensor


class CrossEntropyLoss(Module):
    """See ``mg.nn.functional.cross_entropy`` for the arguments."""

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.ignore_index, self.reduction = ignore_index, reduction
        self.label_smoothing = label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Logits (batch, classes, ...) and class indices (batch, ...) -> the loss."""
        return F.cross_entropy(
            input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing
        )


class MSELoss(Module):
    """The squared error; see ``mg.nn.functional.mse_loss``."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape -> the loss."""
        return F.mse_loss(input, target, self.reduction)
