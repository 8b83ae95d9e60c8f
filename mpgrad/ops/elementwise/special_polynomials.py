"""Orthogonal polynomials, by SciPy: of Chebyshev, Hermite, Laguerre and Legendre.

The degree is cut off to a whole number; below 0 the value is 0. Nothing here has a derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpgrad.arrays.cpu.broadcasting import broadcast_shape
from mpgrad.arrays.cpu.special_functions import scipy_special
from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.ops.calling.promotion import floating, real_tensors, refuse_complex
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.recording.tensors.tensor import Tensor

Evaluate = Callable[[Any, Any, Any], Any]


def _scipy(name: str) -> Evaluate:
    return lambda special, n, x: getattr(special, name)(n, x)


def _sum_of_second_kind(sign: int) -> Evaluate:
    """Of the third kind ``U(n) - U(n - 1)``, of the fourth ``U(n) + U(n - 1)``."""
    return lambda special, n, x: (
        special.eval_chebyu(n, x)
        + sign * np.where(n > 0, special.eval_chebyu(np.maximum(n - 1, 0), x), 0)
    )


def _shifted(evaluate: Evaluate) -> Evaluate:
    return lambda special, n, x: evaluate(special, n, 2 * x - 1)


_THIRD, _FOURTH = _sum_of_second_kind(-1), _sum_of_second_kind(1)
_FAMILIES: dict[str, tuple[Evaluate, str]] = {
    "chebyshev_polynomial_t": (_scipy("eval_chebyt"), "Chebyshev, first kind"),
    "chebyshev_polynomial_u": (_scipy("eval_chebyu"), "Chebyshev, second kind"),
    "chebyshev_polynomial_v": (_THIRD, "Chebyshev, third kind"),
    "chebyshev_polynomial_w": (_FOURTH, "Chebyshev, fourth kind"),
    "hermite_polynomial_h": (_scipy("eval_hermite"), "Hermite, for the weight ``exp(-x * x)``"),
    "hermite_polynomial_he": (
        _scipy("eval_hermitenorm"),
        "Hermite, for the weight ``exp(-x * x / 2)``",
    ),
    "laguerre_polynomial_l": (_scipy("eval_laguerre"), "Laguerre"),
    "legendre_polynomial_p": (_scipy("eval_legendre"), "Legendre"),
    "shifted_chebyshev_polynomial_t": (
        _shifted(_scipy("eval_chebyt")),
        "Chebyshev, first kind, at ``2 * x - 1``",
    ),
    "shifted_chebyshev_polynomial_u": (
        _shifted(_scipy("eval_chebyu")),
        "Chebyshev, second kind, at ``2 * x - 1``",
    ),
    "shifted_chebyshev_polynomial_v": (
        _shifted(_THIRD),
        "Chebyshev, third kind, at ``2 * x - 1``",
    ),
    "shifted_chebyshev_polynomial_w": (
        _shifted(_FOURTH),
        "Chebyshev, fourth kind, at ``2 * x - 1``",
    ),
}


def _polynomial(name: str, evaluate: Evaluate, whose: str) -> Callable[[Any, Any], Tensor]:
    def function(input: Any, n: Any) -> Tensor:
        x, degree = real_tensors(name, input, n, float_result=True)
        shape = broadcast_shape(x.shape, degree.shape)
        degrees = np.trunc(on_host(degree._array)).astype(np.int64)
        degrees = np.broadcast_to(degrees, shape).reshape(-1)  # SciPy knows 32 dimensions at most
        places = np.broadcast_to(on_host(x._array).astype(np.float64), shape).reshape(-1)
        values = evaluate(scipy_special(), np.maximum(degrees, 0), places)
        values = np.where(degrees < 1, np.where(degrees < 0, 0.0, 1.0), values)
        return beside(x, np.asarray(values, x._array.dtype).reshape(shape))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"The polynomials of degree ``n`` of {whose}, without a derivative.\n\n"
        "    Raises:\n        RuntimeError: the shapes do not fit together.\n"
        "        ImportError: SciPy is not installed.\n    "
    )
    return function


def spherical_bessel_j0(input: Any) -> Tensor:
    """``sin(input) / input``, and 1 at 0, without a derivative.

    Raises:
        ImportError: SciPy is not installed.
    """
    x = floating(input)
    refuse_complex("spherical_bessel_j0", x)
    values = scipy_special().spherical_jn(0, on_host(x._array).astype(np.float64).reshape(-1))
    return beside(x, np.asarray(values, x._array.dtype).reshape(x.shape))


#: The functions of ``mg.special`` that this file is responsible for.
POLYNOMIALS: dict[str, Callable[..., Tensor]] = {
    **{name: _polynomial(name, *family) for name, family in _FAMILIES.items()},
    "spherical_bessel_j0": spherical_bessel_j0,
}
