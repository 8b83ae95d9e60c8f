"""Pools as Modules: windows, pools that cover everything, powers, fractions, and the way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpgrad.nn import functional as F
from mpgrad.nn.module import Module
from mpgrad.ops.calling.dimensions import INTEGERS, as_tuple
from mpgrad.ops.neural.convolution import Pair
from mpgrad.recording.tensors.tensor import Tensor


class MaxPool2d(Module):
    """The largest element of each window; see ``mg.nn.functional.max_pool2d``."""

    def __init__(
        self,
        kernel_size: int | Pair,
        stride: int | Pair | None = None,
        padding: int | Pair = 0,
        dilation: int | Pair = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size, self.padding, self.dilation = kernel_size, padding, dilation
        self.stride = kernel_size if stride is None else stride
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def forward(self, input: Tensor) -> Any:
        """(batch, channels, height, width) -> (batch, channels, height', width')."""
        return F.max_pool2d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
            self.return_indices,
        )

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class AvgPool2d(Module):
    """The mean of each window; see ``mg.nn.functional.avg_pool2d``."""

    def __init__(
        self,
        kernel_size: int | Pair,
        stride: int | Pair | None = None,
        padding: int | Pair = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size, self.padding = kernel_size, padding
        self.stride = kernel_size if stride is None else stride
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad
        self.divisor_override = divisor_override

    def forward(self, input: Tensor) -> Tensor:
        """(batch, channels, height, width) -> (batch, channels, height', width')."""
        return F.avg_pool2d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxPool1d(MaxPool2d):
    """The largest element of each window; see ``mg.nn.functional.max_pool1d``."""

    def forward(self, input: Tensor) -> Any:
        """(batch, channels, length) -> (batch, channels, length')."""
        return F.max_pool1d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
            self.return_indices,
        )


class AvgPool1d(Module):
    """The mean of each window; see ``mg.nn.functional.avg_pool1d``."""

    def __init__(
        self,
        kernel_size: int | tuple[int],
        stride: Any = None,
        padding: int | tuple[int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        stride = kernel_size if stride is None else stride
        self.kernel_size, self.stride, self.padding = (
            as_tuple(x) for x in (kernel_size, stride, padding)
        )
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        """(batch, channels, length) -> (batch, channels, length')."""
        options = (self.stride, self.padding, self.ceil_mode, self.count_include_pad)
        return F.avg_pool1d(input, self.kernel_size, *options)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AdaptiveAvgPool2d(Module):
    """As many means as in ``output_size``; see ``mg.nn.functional.adaptive_avg_pool2d``."""

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        """(batch, channels, height, width) -> (batch, channels, *output_size)."""
        return F.adaptive_avg_pool2d(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(AdaptiveAvgPool2d):
    """As many means as in ``output_size``."""

    def forward(self, input: Tensor) -> Tensor:
        """(batch, channels, length) -> (batch, channels, output_size)."""
        return F.adaptive_avg_pool1d(input, self.output_size)


class MaxPool3d(MaxPool2d):
    """The largest element of each window; see ``mg.nn.functional.max_pool3d``."""

    def forward(self, input: Tensor) -> Any:
        """(batch, channels, depth, height, width) -> (batch, channels, depth', ...)."""
        return F.max_pool3d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
            self.return_indices,
        )


class AvgPool3d(AvgPool2d):
    """The mean of each window; see ``mg.nn.functional.avg_pool3d``."""

    def forward(self, input: Tensor) -> Tensor:
        """(batch, channels, depth, height, width) -> (batch, channels, depth', ...)."""
        return F.avg_pool3d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )


class AdaptiveAvgPool3d(AdaptiveAvgPool2d):
    """As many means as in ``output_size``; see ``mg.nn.functional.adaptive_avg_pool3d``."""

    def forward(self, input: Tensor) -> Tensor:
        """(batch, channels, depth, height, width) -> (batch, channels, *output_size)."""
        return F.adaptive_avg_pool3d(input, self.output_size)


class _AdaptiveMaxPool(Module):
    _function: Callable[..., Any]

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__()
        self.output_size, self.return_indices = output_size, return_indices

    def forward(self, input: Tensor) -> Any:
        """(batch, channels, ...) -> (batch, channels, *output_size), perhaps with indices."""
        return type(self)._function(input, self.output_size, self.return_indices)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """See ``mg.nn.functional.adaptive_max_pool1d``."""

    _function = F.adaptive_max_pool1d


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """See ``mg.nn.functional.adaptive_max_pool2d``."""

    _function = F.adaptive_max_pool2d


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """See ``mg.nn.functional.adaptive_max_pool3d``."""

    _function = F.adaptive_max_pool3d


class _LPPool(Module):
    _function: Callable[..., Tensor]

    def __init__(
        self, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
    ) -> None:
        super().__init__()
        self.norm_type, self.kernel_size = norm_type, kernel_size
        self.stride, self.ceil_mode = stride, ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        """(batch, channels, ...), with fewer elements."""
        options = (self.norm_type, self.kernel_size, self.stride, self.ceil_mode)
        return type(self)._function(input, *options)

    def extra_repr(self) -> str:
        return (
            f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"ceil_mode={self.ceil_mode}"
        )


class LPPool1d(_LPPool):
    """See ``mg.nn.functional.lp_pool1d``."""

    _function = F.lp_pool1d


class LPPool2d(_LPPool):
    """See ``mg.nn.functional.lp_pool2d``."""

    _function = F.lp_pool2d


class LPPool3d(_LPPool):
    """See ``mg.nn.functional.lp_pool3d``."""

    _function = F.lp_pool3d


class _MaxUnpool(Module):
    _function: Callable[..., Tensor]
    _dims: int

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = (
            (value,) * self._dims if isinstance(value, INTEGERS) else tuple(value)
            for value in (kernel_size, kernel_size if stride is None else stride, padding)
        )

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        """Pooled elements and their positions -> the larger tensor, zeros between them."""
        windows = (self.kernel_size, self.stride, self.padding)
        return type(self)._function(input, indices, *windows, output_size)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpool):
    """See ``mg.nn.functional.max_unpool1d``."""

    _function, _dims = F.max_unpool1d, 1


class MaxUnpool2d(_MaxUnpool):
    """See ``mg.nn.functional.max_unpool2d``."""

    _function, _dims = F.max_unpool2d, 2


class MaxUnpool3d(_MaxUnpool):
    """See ``mg.nn.functional.max_unpool3d``."""

    _function, _dims = F.max_unpool3d, 3


class _FractionalMaxPool(Module):
    _function: Callable[..., Any]

    def __init__(
        self,
        kernel_size: Any,
        output_size: Any = None,
        output_ratio: Any = None,
        return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if (output_size is None) == (output_ratio is None):
            raise ValueError(
                f"{name} requires specifying one of output_size and output_ratio, not both"
            )
        ratios = output_ratio if isinstance(output_ratio, tuple | list) else (output_ratio,)
        if output_ratio is not None and not all(0 < ratio < 1 for ratio in ratios):
            raise ValueError(f"output_ratio must be between 0 and 1 (got {output_ratio})")
        if not all(k > 0 for k in np.atleast_1d(kernel_size)):
            raise ValueError(f"kernel_size must greater than zero, but got {kernel_size}")
        self.kernel_size, self.output_size = kernel_size, output_size
        self.output_ratio, self.return_indices = output_ratio, return_indices
        self.register_buffer("_random_samples", _random_samples)

    def forward(self, input: Tensor) -> Any:
        """(batch, channels, ...) -> (batch, channels, *output_size), perhaps with indices."""
        return type(self)._function(
            input,
            self.kernel_size,
            self.output_size,
            self.output_ratio,
            self.return_indices,
            _random_samples=self._random_samples,
        )


class FractionalMaxPool2d(_FractionalMaxPool):
    """See ``mg.nn.functional.fractional_max_pool2d``."""

    _function = F.fractional_max_pool2d


class FractionalMaxPool3d(_FractionalMaxPool):
    """See ``mg.nn.functional.fractional_max_pool3d``."""

    _function = F.fractional_max_pool3d
