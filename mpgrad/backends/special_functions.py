"""Special functions of SciPy, an optional dependency (on GPUs CuPy's copy of them).

Every function is one of ``scipy.special`` except ``gamma_slope``.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import numpy as np

#: The relative distance of the shapes whose quantiles give the slope.
_STEP = 1e-3


@cache
def scipy_special() -> Any:
    """The module ``scipy.special``.

    Raises:
        ImportError: SciPy is not installed.
    """
    try:
        return importlib.import_module("scipy.special")
    except ImportError as error:
        raise ImportError(
            "this function needs SciPy, which is not installed: pip install 'mpgrad[scipy]'"
        ) from error


def evaluated(xp: Any, special: Any, name: str, operands: tuple[Any, ...]) -> Any:
    """``special.<name>`` of arrays of ``xp`` and numbers, in the dtype of the last array."""
    if name == "gamma_slope":
        found = gamma_slope(xp, special, *operands)
    else:
        found = getattr(special, name)(*operands)
    found = found[0] if isinstance(found, tuple) else found
    if name == "gammaln":  # SciPy's is minus infinity there
        found = xp.where(xp.equal(operands[0], -np.inf), np.inf, found)
    dtype = [x.dtype for x in operands if hasattr(x, "dtype")][-1]
    return xp.asarray(found, dtype=dtype)


def gamma_slope(xp: Any, special: Any, shape: Any, x: Any) -> Any:
    """The derivative of a gamma distribution's quantile by its shape, where the quantile is ``x``.

    A draw is the quantile of a fixed uniform number (Figurnov, Mohamed and Mnih, "Implicit
    reparameterization gradients", 2018). The derivative of the logarithm of the quantile by the
    logarithm of the shape is taken by differences of fourth order, in the smaller tail.
    """
    shape, x = xp.asarray(shape, np.float64), xp.asarray(x, np.float64)
    x = xp.maximum(x, np.finfo(np.float64).tiny)
    below, above = special.gammainc(shape, x), special.gammaincc(shape, x)

    def logarithm(step: int) -> Any:
        moved = shape * (1 + step * _STEP)
        low, high = special.gammaincinv(moved, below), special.gammainccinv(moved, above)
        found = xp.where(below < above, low, high)
        return xp.log(xp.maximum(found, np.finfo(np.float64).tiny))

    near, far = logarithm(1) - logarithm(-1), logarithm(2) - logarithm(-2)
    slope = (8 * near - far) / (12 * _STEP) * x / shape
    # The lower tail is a power: log(x) = (log(p) + log(gamma(shape + 1))) / shape.
    power = (special.digamma(shape + 1) - xp.log(x)) * x / shape
    return xp.where(x < 1e-200, power, slope)
