"""Activation functions as Modules, for use in Sequential."""

from __future__ import annotations

from mpgrad.nn import functional as F
from mpgrad.nn.module import Module
from mpgrad.tensor import Tensor


class ReLU(Module):
    """``max(input, 0)``."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.relu(input)


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.tanh(input)


class Sigmoid(Module):
    """``1 / (1 + exp(-input))``."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.sigmoid(input)
