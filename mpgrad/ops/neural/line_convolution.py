"""Convolutions that are made of :func:`conv2d` and its gradient: along a line, and transposed."""

from __future__ import annotations

from typing import Any

from mpgrad.ops.by_index.selection import pad
from mpgrad.ops.calling.dimensions import INTEGERS
from mpgrad.ops.elementwise.arithmetic import add
from mpgrad.ops.neural.convolution import Pair, conv2d, conv2d_input_grad, pair
from mpgrad.ops.shapes.shape import reshape, squeeze, unsqueeze
from mpgrad.recording.tensors.tensor import Tensor


def one(value: Any) -> int:
    """``value``, or the only element of it.

    Raises:
        RuntimeError: there is another number of elements.
    """
    if isinstance(value, INTEGERS):
        return int(value)
    if len(value) != 1:
        raise RuntimeError(f"expected one number or a tuple of one, but got {value}")
    return int(value[0])


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int] = 1,
    padding: int | tuple[int] | str = 0,
    dilation: int | tuple[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Slide ``weight`` along ``input``.

    Args:
        input: (batch, in channels, length), or without the batch.
        weight: (out channels, in channels / groups, kernel length).
        bias: (out channels,) or None.
        stride: step between windows.
        padding: zeros at both ends, ``"valid"`` for none, or ``"same"`` to keep the length.
        dilation: distance between the elements of a window.
        groups: groups of channels that do not see each other.

    Raises:
        RuntimeError: the shapes do not fit.
    """
    check_dims("conv1d", input, weight, 3)
    around = padding if isinstance(padding, str) else (0, one(padding))
    row = conv2d(
        unsqueeze(input, -2),
        unsqueeze(weight, -2),
        bias,
        (1, one(stride)),
        around,
        (1, one(dilation)),
        groups,
    )
    return squeeze(row, -2)


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Pair = 1,
    padding: int | Pair = 0,
    output_padding: int | Pair = 0,
    groups: int = 1,
    dilation: int | Pair = 1,
) -> Tensor:
    """The gradient of :func:`conv2d` for its input, as a layer ("deconvolution").

    Args:
        input: (batch, in channels, height, width), or without the batch.
        weight: (in channels, out channels / groups, kernel height, kernel width).
        bias: (out channels,) or None.
        stride: step between windows of the output.
        padding: rows and columns that are left away around the output.
        output_padding: more of them below and to the right; less than stride or dilation.
        groups: groups of channels that do not see each other.
        dilation: distance between the elements of a window.

    Raises:
        RuntimeError: the shapes do not fit.
    """
    check_dims("conv_transpose2d", input, weight, 4)
    if input.ndim == 3:
        options = (bias, stride, padding, output_padding, groups, dilation)
        return squeeze(conv_transpose2d(unsqueeze(input, 0), weight, *options), 0)
    steps, around, more, spread = (pair(x) for x in (stride, padding, output_padding, dilation))
    _check_transposed(input, weight, bias, groups, (steps, around, more, spread))
    if any(extra >= step for extra, step in zip(more, steps, strict=True)):
        # Such an image has room for more windows than there are: it is cut from a larger one.
        image = conv_transpose2d(input, weight, None, steps, 0, 0, groups, spread)
        beyond = [max(0, extra - edge) for extra, edge in zip(more, around, strict=True)]
        image = pad(image, (0, beyond[1], 0, beyond[0]))
        rows, columns = (
            slice(edge, n + extra - edge - room)
            for edge, n, extra, room in zip(around, image.shape[2:], more, beyond, strict=True)
        )
        image = image[:, :, rows, columns]
        return image if bias is None else add(image, reshape(bias, (-1, 1, 1)))
    size = tuple(
        (n - 1) * step - 2 * edge + gap * (k - 1) + extra + 1
        for n, step, edge, gap, k, extra in zip(
            input.shape[2:], steps, around, spread, weight.shape[2:], more, strict=True
        )
    )
    if min(size) < 1:
        raise RuntimeError(
            f"Given input size per channel: {list(input.shape[2:])}. Calculated output size per "
            f"channel: {list(size)}. Output size is too small"
        )
    if any(m >= step for m, step in zip(more, steps, strict=True)):
        image = _cut(
            conv_transpose2d(input, weight, None, steps, 0, 0, groups, spread), around, size
        )
        return image if bias is None else add(image, reshape(bias, (-1, 1, 1)))
    image = conv2d_input_grad(
        input,
        weight,
        input_shape=(input.shape[0], weight.shape[1] * groups, *size),
        stride=steps,
        padding=around,
        dilation=spread,
        groups=groups,
    )
    return image if bias is None else add(image, reshape(bias, (-1, 1, 1)))


def _cut(canvas: Tensor, around: Pair, size: tuple[int, ...]) -> Tensor:
    """The part of ``canvas`` behind ``around``, with zeros where ``size`` goes beyond it."""
    counts = []
    for edge, length, whole in zip(around[::-1], size[::-1], canvas.shape[:1:-1], strict=True):
        counts += [-edge, length - (whole - edge)]
    return pad(canvas, counts)


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int] = 1,
    padding: int | tuple[int] = 0,
    output_padding: int | tuple[int] = 0,
    groups: int = 1,
    dilation: int | tuple[int] = 1,
) -> Tensor:
    """:func:`conv_transpose2d` along a line.

    Args:
        input: (batch, in channels, length), or without the batch.
        weight: (in channels, out channels / groups, kernel length).
        bias: (out channels,) or None.
        stride: step between windows of the output.
        padding: elements that are left away at both ends.
        output_padding: more of them at the end.
        groups: groups of channels that do not see each other.
        dilation: distance between the elements of a window.

    Raises:
        RuntimeError: the shapes do not fit.
    """
    check_dims("conv_transpose1d", input, weight, 3)
    row = conv_transpose2d(
        unsqueeze(input, -2),
        unsqueeze(weight, -2),
        bias,
        (1, one(stride)),
        (0, one(padding)),
        (0, one(output_padding)),
        groups,
        (1, one(dilation)),
    )
    return squeeze(row, -2)


def check_dims(name: str, input: Tensor, weight: Tensor, dims: int) -> None:
    if input.ndim not in (dims - 1, dims) or weight.ndim != dims:
        raise RuntimeError(
            f"{name}: Expected {dims - 1}D (unbatched) or {dims}D (batched) input and {dims}D "
            f"weight, but got input of size: {list(input.shape)} and weight of size: "
            f"{list(weight.shape)}"
        )


def _check_transposed(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    groups: int,
    windows: tuple[Pair, Pair, Pair, Pair],
) -> None:
    """Check the arguments; ``windows``: stride, padding, output padding, dilation."""
    steps, around, more, spread = windows
    if input.shape[1] != weight.shape[0] or weight.shape[0] % groups:
        raise RuntimeError(
            f"Given transposed=1, weight of size {list(weight.shape)}, expected input "
            f"{list(input.shape)} to have {weight.shape[0]} channels, but got {input.shape[1]} "
            "channels instead"
        )
    if input.dtype != weight.dtype:
        raise RuntimeError(
            f"conv_transpose2d: Input type ({input.dtype}) and weight type ({weight.dtype}) should "
            "be the same"
        )
    channels = weight.shape[1] * groups
    if bias is not None and bias.shape != (channels,):
        raise RuntimeError(
            f"conv_transpose2d: expected bias of size [{channels}], but got {list(bias.shape)}"
        )
    if min(steps) < 1 or min(spread) < 1 or min(around) < 0:
        raise RuntimeError(
            "conv_transpose2d: negative padding, non-positive stride and dilation are not "
            f"supported, but got {around}, {steps}, {spread}"
        )
    if any(not 0 <= m < max(s, d) for m, s, d in zip(more, steps, spread, strict=True)):
        raise RuntimeError(
            "output padding must be smaller than either stride or dilation, but got "
            f"output_padding {more}, stride {steps}, dilation {spread}"
        )
