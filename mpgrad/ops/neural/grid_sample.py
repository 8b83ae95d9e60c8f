"""Images sampled at the places of a grid: ``grid_sample`` and ``affine_grid``
(Jaderberg et al., "Spatial transformer networks", 2015)."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from mpgrad.ops.by_index.indexing import gather, select
from mpgrad.ops.by_index.overwriting import cleared
from mpgrad.ops.calling.promotion import cast
from mpgrad.ops.elementwise.arithmetic import abs as absolute
from mpgrad.ops.elementwise.arithmetic import add, mul, sub
from mpgrad.ops.elementwise.comparison import ge, gt, le, logical_and, lt
from mpgrad.ops.elementwise.minimum_maximum import clamp, where
from mpgrad.ops.elementwise.rounding import floor, remainder
from mpgrad.ops.elementwise.rounding import round as rounded
from mpgrad.ops.linear_algebra.matrix_products import matmul
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.reductions.reduction import sum as sum_over
from mpgrad.ops.shapes.shape import broadcast_to, reshape, transpose, unsqueeze
from mpgrad.recording.tensors.tensor import Tensor

_MODES = ("bilinear", "nearest", "bicubic")
_PADDINGS = ("zeros", "border", "reflection")
#: Keys's parameter, as in ``interpolate``.
_CUBIC = -0.75


def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """The values of ``input`` at the places in ``grid``, between pixels interpolated.

    Args:
        input: (batch, channels, height, width), or with a depth before the height.
        grid: (batch, out height, out width, 2): x and y from -1 to 1 across the image; of volumes
            (batch, out depth, out height, out width, 3): x, y and z.
        mode: ``"bilinear"`` (of volumes trilinear), ``"nearest"``, or of images ``"bicubic"``.
        padding_mode: values outside: ``"zeros"``, the ``"border"``, or the ``"reflection"``.
        align_corners: -1 and 1 are the centres of the outermost pixels, not their edges.

    Returns:
        (batch, channels, out height, out width), or with a depth.

    Raises:
        ValueError: an unknown mode.
        RuntimeError: the shapes or dtypes do not fit, or bicubic volumes.
    """
    for name, value, known in (("mode", mode, _MODES), ("padding_mode", padding_mode, _PADDINGS)):
        if value not in known:
            raise ValueError(
                f"nn.functional.grid_sample(): expected {name} to be one of {known}, but got: "
                f"'{value}'"
            )
    if align_corners is None:
        warnings.warn(
            "Default grid_sample and affine_grid behavior has changed to align_corners=False since "
            "1.3.0. Please specify align_corners=True if the old behavior is desired.",
            UserWarning,
            stacklevel=2,
        )
    dims = input.ndim - 2
    _check(input, grid, mode, dims)
    lengths = tuple(input.shape[2:])
    size, count = tuple(grid.shape[1:-1]), math.prod(grid.shape[1:-1])
    taps = []
    for dim, length in enumerate(lengths):
        place = reshape(select(grid, -1, dims - 1 - dim), (grid.shape[0], count))
        taps.append(_taps(place, length, mode, padding_mode, bool(align_corners)))
    flat = reshape(input, (*input.shape[:2], math.prod(lengths)))
    parts = []
    for chosen in itertools.product(*taps):
        index: Any = 0
        for (tap, _), length in zip(chosen, lengths, strict=True):
            index = add(mul(index, length), tap) if isinstance(index, Tensor) else tap
        places = broadcast_to(unsqueeze(index, 1), (*input.shape[:2], count))
        weights = [weight for _, weight in chosen if weight is not None]
        part = gather(flat, 2, places)
        parts.append(mul(part, unsqueeze(reduce(mul, weights), 1)) if weights else part)
    found = reduce(add, parts)
    if mode == "nearest" and grid.requires_grad:
        found = add(found, sum_over(cleared(grid)))
    return reshape(found, (*input.shape[:2], *size))


def _check(input: Tensor, grid: Tensor, mode: str, dims: int) -> None:
    if dims not in (2, 3) or grid.ndim != input.ndim or grid.shape[-1] != dims:
        raise RuntimeError(
            "grid_sampler(): expected 4D or 5D input and grid with same number of dimensions, the "
            f"grid's last of size {dims}, but got input with sizes {list(input.shape)} and grid "
            f"with sizes {list(grid.shape)}"
        )
    if input.shape[0] != grid.shape[0]:
        raise RuntimeError(
            "grid_sampler(): expected grid and input to have same batch size, but got input with "
            f"sizes {list(input.shape)} and grid with sizes {list(grid.shape)}"
        )
    if 0 in input.shape[2:]:
        raise RuntimeError(
            "grid_sampler(): expected input to have non-empty spatial dimensions, but input has "
            f"sizes {list(input.shape)}"
        )
    if dims == 3 and mode == "bicubic":
        raise RuntimeError("grid_sampler(): bicubic interpolation only supports 4D input")
    if input.dtype != grid.dtype:
        raise RuntimeError(
            "grid_sampler(): expected input and grid to have same dtype, but input has "
            f"{input.dtype} and grid has {grid.dtype}"
        )


def _taps(
    place: Tensor, length: int, mode: str, padding: str, corners: bool
) -> list[tuple[Tensor, Tensor | None]]:
    """Along one dimension the indices that are looked up, each with its weight."""
    if corners:
        x = mul(add(place, 1), (length - 1) / 2)
    else:
        x = mul(sub(mul(add(place, 1), length), 1), 0.5)
    if mode == "bicubic":
        base = floor(x.detach())
        t = sub(x, base)
        weights = [_cubic(add(t, 1)), _near(t), _near(sub(1, t)), _cubic(sub(2, t))]
        found = []
        for shift, weight in zip((-1, 0, 1, 2), weights, strict=True):
            tap = _inside(add(base, shift), length, padding, corners)
            found.append(_bounded(tap, weight, length))
        return found
    x = _inside(x, length, padding, corners)
    if mode == "nearest":
        return [_bounded(rounded(x.detach()), None, length)]
    base = floor(x.detach())
    t = sub(x, base)
    return [_bounded(base, sub(1, t), length), _bounded(add(base, 1), t, length)]


def _cubic(t: Tensor) -> Tensor:
    """Keys's kernel from 1 to 2 (Keys, "Cubic convolution interpolation", 1981)."""
    return mul(sub(mul(add(mul(sub(t, 5), t), 8), t), 4), _CUBIC)


def _near(t: Tensor) -> Tensor:
    """Keys's kernel from 0 to 1."""
    return add(mul(mul(sub(mul(t, _CUBIC + 2), _CUBIC + 3), t), t), 1)


def _bounded(tap: Tensor, weight: Tensor | None, length: int) -> tuple[Tensor, Tensor | None]:
    """An index inside the image, and its weight, 0 where ``tap`` lies outside."""
    inside = logical_and(ge(tap, 0), le(tap, length - 1))
    index = cast(clamp(where(inside, tap, 0.0), 0, length - 1), np.int64)
    return index, where(inside, 1.0 if weight is None else weight, 0.0).to(tap.dtype)


def _inside(x: Tensor, length: int, padding: str, corners: bool) -> Tensor:
    """``x`` after padding; its gradient is 0 where it is held at the border."""
    if padding == "zeros":
        return x
    if padding == "reflection":
        low, high = (0, 2 * (length - 1)) if corners else (-1, 2 * length - 1)
        span = (high - low) / 2
        if span == 0:
            x = mul(x, 0)
        else:
            away = absolute(sub(x, low / 2))
            beyond = remainder(away, span)
            turns = floor(mul(away.detach(), 1 / span))
            back = gt(remainder(turns, 2), 0)
            x = add(where(back, sub(span, beyond), beyond), low / 2)
    held = where(le(x, 0), 0.0, x)
    return where(lt(held, length - 1), held, float(length - 1))  # type: ignore[no-any-return]


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """The grid for ``grid_sample`` that maps each pixel of the output by ``theta``.

    Args:
        theta: (batch, 2, 3), or (batch, 3, 4) for volumes: maps (x, y, 1) to places in the input.
        size: of the output, (batch, channels, height, width), or with a depth.
        align_corners: as for ``grid_sample``.

    Returns:
        (batch, height, width, 2), or (batch, depth, height, width, 3).

    Raises:
        ValueError: ``theta`` is not floating.
        NotImplementedError: ``size`` has other dimensions.
        RuntimeError: the shapes do not fit.
    """
    if theta.dtype.kind != "f":
        raise ValueError(f"Expected theta to have floating point type, but got {theta.dtype}")
    lengths = tuple(int(n) for n in size[2:])
    dims = len(lengths)
    if dims not in (2, 3):
        raise NotImplementedError(
            "affine_grid only supports 4D and 5D sizes, for 2D and 3D affine transforms, "
            f"respectively. Got size {list(size)}."
        )
    if tuple(theta.shape) != (size[0], dims, dims + 1):
        raise ValueError(
            f"Expected a batch of {dims}D affine matrices of shape {size[0]}x{dims}x{dims + 1} for "
            f"size {list(size)}. Got {list(theta.shape)}."
        )
    if min(size) <= 0:
        raise ValueError(f"Expected non-zero, positive output size. Got {list(size)}")
    axes = []
    for length in lengths:
        line = np.linspace(-1, 1, length) if length > 1 else np.zeros(1)
        axes.append(line if align_corners else line * (length - 1) / length)
    places = [*np.meshgrid(*axes, indexing="ij")[::-1], np.ones(lengths)]
    base = np.stack(places, -1).reshape(-1, dims + 1).astype(theta.dtype)
    grid = matmul(beside(theta, base), transpose(theta, 1, 2))
    return reshape(grid, (size[0], *lengths, dims))


def grid_sampler_2d(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """``grid_sample`` of images, whose mode and padding are numbers from 0."""
    return _numbered(input, grid, interpolation_mode, padding_mode, align_corners, 4)


def grid_sampler_3d(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """``grid_sample`` of volumes, whose mode and padding are numbers from 0."""
    return _numbered(input, grid, interpolation_mode, padding_mode, align_corners, 5)


def _numbered(
    input: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool, dims: int
) -> Tensor:
    if input.ndim != dims:
        raise RuntimeError(f"grid_sampler(): expected {dims}D input, got {list(input.shape)}")
    return grid_sample(input, grid, _MODES[mode], _PADDINGS[padding], align_corners)
