"""Fourier transforms on an array library with NumPy's ``fft``: a part of both namespaces."""

from __future__ import annotations

from typing import Any

Axes = tuple[int, ...]

#: NumPy's names for the scaling of a transform, forward and back.
_FORWARD = {"none": "backward", "root": "ortho", "all": "forward"}
_BACK = {"none": "forward", "root": "ortho", "all": "backward"}


def fourier(xp: Any, x: Any, axes: Axes, forward: bool, scale: str) -> Any:
    """Complex to complex, over ``axes``."""
    transform, norms = (xp.fft.fftn, _FORWARD) if forward else (xp.fft.ifftn, _BACK)
    return _like(xp, transform(x, axes=axes, norm=norms[scale]), x.dtype)


def real_fourier(xp: Any, x: Any, axes: Axes, scale: str) -> Any:
    """Real to complex: the first half of the last of ``axes``."""
    return _like(xp, xp.fft.rfftn(x, axes=axes, norm=_FORWARD[scale]), f"c{2 * x.dtype.itemsize}")


def fourier_of_real(xp: Any, x: Any, axes: Axes, length: int, scale: str) -> Any:
    """The inverse, from the first half of the last of ``axes``, which has ``length`` in all."""
    sizes = [*(x.shape[axis] for axis in axes[:-1]), length]
    found = xp.fft.irfftn(x, s=sizes, axes=axes, norm=_BACK[scale])
    return _like(xp, found, f"f{x.dtype.itemsize // 2}")


def _like(xp: Any, found: Any, dtype: Any) -> Any:
    return xp.ascontiguousarray(found.astype(dtype, copy=False))
