"""Activation functions as Modules, for use in Sequential."""

from __future__ import annotations

from mpgrad.nn import functional as F
from mpgrad.nn.module import Module
from mpgrad.tensor import Tensor


class _Activation(Module):
    """An activation that may write into its input.

    Args:
        inplace: do so.
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class ReLU(_Activation):
    """``max(input, 0)``."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.relu(input, self.inplace)


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


class GELU(Module):
    """``input * P(X <= input)`` for a standard normal X; see ``mg.nn.functional.gelu``."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.gelu(input, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class SiLU(_Activation):
    """``input * sigmoid(input)``."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.silu(input, self.inplace)


class Softmax(Module):
    """``exp(input)`` scaled to a sum of 1 along ``dim``.

    Args:
        dim: has to be given by the time of the first call.
    """

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.softmax(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Softmax):
    """The logarithm of :class:`Softmax`."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.log_softmax(input, self.dim)
