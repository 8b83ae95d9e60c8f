"""Windows: factors for the elements of a frame, as ``mg.signal.windows`` and ``mg.hann_window``.

A window of ``M`` elements is symmetric, or (``sym=False``) one period of a symmetric one of
``M + 1`` (Harris, "On the use of windows for harmonic analysis", 1978).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpgrad.base.dtype import default_float
from mpgrad.ops.new_tensors.creation import tensor
from mpgrad.recording.tensors.tensor import Tensor

Array = np.ndarray[Any, Any]


def _made(
    name: str, M: int, sym: bool, shape: Callable[[Array, float], Array], options: dict[str, Any]
) -> Tensor:
    """The values of ``shape`` at the places 0 to M - 1 of a window that ends at a given place.

    Raises:
        ValueError: ``M`` is negative, or the dtype is neither float32 nor float64.
    """
    if M < 0:
        raise ValueError(f"{name} requires non-negative window length, got M={M}")
    dtype = np.dtype(options.pop("dtype", None) or default_float())
    if dtype not in (np.float32, np.float64):
        raise ValueError(f"{name} expects float32 or float64 dtypes, got: {dtype}")
    options.pop("layout", None)
    places, last = np.arange(M, dtype=np.float64), max(M - 1 if sym else M, 1)
    values = np.ones(M) if M < 2 else shape(places, float(last))
    return tensor(values.astype(dtype), **options)


def general_cosine(M: int, *, a: Sequence[float], sym: bool = True, **options: Any) -> Tensor:
    """The sum of cosines of 0, 1, 2, ... periods with the factors ``a``, whose signs alternate.

    Args:
        M: elements.
        a: factors.
        sym: symmetric, or one period.
        options: ``dtype``, ``device``, ``requires_grad``.

    Raises:
        TypeError: ``a`` is no sequence.
        ValueError: ``a`` is empty, ``M`` negative, or another dtype than float32 and float64.
    """
    if not isinstance(a, list | tuple):
        raise TypeError("Coefficients must be a list/tuple")
    if not a:
        raise ValueError("Coefficients cannot be empty")
    return _made(
        "general_cosine",
        M,
        sym,
        lambda n, last: sum(
            (-1) ** k * factor * np.cos(2 * math.pi * k * n / last) for k, factor in enumerate(a)
        ),
        options,
    )


def general_hamming(M: int, *, alpha: float = 0.54, sym: bool = True, **options: Any) -> Tensor:
    """``alpha - (1 - alpha) * cos(...)`` over one period; see ``general_cosine``."""
    return general_cosine(M, a=[alpha, 1 - alpha], sym=sym, **options)


def hamming(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """Hamming's window: ``0.54 - 0.46 * cos(...)``; see ``general_cosine``."""
    return general_hamming(M, sym=sym, **options)


def hann(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """Hann's window: ``0.5 - 0.5 * cos(...)``; see ``general_cosine``."""
    return general_hamming(M, alpha=0.5, sym=sym, **options)


def blackman(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """Blackman's window, of three cosines; see ``general_cosine``."""
    return general_cosine(M, a=[0.42, 0.5, 0.08], sym=sym, **options)


def nuttall(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """Nuttall's window with minimal sidelobes, of four cosines; see ``general_cosine``."""
    factors = [0.3635819, 0.4891775, 0.1365995, 0.0106411]
    return general_cosine(M, a=factors, sym=sym, **options)


def bartlett(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """Bartlett's triangle; see ``general_cosine``."""
    return _made("bartlett", M, sym, lambda n, last: 1 - np.abs(2 * n / last - 1), options)


def cosine(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """Half a period of a sine; see ``general_cosine``."""
    return _made(
        "cosine", M, sym, lambda n, last: np.sin(math.pi * (n + 0.5) / (last + 1)), options
    )


def gaussian(M: int, *, std: float = 1.0, sym: bool = True, **options: Any) -> Tensor:
    """The density of the normal distribution with ``std`` elements, 1 in the middle.

    Raises:
        ValueError: ``std`` is not positive, or as of ``general_cosine``.
    """
    if std <= 0:
        raise ValueError(f"Standard deviation must be positive, got: {std} instead.")
    return _made(
        "gaussian", M, sym, lambda n, last: np.exp(-(((n - last / 2) / std) ** 2) / 2), options
    )


def exponential(
    M: int, *, center: float | None = None, tau: float = 1.0, sym: bool = True, **options: Any
) -> Tensor:
    """``exp(-abs(n - center) / tau)``, by default around the middle.

    Raises:
        ValueError: ``tau`` is not positive, a symmetric window has another ``center``, or as of
            ``general_cosine``.
    """
    if tau <= 0:
        raise ValueError(f"Tau must be positive, got: {tau} instead.")
    if sym and center is not None:
        raise ValueError("Center must be None for symmetric windows")
    return _made(
        "exponential",
        M,
        sym,
        lambda n, last: np.exp(-np.abs(n - (last / 2 if center is None else center)) / tau),
        options,
    )


def kaiser(M: int, *, beta: float = 12.0, sym: bool = True, **options: Any) -> Tensor:
    """Kaiser's window: the larger ``beta``, the narrower.

    Raises:
        ValueError: ``beta`` is negative, or as of ``general_cosine``.
    """
    if beta < 0:
        raise ValueError(f"beta must be non-negative, got: {beta} instead.")
    return _made(
        "kaiser",
        M,
        sym,
        lambda n, last: (
            np.i0(beta * np.sqrt(np.maximum(1 - (2 * n / last - 1) ** 2, 0))) / np.i0(beta)
        ),
        options,
    )


# ------------------------------------------------------------------------------ in ``mg`` itself


def hann_window(window_length: int, periodic: bool = True, **options: Any) -> Tensor:
    """``mg.signal.windows.hann``, by default one period of it.

    Raises:
        RuntimeError: the length is negative, or another dtype than float32 and float64.
    """
    return hamming_window(window_length, periodic, 0.5, 0.5, **options)


def hamming_window(
    window_length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    **options: Any,
) -> Tensor:
    """``alpha - beta * cos(...)``, by default one period of it; see ``hann_window``."""
    return _older(general_cosine, window_length, periodic, options, a=[alpha, beta])


def blackman_window(window_length: int, periodic: bool = True, **options: Any) -> Tensor:
    """``mg.signal.windows.blackman``, by default one period of it; see ``hann_window``."""
    return _older(blackman, window_length, periodic, options)


def bartlett_window(window_length: int, periodic: bool = True, **options: Any) -> Tensor:
    """``mg.signal.windows.bartlett``, by default one period of it; see ``hann_window``."""
    return _older(bartlett, window_length, periodic, options)


def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, **options: Any
) -> Tensor:
    """``mg.signal.windows.kaiser``, by default one period of it; see ``hann_window``."""
    return _older(kaiser, window_length, periodic, options, beta=beta)


def _older(
    window: Callable[..., Tensor],
    length: int,
    periodic: bool,
    options: dict[str, Any],
    **shape: Any,
) -> Tensor:
    try:
        return window(length, sym=not periodic, **shape, **options)
    except ValueError as error:
        raise RuntimeError(str(error)) from error
