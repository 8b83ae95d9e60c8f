"""Images of other sizes: interpolation, and channels that become pixels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpgrad.ops.arithmetic import add, mul
from mpgrad.ops.device_moves import beside
from mpgrad.ops.indexing import index_select
from mpgrad.ops.shape import clone, permute, reshape
from mpgrad.tensors.tensor import Tensor

#: Modes and the dimensions of the inputs that they take.
_LINEAR = {"linear": 3, "bilinear": 4, "trilinear": 5}


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
        mode: ``"nearest"``, ``"nearest-exact"``, ``"linear"``, ``"bilinear"`` or ``"trilinear"``.
        align_corners: of the linear modes: the first and last elements keep their places.
        recompute_scale_factor: take the factors from the size that they give, rounded down.
        antialias: must be False.

    Raises:
        ValueError: neither or both of ``size`` and ``scale_factor``, or they do not fit.
        NotImplementedError: another mode, or ``antialias``.
    """
    if antialias or mode not in ("nearest", "nearest-exact", *_LINEAR):
        raise NotImplementedError(
            f"interpolate: mode={mode!r} with antialias={antialias} is not implemented; there are "
            f"'nearest', 'nearest-exact' and {', '.join(map(repr, _LINEAR))}"
        )
    if mode in _LINEAR and input.ndim != _LINEAR[mode]:
        raise NotImplementedError(
            f"Got {input.ndim}D input, but {mode} mode needs {_LINEAR[mode]}D input"
        )
    if mode not in _LINEAR and align_corners is not None:
        raise ValueError(
            "align_corners option can only be set with the interpolating modes: linear | bilinear "
            "| bicubic | trilinear"
        )
    lengths = tuple(input.shape[2:])
    if (size is None) == (scale_factor is None):
        which = "either" if size is None else "only one of"
        raise ValueError(f"{which} size or scale_factor should be defined")
    factors: tuple[Any, ...] = (None,) * len(lengths)
    if size is not None:
        sizes = _each(size, len(lengths), "size")
    else:
        factors = _each(scale_factor, len(lengths), "scale_factor")
        sizes = tuple(math.floor(n * f) for n, f in zip(lengths, factors, strict=True))
        if recompute_scale_factor:
            factors = (None,) * len(lengths)
    if min(sizes, default=1) < 1:
        raise RuntimeError(
            f"Input and output sizes should be greater than 0, but got input {lengths}, output "
            f"{sizes}"
        )
    for dim, (n, count, factor) in enumerate(zip(lengths, sizes, factors, strict=True), 2):
        step = n / count if factor is None else 1 / factor
        if mode in _LINEAR:
            input = _between(input, dim, int(count), step, bool(align_corners))
        else:
            half = 0.5 if mode == "nearest-exact" else 0.0
            # In float32, as PyTorch computes places: it decides where they are nearly whole.
            scaled = (np.arange(count) + np.float32(half)) * np.float32(step)
            places = np.minimum(np.floor(scaled).astype(np.int64), n - 1)
            input = index_select(input, dim, beside(input, places))
    return input


def _each(value: Any, count: int, name: str) -> tuple[Any, ...]:
    values = tuple(value) if isinstance(value, tuple | list) else (value,) * count
    if len(values) != count:
        raise ValueError(
            f"Input and output must have the same number of spatial dimensions, but got {count} "
            f"and {name}={value}"
        )
    return values


def _between(input: Tensor, dim: int, count: int, step: float, corners: bool) -> Tensor:
    """Elements and those after them along ``dim``, weighted by how near they are."""
    n = input.shape[dim]
    if corners:
        places = np.arange(count) * ((n - 1) / (count - 1) if count > 1 else 0.0)
    else:
        places = np.maximum((np.arange(count) + 0.5) * step - 0.5, 0.0)
    low = np.minimum(places.astype(np.int64), n - 1)
    high = np.minimum(low + 1, n - 1)
    share = (places - low).clip(0, 1).astype(input.dtype)
    share = share.reshape(-1, *(1,) * (input.ndim - dim - 1))
    first, second = (index_select(input, dim, beside(input, at)) for at in (low, high))
    return add(mul(first, beside(input, 1 - share)), mul(second, beside(input, share)))


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
