"""Windows of images as columns, and back: Unfold and Fold."""

from __future__ import annotations

from typing import Any

from mpgrad.nn import functional as F
from mpgrad.nn.module import Module
from mpgrad.recording.tensors.tensor import Tensor


class _Patches(Module):
    """What both directions share; see ``mg.nn.functional.unfold``."""

    def __init__(
        self, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
    ) -> None:
        super().__init__()
        self.kernel_size, self.dilation = kernel_size, dilation
        self.padding, self.stride = padding, stride

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, "
            f"stride={self.stride}"
        )


class Unfold(_Patches):
    """The windows of images as columns."""

    def forward(self, input: Tensor) -> Tensor:
        """(batch, channels, height, width) -> (batch, channels * elements, windows)."""
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)


class Fold(_Patches):
    """The sum of windows in their places."""

    def __init__(
        self,
        output_size: Any,
        kernel_size: Any,
        dilation: Any = 1,
        padding: Any = 0,
        stride: Any = 1,
    ) -> None:
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        """(batch, channels * elements, windows) -> (batch, channels, *output_size)."""
        options = (self.kernel_size, self.dilation, self.padding, self.stride)
        return F.fold(input, self.output_size, *options)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, {super().extra_repr()}"
