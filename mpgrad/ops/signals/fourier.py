"""Discrete Fourier transforms, by NumPy's ``fft`` (on GPUs CuPy's).

Three operators do all: complex to complex, real to complex and back. Each knows its direction and
how it is scaled, and the gradient of each is one of the others with the same scale: a transform is
linear, and its matrix is symmetric (PyTorch's documentation, "Autograd for Complex Numbers").
"""

from __future__ import annotations

import operator as python_operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.base.dtype import default_float
from mpgrad.ops.by_index.indexing import narrow
from mpgrad.ops.by_index.selection import pad, roll
from mpgrad.ops.calling.dimensions import as_tuple, one_dim
from mpgrad.ops.calling.promotion import cast
from mpgrad.ops.elementwise.complex_numbers import conj
from mpgrad.ops.new_tensors.creation import arange
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "hfft2",
    "hfftn",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "ihfft2",
    "ihfftn",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]

Axes = tuple[int, ...]

#: How a transform is scaled, by direction and PyTorch's ``norm``: not at all, by the square root of
#: the number of elements, or by that number.
_SCALES = {
    (True, "backward"): "none",
    (True, "ortho"): "root",
    (True, "forward"): "all",
    (False, "backward"): "all",
    (False, "ortho"): "root",
    (False, "forward"): "none",
}


def _half_back(xp: Any, grad: Any, input_shape: Any, axes: Axes, scale: str) -> Any:
    """The gradient of ``real_to_complex``: the missing half has none."""
    last, lacking = axes[-1], input_shape[axes[-1]] - grad.shape[axes[-1]]
    if lacking:
        shape = (*grad.shape[:last], lacking, *grad.shape[last + 1 :])
        grad = xp.concatenate([grad, xp.zeros_beside(grad, shape)], last)
    return xp.real(xp.fourier(grad, axes, False, scale))


def _whole_back(xp: Any, grad: Any, input_shape: Any, axes: Axes, scale: str) -> Any:
    """The gradient of ``complex_to_real``: elements that represent two count twice."""
    half = xp.real_fourier(grad, axes, scale)
    last = axes[-1]
    weights = np.full(input_shape[last], 2, grad.dtype)
    weights[:1] = 1
    weights[grad.shape[last] - input_shape[last] + 1 :] = 1
    weights = weights.reshape(-1, *(1,) * (len(input_shape) - last - 1))
    return xp.multiply(half, xp.constant_beside(half, weights))


_complex = operator(
    "fft_c2c",
    lambda xp, input, *, axes, onward, scale: xp.fourier(input, axes, onward, scale),
    input=lambda xp, grad, axes, onward, scale: xp.fourier(grad, axes, not onward, scale),
    wirtinger=True,
)
_real = operator(
    "fft_r2c",
    lambda xp, input, *, axes, scale: xp.real_fourier(input, axes, scale),
    input=_half_back,
    wirtinger=True,
)
_back = operator(
    "fft_c2r",
    lambda xp, input, *, axes, length, scale: xp.fourier_of_real(input, axes, length, scale),
    input=_whole_back,
    wirtinger=True,
)


def fourier(x: Tensor, axes: Axes, forward: bool, scale: str) -> Tensor:
    """The operator, for formulas."""
    return call(_complex, x, axes=axes, onward=forward, scale=scale)


def real_fourier(x: Tensor, axes: Axes, scale: str) -> Tensor:
    """The operator, for formulas."""
    return call(_real, x, axes=axes, scale=scale)


# --------------------------------------------------------------------------------- shared parts


def _scale(name: str, norm: str | None, forward: bool) -> str:
    found = _SCALES.get((forward, norm or "backward"))
    if found is None:
        raise RuntimeError(f'Invalid normalization mode: "{norm}" ({name})')
    return found


def _checked(name: str, input: Tensor) -> Tensor:
    if input.dtype == np.float16:
        raise RuntimeError(f"Unsupported dtype {input.dtype}: {name} takes float32 and wider")
    return input if input.dtype.kind in "fc" else cast(input, default_float())


def _as_complex(input: Tensor) -> Tensor:
    return input if input.dtype.kind == "c" else cast(input, f"c{2 * input.dtype.itemsize}")


def _axes(name: str, input: Tensor, s: Any, dim: Any) -> tuple[Axes, tuple[int, ...]]:
    """The dimensions that are transformed, in their order, and how long they are made."""
    sizes = None if s is None else as_tuple(s)
    if dim is None:
        count = input.ndim if sizes is None else len(sizes)
        if count > input.ndim:
            raise RuntimeError(
                f"Got shape with {count} values but input tensor only has {input.ndim} dimensions."
            )
        axes: Axes = tuple(range(input.ndim - count, input.ndim))
    else:
        axes = tuple(one_dim(d, input.ndim) for d in as_tuple(dim))
    if len(set(axes)) != len(axes):
        raise RuntimeError("FFT dims must be unique")
    if sizes is not None and len(sizes) != len(axes):
        raise RuntimeError("When given, dim and shape arguments must have the same length")
    lengths = tuple(
        input.shape[axis] if sizes is None or sizes[at] == -1 else sizes[at]
        for at, axis in enumerate(axes)
    )
    _check_lengths(lengths)
    return axes, lengths


def _check_lengths(lengths: Sequence[int]) -> None:
    for length in lengths:
        if length < 1:
            raise RuntimeError(f"Invalid number of data points ({length}) specified")


def _fitted(input: Tensor, axes: Axes, lengths: Sequence[int]) -> Tensor:
    """``input`` cut off, or with zeros at the end, along ``axes``."""
    for axis, length in zip(axes, lengths, strict=True):
        more = length - input.shape[axis]
        if more < 0:
            input = narrow(input, axis, 0, length)
        elif more:
            input = pad(input, (*(0,) * (2 * (input.ndim - axis - 1)), 0, more))
    return input


def _line(name: str, input: Tensor, n: int | None, dim: int) -> tuple[Any, Any]:
    if input.ndim == 0:
        raise IndexError("Dimension specified as -1 but tensor has no dimensions")
    return (None if n is None else (python_operator.index(n),)), (dim,)


# ------------------------------------------------------------------------------------- transforms


def _transformed(
    name: str, input: Tensor, s: Any, dim: Any, norm: str | None, forward: bool
) -> Tensor:
    x = _as_complex(_checked(name, input))
    axes, lengths = _axes(name, x, s, dim)
    if not axes:
        return x.clone()  # type: ignore[no-any-return]
    scale = _scale(name, norm, forward)
    return fourier(_fitted(x, axes, lengths), axes, forward, scale)


def fftn(input: Tensor, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The Fourier transform over several dimensions.

    Args:
        input: any tensor of numbers; integers become float32.
        s: the lengths of the dimensions after cutting or zero padding; -1 keeps a length.
        dim: which dimensions; by default the last ones of ``s``, or all.
        norm: ``"backward"`` (no scale here, that of the inverse is one over the number of
            elements), ``"ortho"`` (the root of it, both ways), or ``"forward"`` (here).

    Returns:
        complex, of that shape.

    Raises:
        RuntimeError: the arguments do not fit.
    """
    return _transformed("fftn", input, s, dim, norm, True)


def ifftn(input: Tensor, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The inverse of ``fftn``, with the same arguments."""
    return _transformed("ifftn", input, s, dim, norm, False)


def fft2(input: Tensor, s: Any = None, dim: Any = (-2, -1), norm: str | None = None) -> Tensor:
    """``fftn`` over two dimensions."""
    return _transformed("fft2", input, s, dim, norm, True)


def ifft2(input: Tensor, s: Any = None, dim: Any = (-2, -1), norm: str | None = None) -> Tensor:
    """The inverse of ``fft2``."""
    return _transformed("ifft2", input, s, dim, norm, False)


def fft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """``fftn`` along one dimension, made ``n`` long."""
    return _transformed("fft", input, *_line("fft", input, n, dim), norm, True)


def ifft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of ``fft``."""
    return _transformed("ifft", input, *_line("ifft", input, n, dim), norm, False)


def _of_real(name: str, input: Tensor, s: Any, dim: Any, norm: str | None) -> Tensor:
    if input.dtype.kind == "c":
        raise RuntimeError(f"{name} expects a real input tensor, but got {input.dtype}")
    x = _checked(name, input)
    axes, lengths = _axes(name, x, s, dim)
    if not axes:
        raise RuntimeError(f"{name} must transform at least one axis")
    return real_fourier(_fitted(x, axes, lengths), axes, _scale(name, norm, True))


def rfftn(input: Tensor, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """``fftn`` of real numbers: of the last dimension only the first half, as the rest mirrors it.

    Raises:
        RuntimeError: the input is complex, or the arguments do not fit.
    """
    return _of_real("rfftn", input, s, dim, norm)


def rfft2(input: Tensor, s: Any = None, dim: Any = (-2, -1), norm: str | None = None) -> Tensor:
    """``rfftn`` over two dimensions."""
    return _of_real("rfft2", input, s, dim, norm)


def rfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """``rfftn`` along one dimension, made ``n`` long."""
    return _of_real("rfft", input, *_line("rfft", input, n, dim), norm)


def _half(name: str, input: Tensor, s: Any, dim: Any) -> tuple[Tensor, Axes, int]:
    """The half of a spectrum, its dimensions, and the whole length of the last of them."""
    x = _as_complex(_checked(name, input))
    axes, lengths = _axes(name, x, s, dim)
    if not axes:
        raise RuntimeError(f"{name} must transform at least one axis")
    sizes = None if s is None else as_tuple(s)
    is_given = sizes is not None and sizes[-1] != -1
    length = lengths[-1] if is_given else 2 * (x.shape[axes[-1]] - 1)
    _check_lengths([length])
    return _fitted(x, axes, (*lengths[:-1], length // 2 + 1)), axes, length


def _to_real(name: str, input: Tensor, s: Any, dim: Any, norm: str | None) -> Tensor:
    half, axes, length = _half(name, input, s, dim)
    return call(_back, half, axes=axes, length=length, scale=_scale(name, norm, False))


def irfftn(input: Tensor, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The inverse of ``rfftn``, real; the last of ``s`` tells how long the last dimension was, by
    default ``2 * (half - 1)``."""
    return _to_real("irfftn", input, s, dim, norm)


def irfft2(input: Tensor, s: Any = None, dim: Any = (-2, -1), norm: str | None = None) -> Tensor:
    """The inverse of ``rfft2``."""
    return _to_real("irfft2", input, s, dim, norm)


def irfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of ``rfft``; ``n`` is the length of the signal."""
    return _to_real("irfft", input, *_line("irfft", input, n, dim), norm)


def hfftn(input: Tensor, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """``fftn`` of a Hermitian signal, given the first half of its last dimension: real."""
    half, axes, length = _half("hfftn", input, s, dim)
    scale = _scale("hfftn", norm, True)
    if axes[:-1]:
        half = fourier(half, axes[:-1], True, scale)
    return call(_back, conj(half), axes=axes[-1:], length=length, scale=scale)


def hfft2(input: Tensor, s: Any = None, dim: Any = (-2, -1), norm: str | None = None) -> Tensor:
    """``hfftn`` over two dimensions."""
    return hfftn(input, s, dim, norm)


def hfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """``hfftn`` along one dimension; ``n`` is the length of the result."""
    return hfftn(input, *_line("hfft", input, n, dim), norm)


def ihfftn(input: Tensor, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The inverse of ``hfftn``: of real numbers, the first half of the last dimension."""
    if input.dtype.kind == "c":
        raise RuntimeError(f"ihfftn expects a real input tensor, but got {input.dtype}")
    x = _checked("ihfftn", input)
    axes, lengths = _axes("ihfftn", x, s, dim)
    if not axes:
        raise RuntimeError("ihfftn must transform at least one axis")
    scale = _scale("ihfftn", norm, False)
    half = conj(real_fourier(_fitted(x, axes, lengths), axes[-1:], scale))
    return fourier(half, axes[:-1], False, scale) if axes[:-1] else half


def ihfft2(input: Tensor, s: Any = None, dim: Any = (-2, -1), norm: str | None = None) -> Tensor:
    """``ihfftn`` over two dimensions."""
    return ihfftn(input, s, dim, norm)


def ihfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """``ihfftn`` along one dimension, made ``n`` long."""
    return ihfftn(input, *_line("ihfft", input, n, dim), norm)


# -------------------------------------------------------------------------------------- frequencies


def _shifted(input: Tensor, dim: Any, back: bool) -> Tensor:
    dims = range(input.ndim) if dim is None else as_tuple(dim)
    axes = [one_dim(d, input.ndim) for d in dims]
    lengths = [input.shape[axis] for axis in axes]
    return roll(input, [(n + 1) // 2 if back else n // 2 for n in lengths], axes)


def fftshift(input: Tensor, dim: Any = None) -> Tensor:
    """The elements in another order along ``dim`` (by default all): frequency 0 in the middle."""
    return _shifted(input, dim, False)


def ifftshift(input: Tensor, dim: Any = None) -> Tensor:
    """The inverse of ``fftshift``."""
    return _shifted(input, dim, True)


def fftfreq(
    n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """The frequencies that the elements of an ``fft`` of ``n`` samples belong to, ``d`` apart.

    Raises:
        RuntimeError: ``n`` is negative.
    """
    numbers = _first_numbers("fftfreq", n)
    numbers[(n + 1) // 2 :] -= n
    return _frequencies(numbers, n * d, dtype, device, requires_grad)


def rfftfreq(
    n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """The frequencies that the elements of an ``rfft`` of ``n`` samples belong to.

    Raises:
        RuntimeError: ``n`` is less than -3.
    """
    numbers = _first_numbers("rfftfreq", int(n / 2) + 1)
    return _frequencies(numbers, n * d, dtype, device, requires_grad)


def _first_numbers(name: str, count: int) -> Any:
    if count < 0:
        raise RuntimeError(f"{name}(): n must not be negative")
    return np.arange(count)


def _frequencies(numbers: Any, span: float, dtype: Any, device: Any, requires_grad: bool) -> Tensor:
    with np.errstate(all="ignore"):
        values = (numbers * (1.0 / np.float64(span))).astype(dtype or default_float())
    return beside(arange(1, device=device), values).requires_grad_(requires_grad)
