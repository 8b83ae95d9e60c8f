"""Larger images, and shuffles of pixels and channels."""

from __future__ import annotations

from typing import Any

from mpgrad.nn import functional as F
from mpgrad.nn.module import Module
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


class ChannelShuffle(Module):
    """The channels of ``groups`` groups in turn."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.channel_shuffle(input, self.groups)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"
