"""Images of other sizes: interpolation, channels that become pixels, channels in another order."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np

from mpgrad.ops.by_index.indexing import index_select
from mpgrad.ops.calling.promotion import cast
from mpgrad.ops.elementwise.arithmetic import add, mul
from mpgrad.ops.elementwise.minimum_maximum import clamp
from mpgrad.ops.elementwise.rounding import floor
from mpgrad.ops.neural.line_pooling import adaptive_avg_pool1d
from mpgrad.ops.neural.pooling import adaptive_avg_pool2d
from mpgrad.ops.neural.volumes import adaptive_avg_pool3d
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.shapes.shape import clone, permute, reshape, stack, transpose
from mpgrad.recording.tensors.tensor import Tensor

#: Modes that weight neighbours, and the dimensions of the inputs that they take.
_WEIGHTED = {"linear": 3, "bilinear": 4, "trilinear": 5, "bicubic": 4}
_MODES = ("nearest", "nearest-exact", "area", *_WEIGHTED)
#: The parameter of Keys's kernel, and the one that PyTorch takes with ``antialias``.
_CUBIC, _SMOOTH_CUBIC = -0.75, -0.5


def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """``input`` in another size.

    Args:
        input: (batch, channels, ...) with one to three more dimensions.
        size: the lengths of these, one number or one for each; or
        scale_factor: their factors.
        mode: ``"nearest"``, ``"nearest-exact"``, ``"area"`` (means), ``"linear"``, ``"bilinear"``,
            ``"trilinear"`` or ``"bicubic"`` (Keys, "Cubic convolution interpolation", 1981).
        align_corners: of the last four: the first and last elements keep their places.
        recompute_scale_factor: take the factors from the size that they give, rounded down.
        antialias: of ``"bilinear"`` and ``"bicubic"``: where images become smaller, as many
            neighbours count as fall on one pixel.

    Raises:
        ValueError: neither or both of ``size`` and ``scale_factor``, or they do not fit, or
            ``antialias`` of another mode.
        NotImplementedError: an unknown mode, or one that does not take these dimensions.
    """
    _check_mode(input, mode, align_corners, antialias)
    lengths = tuple(input.shape[2:])
    sizes, steps = _sizes(lengths, size, scale_factor, recompute_scale_factor)
    if mode == "area":
        pool = (adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d)[len(lengths) - 1]
        return pool(input, sizes)  # type: ignore[operator, no-any-return]
    if mode in _WEIGHTED:
        return _weighted(input, mode, sizes, steps, bool(align_corners), antialias)
    half = 0.5 if mode == "nearest-exact" else 0.0
    for dim, (n, count, step) in enumerate(zip(lengths, sizes, steps, strict=True), 2):
        # In float32, as PyTorch computes places: it decides where they are nearly whole.
        scaled = (np.arange(count) + np.float32(half)) * np.float32(step)
        places = np.minimum(np.floor(scaled).astype(np.int64), n - 1)
        times = count // n
        if times > 1 and np.array_equal(places, np.repeat(np.arange(n), times)):
            # The gradient is then a sum of slices, many times faster than one by places.
            shape = (*input.shape[:dim], count, *input.shape[dim + 1 :])
            input = reshape(stack([input] * times, dim + 1), shape)
        else:
            input = index_select(input, dim, beside(input, places))
    return input


def upsample(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """An older name of ``interpolate``."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """``interpolate`` with the nearest element."""
    return interpolate(input, size, scale_factor)


def upsample_bilinear(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """``interpolate`` of images between neighbours; the corners keep their places."""
    return interpolate(input, size, scale_factor, "bilinear", True)


def _check_mode(input: Tensor, mode: str, align_corners: bool | None, antialias: bool) -> None:
    if mode not in _MODES or input.ndim not in (3, 4, 5):
        raise NotImplementedError(
            "Input Error: Only 3D, 4D and 5D input Tensors supported (got "
            f"{input.ndim}D) for the modes: {' | '.join(_MODES)} (got {mode})"
        )
    if mode in _WEIGHTED and input.ndim != _WEIGHTED[mode]:
        raise NotImplementedError(
            f"Got {input.ndim}D input, but {mode} mode needs {_WEIGHTED[mode]}D input"
        )
    if mode not in _WEIGHTED and align_corners is not None:
        raise ValueError(
            "align_corners option can only be set with the interpolating modes: linear | bilinear "
            "| bicubic | trilinear"
        )
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ValueError(
            "Anti-alias option is restricted to bilinear and bicubic modes and requires a 4-D "
            "tensor as input"
        )


def _sizes(
    lengths: tuple[int, ...], size: Any, scale_factor: Any, recompute: bool | None
) -> tuple[tuple[int, ...], list[float]]:
    """The new lengths, and how far apart their elements lie in the old ones."""
    if (size is None) == (scale_factor is None):
        which = "either" if size is None else "only one of"
        raise ValueError(f"{which} size or scale_factor should be defined")
    factors: tuple[Any, ...] = (None,) * len(lengths)
    if size is not None:
        sizes = _each(size, len(lengths), "size")
    else:
        factors = _each(scale_factor, len(lengths), "scale_factor")
        sizes = tuple(math.floor(n * f) for n, f in zip(lengths, factors, strict=True))
        if recompute:
            factors = (None,) * len(lengths)
    if min(sizes, default=1) < 1:
        raise RuntimeError(
            f"Input and output sizes should be greater than 0, but got input {lengths}, output "
            f"{sizes}"
        )
    sizes = tuple(int(n) for n in sizes)
    return sizes, [
        n / count if factor is None else 1 / factor
        for n, count, factor in zip(lengths, sizes, factors, strict=True)
    ]


def _each(value: Any, count: int, name: str) -> tuple[Any, ...]:
    values = tuple(value) if isinstance(value, tuple | list) else (value,) * count
    if len(values) != count:
        raise ValueError(
            f"Input and output must have the same number of spatial dimensions, but got {count} "
            f"and {name}={value}"
        )
    return values


def _weighted(
    input: Tensor,
    mode: str,
    sizes: tuple[int, ...],
    steps: list[float],
    corners: bool,
    antialias: bool,
) -> Tensor:
    """Sums of neighbours along each dimension, the last one first."""
    dtype, lengths = input.dtype, input.shape[2:]
    is_bytes = dtype == np.uint8
    if dtype.kind != "f" and not is_bytes:
        raise NotImplementedError(f"interpolate: mode={mode!r} is not implemented for {dtype}")
    if is_bytes or dtype == np.float16:
        input = cast(input, np.float64 if is_bytes else np.float32)
    for at in reversed(range(len(sizes))):
        n, count, step, dim = lengths[at], sizes[at], steps[at], at + 2
        if corners:
            step = (n - 1) / (count - 1) if count > 1 else 0.0
        if antialias:
            places, weights = _smooth_neighbours(mode, n, count, step)
        else:
            places, weights = _neighbours(mode, n, count, step, corners)
        if is_bytes:
            weights = _as_whole_parts(weights)
        terms = [
            mul(
                index_select(input, dim, beside(input, places[:, k])),
                beside(input, _along(weights[:, k], input, dim)),
            )
            for k in range(places.shape[1])
        ]
        input = reduce(add, terms)
        if is_bytes:
            input = clamp(floor(add(input, 0.5)), 0, 255)
    return cast(input, dtype)


def _along(weights: Any, input: Tensor, dim: int) -> Any:
    return weights.astype(input.dtype).reshape(-1, *(1,) * (input.ndim - dim - 1))


def _neighbours(mode: str, n: int, count: int, step: float, corners: bool) -> tuple[Any, Any]:
    """Of each new element the places of its neighbours among ``n`` and their weights."""
    x = np.arange(count) * step if corners else (np.arange(count) + 0.5) * step - 0.5
    if mode != "bicubic":
        x = np.maximum(x, 0.0)
    reach = 2 if mode == "bicubic" else 1
    places = np.floor(x).astype(np.int64)[:, None] + np.arange(1 - reach, reach + 1)
    return places.clip(0, n - 1), _kernel(mode, places - x[:, None], _CUBIC)


def _smooth_neighbours(mode: str, n: int, count: int, step: float) -> tuple[Any, Any]:
    """The same, with a kernel as wide as a new element."""
    width = max(step, 1.0)
    reach = (2 if mode == "bicubic" else 1) * width
    centers = (np.arange(count) + 0.5) * step
    first = np.maximum((centers - reach + 0.5).astype(np.int64), 0)
    last = np.minimum((centers + reach + 0.5).astype(np.int64), n)
    places = first[:, None] + np.arange(int((last - first).max()))
    weights = _kernel(mode, (places - centers[:, None] + 0.5) / width, _SMOOTH_CUBIC)
    weights = np.where(places < last[:, None], weights, 0.0)
    return np.minimum(places, n - 1), weights / weights.sum(1, keepdims=True)


def _kernel(mode: str, x: Any, a: float) -> Any:
    x = np.abs(x)
    if mode != "bicubic":
        return np.maximum(1 - x, 0.0)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def _as_whole_parts(weights: Any) -> Any:
    """The weights of bytes, as PyTorch has them: whole multiples that fit into 16 bits."""
    parts = 0
    while parts < 22 and int(0.5 + weights.max() * 2 ** (parts + 1)) < 2**15:
        parts += 1
    return np.trunc(weights * 2**parts + np.copysign(0.5, weights)) / 2**parts


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Channels become pixels: (..., c * r * r, h, w) -> (..., c, h * r, w * r), r the factor.

    Raises:
        RuntimeError: the channels cannot be divided so.
    """
    r = upscale_factor
    if input.ndim < 3 or r < 1 or input.shape[-3] % (r * r):
        raise RuntimeError(
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square "
            f"of upscale_factor, but input of shape {list(input.shape)} is not divisible by {r * r}"
        )
    *batch, channels, height, width = input.shape
    parts = reshape(input, (*batch, channels // (r * r), r, r, height, width))
    k = len(batch)
    if r == 1:
        return clone(input)
    order = (*range(k), k, k + 3, k + 1, k + 4, k + 2)
    return reshape(permute(parts, order), (*batch, channels // (r * r), height * r, width * r))


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """Pixels become channels: (..., c, h * r, w * r) -> (..., c * r * r, h, w), r the factor.

    Raises:
        RuntimeError: height or width cannot be divided so.
    """
    r = downscale_factor
    if input.ndim < 3 or r < 1 or input.shape[-2] % r or input.shape[-1] % r:
        raise RuntimeError(
            "pixel_unshuffle expects height and width to be divisible by downscale_factor, but "
            f"input of shape {list(input.shape)} is not divisible by {r}"
        )
    *batch, channels, height, width = input.shape
    parts = reshape(input, (*batch, channels, height // r, r, width // r, r))
    k = len(batch)
    if r == 1:
        return clone(input)
    order = (*range(k), k, k + 2, k + 4, k + 1, k + 3)
    return reshape(permute(parts, order), (*batch, channels * r * r, height // r, width // r))


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """The channels of ``groups`` groups in turn (Zhang et al., "ShuffleNet", 2018).

    Args:
        input: (batch, channels, ...).
        groups: that divide the channels.

    Raises:
        RuntimeError: they do not, or ``input`` has fewer than three dimensions.
    """
    if input.ndim < 3:
        raise RuntimeError(
            f"channel_shuffle expects input with > 2 dims, but got input with sizes "
            f"{list(input.shape)}"
        )
    if groups <= 0 or input.shape[1] % groups:
        raise RuntimeError(
            f"Number of channels must be divisible by groups. Got {input.shape[1]} channels and "
            f"{groups} groups."
        )
    n, channels = input.shape[:2]
    split = reshape(input, (n, groups, channels // groups, *input.shape[2:]))
    return reshape(transpose(split, 1, 2), input.shape)
