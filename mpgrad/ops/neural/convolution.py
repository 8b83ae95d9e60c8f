"""Two-dimensional convolution (cross-correlation, as everywhere in deep learning)."""

from __future__ import annotations

from typing import Any

from mpgrad.arrays.cpu.cpu_windows import output_length
from mpgrad.ops.by_index.selection import pad
from mpgrad.ops.elementwise.arithmetic import add
from mpgrad.ops.reductions.reduction import sum as sum_over
from mpgrad.ops.shapes.shape import broadcast_to, clone, squeeze, unsqueeze
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

Pair = tuple[int, int]


def _forward(
    xp: Any,
    input: Any,
    weight: Any,
    bias: Any,
    *,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> Any:
    out = xp.conv2d(input, weight, stride=stride, padding=padding, dilation=dilation, groups=groups)
    if bias is not None:
        out += bias.reshape(-1, 1, 1)
    return out


_conv2d = operator(
    "conv2d",
    _forward,
    input=lambda xp, grad, weight, input_shape, stride, padding, dilation, groups: (
        xp.conv2d_input_grad(
            grad,
            weight,
            input_shape=input_shape,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
        )
    ),
    weight=lambda xp, grad, input, weight_shape, stride, padding, dilation, groups: (
        xp.conv2d_weight_grad(
            input,
            grad,
            weight_shape=weight_shape,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
        )
    ),
    bias=lambda xp, grad: xp.sum(grad, (0, 2, 3)),
)

_conv2d_input_grad = operator(
    "conv2d_input_grad",
    lambda xp, output_grad, weight, *, input_shape, stride, padding, dilation, groups: (
        xp.conv2d_input_grad(
            output_grad,
            weight,
            input_shape=input_shape,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
        )
    ),
    output_grad=lambda xp, grad, weight, stride, padding, dilation, groups: xp.conv2d(
        grad, weight, stride=stride, padding=padding, dilation=dilation, groups=groups
    ),
    weight=lambda xp, grad, output_grad, weight_shape, stride, padding, dilation, groups: (
        xp.conv2d_weight_grad(
            grad,
            output_grad,
            weight_shape=weight_shape,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
        )
    ),
)

_conv2d_weight_grad = operator(
    "conv2d_weight_grad",
    lambda xp, input, output_grad, *, weight_shape, stride, padding, dilation, groups: (
        xp.conv2d_weight_grad(
            input,
            output_grad,
            weight_shape=weight_shape,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
        )
    ),
    input=lambda xp, grad, output_grad, input_shape, stride, padding, dilation, groups: (
        xp.conv2d_input_grad(
            output_grad,
            grad,
            input_shape=input_shape,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
        )
    ),
    output_grad=lambda xp, grad, input, stride, padding, dilation, groups: xp.conv2d(
        input, grad, stride=stride, padding=padding, dilation=dilation, groups=groups
    ),
)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Pair = 1,
    padding: int | Pair | str = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
) -> Tensor:
    """Slide ``weight`` over ``input``.

    Args:
        input: (batch, in channels, height, width), or without the batch.
        weight: (out channels, in channels / groups, kernel height, kernel width).
        bias: (out channels,) or None.
        stride: step between windows, one number or (vertical, horizontal).
        padding: zeros around the image, ``"valid"`` for none, or ``"same"`` to keep its size
            (stride 1).
        dilation: distance between the elements of a window.
        groups: groups of channels that do not see each other.

    Returns:
        (batch, out channels, out height, out width).

    Raises:
        RuntimeError: the shapes do not fit.
    """
    if input.ndim == 3:
        batch = conv2d(unsqueeze(input, 0), weight, bias, stride, padding, dilation, groups)
        return squeeze(batch, 0)
    if input.ndim != 4 or weight.ndim != 4:
        raise RuntimeError(
            f"conv2d: expected 4D input and weight, but got input of size: {list(input.shape)} and "
            f"weight of size: {list(weight.shape)}"
        )
    if weight.shape[0] == 0:
        raise RuntimeError(
            f"conv2d: expected weight to be at least 1 at dimension 0, but got weight of size "
            f"{list(weight.shape)} instead"
        )
    steps, spread = pair(stride), pair(dilation)
    if padding == "same":
        # What is left of an odd sum goes below and to the right.
        odd = [d * (k - 1) % 2 for d, k in zip(spread, weight.shape[2:], strict=True)]
        input = pad(input, (0, odd[1], 0, odd[0])) if any(odd) else input
    around = _padding(padding, weight.shape[2:], steps, spread)
    _check(input, weight, bias, steps, around, spread, groups)
    if weight.shape[1] == 0:
        return _of_nothing(input, weight, bias, steps, around, spread)
    return call(
        _conv2d,
        input,
        weight,
        bias,
        stride=steps,
        padding=around,
        dilation=spread,
        groups=groups,
    )


def _of_nothing(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
) -> Tensor:
    """The result without any input channel: the bias."""
    sizes = (
        output_length(input.shape[2 + k], weight.shape[2 + k], stride[k], padding[k], dilation[k])
        for k in (0, 1)
    )
    none = add(sum_over(input), sum_over(weight))
    shift = none if bias is None else add(none, unsqueeze(unsqueeze(bias, -1), -1))
    return clone(broadcast_to(shift, (input.shape[0], weight.shape[0], *sizes)))


def conv2d_input_grad(output_grad: Tensor, weight: Tensor, **geometry: Any) -> Tensor:
    """The gradient of :func:`conv2d` for its input, itself differentiable."""
    return call(_conv2d_input_grad, output_grad, weight, **geometry)


def conv2d_weight_grad(input: Tensor, output_grad: Tensor, **geometry: Any) -> Tensor:
    """The gradient of :func:`conv2d` for its weight, itself differentiable."""
    return call(_conv2d_weight_grad, input, output_grad, **geometry)


def pair(value: Any) -> Pair:
    """One number for both directions, or (vertical, horizontal).

    Raises:
        RuntimeError: there are more.
    """
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    if len(values) not in (1, 2):
        raise RuntimeError(
            f"expected a single integer value or a list of 2 values, but got {value}"
        )
    first, second = values * 2 if len(values) == 1 else values
    return int(first), int(second)


def _padding(padding: Any, kernel: tuple[int, ...], stride: Pair, dilation: Pair) -> Pair:
    if padding == "valid":
        return (0, 0)
    if padding != "same":
        return pair(padding)
    total = tuple(d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
    if stride != (1, 1):
        raise RuntimeError("conv2d: padding='same' is not supported for strided convolutions")
    return total[0] // 2, total[1] // 2


def _check(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> None:
    if input.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
        raise RuntimeError(
            f"Given groups={groups}, weight of size {list(weight.shape)}, expected "
            f"input{list(input.shape)} to have {weight.shape[1] * groups} channels, but got "
            f"{input.shape[1]} channels instead"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise RuntimeError(
            f"conv2d: expected bias of size [{weight.shape[0]}], but got {list(bias.shape)}"
        )
    if input.dtype != weight.dtype or (bias is not None and bias.dtype != weight.dtype):
        raise RuntimeError(
            f"conv2d: Input type ({input.dtype}), weight type ({weight.dtype}) and bias type should"
            " be the same"
        )
    for name, least, values in (
        ("stride", 1, stride),
        ("dilation", 1, dilation),
        ("padding", 0, padding),
    ):
        if min(values) < least:
            raise RuntimeError(
                f"conv2d: negative padding, non-positive stride and dilation are not supported, "
                f"but got {name}={values}"
            )
    for k in (0, 1):
        if (
            output_length(
                input.shape[2 + k], weight.shape[2 + k], stride[k], padding[k], dilation[k]
            )
            < 1
        ):
            raise RuntimeError(
                f"conv2d: Kernel size can't be greater than actual input size: input "
                f"{list(input.shape)}, weight {list(weight.shape)}, padding {padding}"
            )
