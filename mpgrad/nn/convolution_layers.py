"""Convolutions as Modules: along a line, over images and volumes, and transposed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpgrad.nn import functional as F
from mpgrad.nn.layers import Weighted
from mpgrad.ops.calling.dimensions import INTEGERS
from mpgrad.ops.neural.convolution import Pair
from mpgrad.ops.neural.volumes import Triple
from mpgrad.recording.tensors.tensor import Tensor

_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")
#: What the windows are given by, the last one for transposed convolutions only.
_WINDOWS = ("kernel_size", "stride", "padding", "dilation", "output_padding")


class _Convolution(Weighted):
    """The base of the convolutions. See ``mg.nn.functional`` for the other arguments.

    Args:
        padding_mode: the padding around the input: ``"zeros"``, or ``"reflect"``, ``"replicate"``
            or ``"circular"`` as in ``mg.nn.functional.pad``.

    Raises:
        ValueError: the channels cannot be divided into ``groups``, or an unknown mode.
    """

    _dims: int
    _is_transposed = False
    kernel_size: Any
    stride: Any
    padding: Any
    dilation: Any
    output_padding: Any

    def _prepare(
        self,
        channels: tuple[int, int],
        windows: tuple[Any, ...],
        groups: int,
        bias: bool,
        padding_mode: str,
        **made: Any,
    ) -> None:
        if self._is_transposed and padding_mode != "zeros":
            kind = f"ConvTranspose{self._dims}d"
            raise ValueError(f'Only "zeros" padding mode is supported for {kind}')
        for name, count in zip(("in_channels", "out_channels"), channels, strict=True):
            if groups < 1 or count % groups:
                raise ValueError(f"{name} must be divisible by groups, got {count} and {groups}")
        if padding_mode not in _PADDING_MODES:
            raise ValueError(
                f"padding_mode must be one of {set(_PADDING_MODES)}, but got "
                f"padding_mode={padding_mode!r}"
            )
        _, stride, padding, *_ = windows
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(
                    f"Invalid padding string {padding!r}, should be one of ['valid', 'same']"
                )
            if padding == "same" and any(step != 1 for step in self._lengths(stride)):
                raise ValueError("padding='same' is not supported for strided convolutions")
        self.in_channels, self.out_channels = channels
        for name, value in zip(_WINDOWS, windows, strict=False):
            setattr(self, name, value if isinstance(value, str) else self._lengths(value))
        self.transposed, self.groups = self._is_transposed, groups
        self.padding_mode = padding_mode
        first, second = channels if self.transposed else channels[::-1]
        shape = (first, second // groups, *self.kernel_size)
        self._make_parameters(shape, bias, channels[1], **made)

    def _lengths(self, value: int | Sequence[int]) -> tuple[int, ...]:
        return (value,) * self._dims if isinstance(value, INTEGERS) else tuple(value)

    def _padded(self, input: Tensor) -> tuple[Tensor, Any]:
        """``input`` with all padding except zeros, and the remaining padding."""
        if self.padding_mode == "zeros":
            return input, self.padding
        counts: list[int] = []
        for dim in reversed(range(self._dims)):
            if isinstance(self.padding, str):
                total = self.dilation[dim] * (self.kernel_size[dim] - 1)
                total = total if self.padding == "same" else 0
                counts += [total // 2, total - total // 2]
            else:
                counts += [self.padding[dim]] * 2
        return F.pad(input, counts, mode=self.padding_mode), 0

    def extra_repr(self) -> str:
        parts = [
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}",
            f"stride={self.stride}",
        ]
        for name, usual in (
            ("padding", self._lengths(0)),
            ("dilation", self._lengths(1)),
            ("output_padding", self._lengths(0)),
            ("groups", 1),
        ):
            value = getattr(self, name, usual)
            if value != usual:
                parts.append(f"{name}={value}")
        if self.bias is None:
            parts.append("bias=False")
        if self.padding_mode != "zeros":
            parts.append(f"padding_mode={self.padding_mode}")
        return ", ".join(parts)


class Conv1d(_Convolution):
    """``weight`` slides over a sequence; see ``mg.nn.functional.conv1d`` for the arguments."""

    _dims = 1

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int],
        stride: int | tuple[int] = 1,
        padding: int | tuple[int] | str = 0,
        dilation: int | tuple[int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        channels, windows = (in_channels, out_channels), (kernel_size, stride, padding, dilation)
        self._prepare(channels, windows, groups, bias, padding_mode, device=device, dtype=dtype)

    def forward(self, input: Tensor) -> Tensor:
        """(batch, in_channels, length) -> (batch, out_channels, length')."""
        padded, padding = self._padded(input)
        options = (self.stride, padding, self.dilation, self.groups)
        return F.conv1d(padded, self.weight, self.bias, *options)


class Conv2d(_Convolution):
    """``weight`` slides over images; see ``mg.nn.functional.conv2d`` for the arguments."""

    _dims = 2

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Pair,
        stride: int | Pair = 1,
        padding: int | Pair | str = 0,
        dilation: int | Pair = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        channels, windows = (in_channels, out_channels), (kernel_size, stride, padding, dilation)
        self._prepare(channels, windows, groups, bias, padding_mode, device=device, dtype=dtype)

    def forward(self, input: Tensor) -> Tensor:
        """(batch, in_channels, height, width) -> (batch, out_channels, height', width')."""
        padded, padding = self._padded(input)
        options = (self.stride, padding, self.dilation, self.groups)
        return F.conv2d(padded, self.weight, self.bias, *options)


class Conv3d(_Convolution):
    """``weight`` slides through volumes; see ``mg.nn.functional.conv3d`` for the arguments."""

    _dims = 3

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Triple,
        stride: int | Triple = 1,
        padding: int | Triple | str = 0,
        dilation: int | Triple = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        channels, windows = (in_channels, out_channels), (kernel_size, stride, padding, dilation)
        self._prepare(channels, windows, groups, bias, padding_mode, device=device, dtype=dtype)

    def forward(self, input: Tensor) -> Tensor:
        """(batch, in_channels, depth, height, width) -> (batch, out_channels, depth', ...)."""
        padded, padding = self._padded(input)
        options = (self.stride, padding, self.dilation, self.groups)
        return F.conv3d(padded, self.weight, self.bias, *options)


class _Transposed(_Convolution):
    """The gradient of a convolution for its input, as a layer."""

    _is_transposed = True

    def _output_padding(self, input: Tensor, output_size: Sequence[int] | None) -> Any:
        """``output_padding``, or the one that gives ``output_size``.

        Raises:
            ValueError: none gives it.
        """
        if output_size is None:
            return self.output_padding
        size = tuple(output_size)[-self._dims :]
        least = [
            (n - 1) * step - 2 * edge + gap * (k - 1) + 1
            for n, step, edge, gap, k in zip(
                input.shape[-self._dims :],
                self.stride,
                self.padding,
                self.dilation,
                self.kernel_size,
                strict=True,
            )
        ]
        more = tuple(wanted - n for wanted, n in zip(size, least, strict=True))
        if any(not 0 <= m < step for m, step in zip(more, self.stride, strict=True)):
            most = [n + step - 1 for n, step in zip(least, self.stride, strict=True)]
            raise ValueError(
                f"requested an output size of {list(size)}, but valid sizes range from {least} to "
                f"{most} (for an input of {list(input.shape[-self._dims :])})"
            )
        return more


class ConvTranspose1d(_Transposed):
    """See ``mg.nn.functional.conv_transpose1d`` for the arguments."""

    _dims = 1

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int],
        stride: int | tuple[int] = 1,
        padding: int | tuple[int] = 0,
        output_padding: int | tuple[int] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | tuple[int] = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        channels = in_channels, out_channels
        windows = kernel_size, stride, padding, dilation, output_padding
        self._prepare(channels, windows, groups, bias, padding_mode, device=device, dtype=dtype)

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """(batch, in_channels, length) -> (batch, out_channels, length')."""
        more = self._output_padding(input, output_size)
        options = (self.stride, self.padding, more, self.groups, self.dilation)
        return F.conv_transpose1d(input, self.weight, self.bias, *options)


class ConvTranspose2d(_Transposed):
    """See ``mg.nn.functional.conv_transpose2d`` for the arguments."""

    _dims = 2

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Pair,
        stride: int | Pair = 1,
        padding: int | Pair = 0,
        output_padding: int | Pair = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | Pair = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        channels = in_channels, out_channels
        windows = kernel_size, stride, padding, dilation, output_padding
        self._prepare(channels, windows, groups, bias, padding_mode, device=device, dtype=dtype)

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """(batch, in_channels, height, width) -> (batch, out_channels, height', width')."""
        more = self._output_padding(input, output_size)
        options = (self.stride, self.padding, more, self.groups, self.dilation)
        return F.conv_transpose2d(input, self.weight, self.bias, *options)


class ConvTranspose3d(_Transposed):
    """See ``mg.nn.functional.conv_transpose3d`` for the arguments."""

    _dims = 3

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Triple,
        stride: int | Triple = 1,
        padding: int | Triple = 0,
        output_padding: int | Triple = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | Triple = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        channels = in_channels, out_channels
        windows = kernel_size, stride, padding, dilation, output_padding
        self._prepare(channels, windows, groups, bias, padding_mode, device=device, dtype=dtype)

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """(batch, in_channels, depth, height, width) -> (batch, out_channels, depth', ...)."""
        more = self._output_padding(input, output_size)
        options = (self.stride, self.padding, more, self.groups, self.dilation)
        return F.conv_transpose3d(input, self.weight, self.bias, *options)
