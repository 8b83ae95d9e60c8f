"""Random layers besides Dropout: for whole channels, alpha dropout and RReLU."""

from __future__ import annotations

from mpgrad.nn import functional as F
from mpgrad.nn.layers import Dropout
from mpgrad.nn.module import Module
from mpgrad.recording.tensors.tensor import Tensor


class Dropout1d(Dropout):
    """Zeroes whole channels while training; see ``mg.nn.functional.dropout1d``."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.dropout1d(input, self.p, self.training, self.inplace)


class Dropout2d(Dropout):
    """Zeroes whole channels while training; see ``mg.nn.functional.dropout2d``."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.dropout2d(input, self.p, self.training, self.inplace)


class Dropout3d(Dropout):
    """Zeroes whole channels while training; see ``mg.nn.functional.dropout3d``."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.dropout3d(input, self.p, self.training, self.inplace)


class AlphaDropout(Dropout):
    """Keeps mean and variance after SELU; see ``mg.nn.functional.alpha_dropout``."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.alpha_dropout(input, self.p, self.training)


class FeatureAlphaDropout(Dropout):
    """AlphaDropout of whole channels; see ``mg.nn.functional.feature_alpha_dropout``."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.feature_alpha_dropout(input, self.p, self.training)


class RReLU(Module):
    """LeakyReLU with random slopes while training; see ``mg.nn.functional.rrelu``."""

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False) -> None:
        super().__init__()
        self.lower, self.upper, self.inplace = lower, upper, inplace

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)

    def extra_repr(self) -> str:
        shown = f"lower={self.lower}, upper={self.upper}"
        return shown + (", inplace=True" if self.inplace else "")
