"""CUDA kernels for functions that CuPy lacks or does in many steps: windows, and sums at indices.

One thread takes each sum, in NumPy's order, which gives the same bits every time; atomic additions
do not. ``tests/cuda/fake_driver`` has the same functions for NumPy.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple


class KernelSource(NamedTuple):
    """A kernel's parameters and code, as ``cupy.ElementwiseKernel`` takes them."""

    inputs: str
    outputs: str
    code: str


_WINDOW = (
    "int64 height, int64 width, int64 out_height, int64 out_width, int64 kernel_h, int64 kernel_w,"
    " int64 stride_h, int64 stride_w, int64 pad_h, int64 pad_w"
)

#: The place in the image of each element of a window.
_EACH_TAP = """
    long long x = i % out_width, y = i / out_width % out_height;
    long long image = i / (out_width * out_height);
    for (long long a = 0; a < kernel_h; ++a) {
        long long row = y * stride_h - pad_h + a * %(dilation_h)s;
        if (row < 0 || row >= height) continue;
        for (long long b = 0; b < kernel_w; ++b) {
            long long column = x * stride_w - pad_w + b * %(dilation_w)s;
            if (column < 0 || column >= width) continue;
            long long place = row * width + column;
            %(body)s
        }
    }
"""

#: The windows that contain an element of an image, with its tap (a, b) in each.
_EACH_WINDOW = """
    long long column = i % width, row = i / width % height, image = i / (width * height);
    T total = 0;
    for (long long a = 0; a < kernel_h; ++a) {
        long long y = row + pad_h - a * %(dilation_h)s;
        if (y < 0 || y % stride_h != 0) continue;
        y /= stride_h;
        if (y >= out_height) continue;
        for (long long b = 0; b < kernel_w; ++b) {
            long long x = column + pad_w - b * %(dilation_w)s;
            if (x < 0 || x % stride_w != 0) continue;
            x /= stride_w;
            if (x >= out_width) continue;
            %(body)s
        }
    }
    out = total;
"""


def _filled(template: str, body: str, dilated: bool) -> str:
    """The loops of ``template`` around ``body``."""
    for name in ("dilation_h", "dilation_w"):
        template = template.replace(f"%({name})s", name if dilated else "1")
    return template.replace("%(body)s", body)


def _taps_backwards(template: str) -> str:
    """Reverse the taps: windows that begin later contain an element at an earlier tap."""
    for tap, length in (("a", "kernel_h"), ("b", "kernel_w")):
        ahead = f"{tap} = 0; {tap} < {length}; ++{tap}"
        template = template.replace(ahead, f"{tap} = {length} - 1; {tap} >= 0; --{tap}")
    return template


_DILATED = f"{_WINDOW}, int64 dilation_h, int64 dilation_w"

SOURCES: dict[str, KernelSource] = {
    "mpgrad_complex_sign": KernelSource(
        "T x", "T out", "auto size = abs(x); out = size == 0 ? x : x / size;"
    ),
    # The first of the largest elements, or the last NaN.
    "mpgrad_max_pool": KernelSource(
        f"raw T images, {_DILATED}",
        "T value, int64 position",
        "bool found = false;"
        + _filled(
            _EACH_TAP,
            """
            T candidate = images[image * height * width + place];
            if (!found || candidate > value || candidate != candidate) {
                value = candidate;
                position = place;
                found = true;
            }""",
            True,
        ),
    ),
    # If a maximum belongs to several windows, their gradients are added in memory order.
    "mpgrad_max_pool_grad": KernelSource(
        f"raw T grads, raw int64 positions, {_DILATED}",
        "T out",
        _filled(
            _taps_backwards(_EACH_WINDOW),
            """
            long long window = (image * out_height + y) * out_width + x;
            if (positions[window] == row * width + column) total += grads[window];""",
            True,
        ),
    ),
    "mpgrad_avg_pool": KernelSource(
        f"raw T images, {_WINDOW}, bool counts_padding",
        "T out",
        "T total = 0; long long inside = 0;"
        + _filled(_EACH_TAP, "total += images[image * height * width + place]; ++inside;", False)
        + "out = total / static_cast<T>(counts_padding ? kernel_h * kernel_w : inside);",
    ),
    "mpgrad_avg_pool_grad": KernelSource(
        f"raw T shares, {_WINDOW}",
        "T out",
        _filled(_EACH_WINDOW, "total += shares[(image * out_height + y) * out_width + x];", False),
    ),
    "mpgrad_columns_to_image": KernelSource(
        f"raw T columns, {_DILATED}",
        "T out",
        _filled(
            _EACH_WINDOW,
            "total += columns[(((image * kernel_h + a) * kernel_w + b) * out_height + y)"
            " * out_width + x];",
            True,
        ),
    ),
    # Thread i begins a run of equal places, or has nothing to do. A place is that of a row of
    # ``width`` neighbours, of which thread i takes one.
    "mpgrad_add_runs": KernelSource(
        "raw int64 places, raw int64 order, raw T values, int64 count, int64 width",
        "raw T out",
        """
        long long first = i / width, beside = i % width, place = places[first];
        if (first == 0 || places[first - 1] != place) {
            T total = out[place * width + beside];
            for (long long j = first; j < count && places[j] == place; ++j)
                total += values[order[j] * width + beside];
            out[place * width + beside] = total;
        }""",
    ),
    # Thread i walks along one line of ``values``, and of ``out``.
    "mpgrad_add_lines": KernelSource(
        "raw T values, raw int64 indices, int64 length, int64 size, int64 inner",
        "raw T out",
        """
        long long before = i / inner, after = i % inner;
        for (long long j = 0; j < length; ++j) {
            long long from = (before * length + j) * inner + after, index = indices[from];
            if (index < 0) index += size;
            out[(before * size + index) * inner + after] += values[from];
        }""",
    ),
}


class Kernels:
    """The kernels of an array module, made on first use."""

    def __init__(self, arrays: Any) -> None:
        self._make = functools.cache(lambda name: arrays.ElementwiseKernel(*SOURCES[name], name))

    def __getitem__(self, name: str) -> Any:
        return self._make(name)
