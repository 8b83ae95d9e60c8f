"""Modules that change the size of images: Upsample, PixelShuffle, and padding."""

from __future__ import annotations

from typing import Any

from mpgrad.nn import functional as F
from mpgrad.nn.module import Module
from mpgrad.ops.calling.dimensions import INTEGERS
from mpgrad.recording.tensors.tensor import Tensor


class Upsample(Module):
    """Another size; see ``mg.nn.functional.interpolate``."""

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.size, self.mode, self.align_corners = size, mode, align_corners
        self.recompute_scale_factor = recompute_scale_factor
        self.scale_factor = scale_factor
        if isinstance(scale_factor, tuple | list):
            self.scale_factor = tuple(float(factor) for factor in scale_factor)
        elif scale_factor:
            self.scale_factor = float(scale_factor)

    def forward(self, input: Tensor) -> Tensor:
        """(batch, channels, ...) -> the same dimensions."""
        return F.interpolate(
            input,
            self.size,
            self.scale_factor,
            self.mode,
            self.align_corners,
            self.recompute_scale_factor,
        )

    def extra_repr(self) -> str:
        name = "scale_factor" if self.scale_factor is not None else "size"
        return f"{name}={getattr(self, name)!r}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Nearest neighbours, of images."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, mode="nearest")


class UpsamplingBilinear2d(Upsample):
    """Bilinear, with the corners aligned."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, mode="bilinear", align_corners=True)


class PixelShuffle(Module):
    """Channels become pixels; see ``mg.nn.functional.pixel_shuffle``."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Tensor:
        """(..., c * r * r, h, w) -> (..., c, h * r, w * r)."""
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """Pixels become channels; see ``mg.nn.functional.pixel_unshuffle``."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Tensor:
        """(..., c, h * r, w * r) -> (..., c * r * r, h, w)."""
        return F.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


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
