"""More elements around the last dimensions: zeros, constants, reflections."""

from __future__ import annotations

from typing import Any

from mpgrad.nn import functional as F
from mpgrad.nn.module import Module
from mpgrad.ops.calling.dimensions import INTEGERS
from mpgrad.recording.tensors.tensor import Tensor


class _Padding(Module):
    """More elements around the last dimensions.

    Args:
        padding: one number, or (before, after) for the last dimension first.
    """

    _dims = 2
    _mode = "constant"

    def __init__(self, padding: Any) -> None:
        super().__init__()
        one = isinstance(padding, INTEGERS)
        self.padding = (padding,) * (2 * self._dims) if one else tuple(padding)

    def forward(self, input: Tensor) -> Tensor:
        """(..., *lengths) -> the same dimensions."""
        return F.pad(input, self.padding, self._mode)

    def extra_repr(self) -> str:
        return str(self.padding)


class ConstantPad1d(_Padding):
    """``value`` at both ends."""

    _dims = 1

    def __init__(self, padding: Any, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        """(..., *lengths) -> the same dimensions."""
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad2d(ConstantPad1d):
    """``value`` around images."""

    _dims = 2


class ConstantPad3d(ConstantPad1d):
    """``value`` around volumes."""

    _dims = 3


class ZeroPad1d(_Padding):
    """Zeros at both ends."""

    _dims = 1


class ZeroPad2d(_Padding):
    """Zeros around images."""


class ZeroPad3d(_Padding):
    """Zeros around volumes."""

    _dims = 3


class ReflectionPad1d(_Padding):
    """The mirror image at both ends."""

    _dims = 1
    _mode = "reflect"


class ReflectionPad2d(_Padding):
    """The mirror image around images."""

    _mode = "reflect"


class ReflectionPad3d(_Padding):
    """The mirror image around volumes."""

    _dims = 3
    _mode = "reflect"


class ReplicationPad1d(_Padding):
    """The elements at the edge at both ends."""

    _dims = 1
    _mode = "replicate"


class ReplicationPad2d(_Padding):
    """The elements at the edge around images."""

    _mode = "replicate"


class ReplicationPad3d(_Padding):
    """The elements at the edge around volumes."""

    _dims = 3
    _mode = "replicate"


class CircularPad2d(_Padding):
    """The other end around images."""

    _mode = "circular"

    def forward(self, input: Tensor) -> Tensor:
        """(batch, channels, *lengths), or without the batch -> the same dimensions.

        Raises:
            ValueError: there are other dimensions.
        """
        least = self._dims + 1
        if input.ndim not in (least, least + 1):
            raise ValueError(f"expected {least}D or {least + 1}D input (got {input.ndim}D input)")
        return super().forward(input)


class CircularPad1d(CircularPad2d):
    """The other end at both ends."""

    _dims = 1


class CircularPad3d(CircularPad2d):
    """The other end around volumes."""

    _dims = 3
