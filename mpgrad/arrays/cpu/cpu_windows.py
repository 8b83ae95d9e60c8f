"""Windows over images on NumPy, and pooling: loops over taps, the positions in a window.

Arrays are (batch, channels, height, width). Pairs such as ``stride`` are (vertical, horizontal).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from mpgrad.arrays.cpu.cpu_backend import CpuBackend

Array = np.ndarray[Any, Any]
Pair = tuple[int, int]

#: The bytes of the copied taps of a few images, which should stay in the cache.
COPIED_BYTES = 2**20
#: With more windows in a row, taps are copied faster as they lie.
TILES_MAX = 4
#: The number of geometries whose positions are kept.
PLACES_MAX = 64
#: Longer rows are copied as they are: items of that size are not faster.
ROW_BYTES_MAX = 512


def output_length(length: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """The number of windows along one axis."""
    return (length + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def max_pool2d(
    xp: CpuBackend, x: Array, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[Array, Array]:
    """The largest element of each window, and its position in the flattened image.

    As in PyTorch, the first one wins a tie, and the last NaN wins against all.
    """
    size = tuple(
        output_length(x.shape[2 + k], kernel[k], stride[k], padding[k], dilation[k]) for k in (0, 1)
    )
    padded = pad(x, padding, _lowest(x.dtype))
    values = xp.empty((*x.shape[:2], *size), x.dtype)
    inside = _taps_inside(x.shape, kernel, stride, padding, dilation) if any(padding) else None
    places = _places(x.shape[2:], kernel, stride, padding, dilation, size)
    positions = np.empty(values.shape, places.of_first.dtype)
    is_tiled = _is_tiled(padded, kernel, stride, dilation)
    per_image = math.prod((*kernel, *values.shape[1:])) * x.itemsize
    together = max(1, COPIED_BYTES // max(per_image, 1))
    for first in range(0, x.shape[0], together):
        images = slice(first, first + together)
        if is_tiled:
            taps = _tiles(padded[images], kernel)
        else:
            views = each_tap(padded[images], kernel, stride, dilation, size)
            # A tap has short rows, and is read several times.
            taps = [np.ascontiguousarray(tap) for _, _, tap in views]
        _choose(taps, inside, values[images], positions[images], places)
    return values, xp.astype(positions, np.int64)


def max_pool2d_input_grad(
    xp: Any, grad: Any, positions: Any, *, input_shape: tuple[int, ...], **geometry: Any
) -> Any:
    """The gradient of ``max_pool2d`` for its input, of shape ``input_shape``.

    Each gradient goes to the position of its maximum; gradients of overlapping windows add up.

    Args:
        xp: any array namespace.
        positions: the result of ``max_pool2d``, and so independent of the ``geometry``.
    """
    flat = (*grad.shape[:2], grad.shape[2] * grad.shape[3])
    spread = xp.scatter_along_axis(
        xp.reshape(grad, flat), xp.reshape(positions, flat), 2, input_shape[2] * input_shape[3]
    )
    return xp.reshape(spread, input_shape)


def _choose(
    taps: list[Array], inside: list[Array] | None, values: Array, positions: Array, places: _Places
) -> None:
    """Write the largest element of each window, and the position of the first tap that equals it,
    or of the last NaN.

    Args:
        taps: one element of each window, by number.
        inside: for each tap, the windows in which it is no padding; None: all.
        places: of the taps.
    """
    np.copyto(values, taps[0])
    for tap in taps[1:]:
        np.maximum(values, tap, out=values)
    missed = np.ones(values.shape, bool)
    copy_rows(positions.reshape(-1, places.of_first.size), places.of_first.reshape(-1))
    for number, tap in enumerate(taps[:-1]):
        misses = tap != values
        if inside is not None:
            misses |= ~inside[number]
        missed &= misses
        positions += missed * places.steps[number]
    if np.isnan(values).any():
        for number, tap in enumerate(taps):
            is_nan = np.isnan(tap)
            if inside is not None:
                is_nan &= inside[number]
            np.copyto(positions, places.of_first + places.offsets[number], where=is_nan)


def _is_tiled(x: Array, kernel: Pair, stride: Pair, dilation: Pair) -> bool:
    """Whether windows lie side by side, cover all images, and are few in a row."""
    return (
        kernel == stride
        and dilation == (1, 1)
        and not (x.shape[2] % kernel[0] or x.shape[3] % kernel[1])
        and x.shape[3] // kernel[1] <= TILES_MAX
    )


def _tiles(x: Array, kernel: Pair) -> list[Array]:
    """The taps of such windows, copied: columns first, which are every so many elements of all
    rows, and then rows."""
    n, channels, height, width = x.shape
    size = height // kernel[0], width // kernel[1]
    columns = np.ascontiguousarray(x.reshape(-1, kernel[1]).T)
    rows = columns.reshape(kernel[1], -1, kernel[0], size[1])
    taps = np.empty((*kernel, n, channels, *size), x.dtype)
    for i, j in np.ndindex(*kernel):
        copy_rows(taps[i, j].reshape(-1, size[1]), rows[j, :, i])
    return list(taps.reshape(math.prod(kernel), n, channels, *size))


def _taps_inside(
    shape: tuple[int, ...], kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> list[Array]:
    """For each tap, the windows in which it lies in the image and not in the padding."""
    size = tuple(
        output_length(shape[2 + k], kernel[k], stride[k], padding[k], dilation[k]) for k in (0, 1)
    )
    image = pad(np.ones((1, 1, *shape[2:]), bool), padding, False)
    return [tap for _, _, tap in each_tap(image, kernel, stride, dilation, size)]


class _Places(NamedTuple):
    """Positions in a flattened image, as unsigned numbers just large enough for these. A tap may
    lie in the padding: its number, and differences of offsets, overflow to what adds up again."""

    #: That of the first tap in each window.
    of_first: Array
    #: By number how far each tap is from the first one, and the next one from it.
    offsets: Array
    steps: Array


@functools.lru_cache(PLACES_MAX)
def _places(
    image: Pair, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, size: Pair
) -> _Places:
    height, width = image
    rows = (np.arange(size[0]) * stride[0] - padding[0]) * width
    columns = np.arange(size[1]) * stride[1] - padding[1]
    offsets = np.add.outer(
        np.arange(kernel[0]) * dilation[0] * width, np.arange(kernel[1]) * dilation[1]
    )
    dtype = np.min_scalar_type(height * width)
    of_first, offsets = np.add.outer(rows, columns).astype(dtype), offsets.ravel().astype(dtype)
    return _Places(of_first, offsets, np.diff(offsets))


def avg_pool2d(
    xp: CpuBackend, x: Array, *, kernel: Pair, stride: Pair, padding: Pair, count_include_pad: bool
) -> Array:
    """The mean of each window; padding counts as zeros, or not at all."""
    size = tuple(output_length(x.shape[2 + k], kernel[k], stride[k], padding[k]) for k in (0, 1))
    out = xp.empty((*x.shape[:2], *size), x.dtype)
    out.fill(0)
    for _, _, tap in each_tap(pad(x, padding, 0), kernel, stride, (1, 1), size):
        out += tap
    out /= _window_counts(x.shape, kernel, stride, padding, count_include_pad, x.dtype)
    return out


def avg_pool2d_input_grad(
    xp: CpuBackend,
    grad: Array,
    *,
    input_shape: tuple[int, ...],
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    count_include_pad: bool,
) -> Array:
    """The gradient of ``avg_pool2d`` for its input, of shape ``input_shape``."""
    counts = _window_counts(input_shape, kernel, stride, padding, count_include_pad, grad.dtype)
    share = grad / counts
    padded = padded_zeros(input_shape, padding, grad.dtype)
    for _, _, view in each_tap(padded, kernel, stride, (1, 1), grad.shape[2:]):
        view += share
    return xp.copy(without_padding(padded, input_shape, padding))


# ---------------------------------------------------------------------- windows


def each_tap(
    padded: Array,
    kernel: tuple[int, ...],
    stride: Pair,
    dilation: Pair,
    size: tuple[int, ...],
) -> Iterator[tuple[int, int, Array]]:
    """For each kernel position (i, j): the view of its elements in all windows."""
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            top, left = i * dilation[0], j * dilation[1]
            yield (
                i,
                j,
                padded[
                    ...,
                    top : top + stride[0] * (size[0] - 1) + 1 : stride[0],
                    left : left + stride[1] * (size[1] - 1) + 1 : stride[1],
                ],
            )


def pad(x: Array, padding: Pair, value: Any) -> Array:
    """Images with ``value`` as padding; ``x`` itself if there is no padding."""
    if padding == (0, 0):
        return x
    (top, left), (n, c, h, w) = padding, x.shape
    padded = np.full((n, c, h + 2 * top, w + 2 * left), value, x.dtype)
    padded[:, :, top : top + h, left : left + w] = x
    return padded


def padded_zeros(shape: tuple[int, ...], padding: Pair, dtype: Any) -> Array:
    """Zeros for images of ``shape`` with padding."""
    n, c, h, w = shape
    return np.zeros((n, c, h + 2 * padding[0], w + 2 * padding[1]), dtype)


def without_padding(padded: Array, shape: tuple[int, ...], padding: Pair) -> Array:
    """A view of ``padded`` without its padding."""
    top, left = padding
    return padded[:, :, top : top + shape[2], left : left + shape[3]]


def _window_counts(
    shape: tuple[int, ...],
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    count_include_pad: bool,
    dtype: Any,
) -> Array:
    """The number of elements in each window's mean, broadcastable to the output."""
    size = tuple(output_length(shape[2 + k], kernel[k], stride[k], padding[k]) for k in (0, 1))
    if count_include_pad:
        return np.full((1, 1, 1, 1), kernel[0] * kernel[1], dtype)
    inside = pad(np.ones((1, 1, *shape[2:]), dtype), padding, 0)
    counts = np.zeros((1, 1, *size), dtype)
    for _, _, tap in each_tap(inside, kernel, stride, (1, 1), size):
        counts += tap
    return counts


def _lowest(dtype: np.dtype[Any]) -> Any:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def copy_rows(target: Array, source: Array) -> None:
    """``target[...] = source``, for arrays of one dtype and with rows of one length.

    Short rows are copied as one item each: NumPy begins a loop for each row, which takes longer
    than to copy a few elements. Rows of 16 bytes take 5 to 8 times as long as items of 16 bytes
    (docs/profiles.md, "Layers beside PyTorch").
    """
    length, size = source.shape[-1], source.itemsize
    if 1 < length <= ROW_BYTES_MAX // size and source.strides[-1] == target.strides[-1] == size:
        item = _item(length * size)
        target, source = target.view(item), source.view(item)
    np.copyto(target, source)


@functools.lru_cache(ROW_BYTES_MAX)
def _item(nbytes: int) -> np.dtype[Any]:
    return np.dtype((np.void, nbytes))
