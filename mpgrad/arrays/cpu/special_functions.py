"""Special functions of SciPy, an optional dependency (on GPUs CuPy's copy of them).

Every function is one of ``scipy.special`` except those with ``slope`` in their name.
"""

from __future__ import annotations

import importlib
import math
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
    elif name == "dirichlet_slope":
        found = dirichlet_slope(xp, special, *operands)
    elif name == "log_ndtr_slope":
        scaled = special.erfcx(operands[0] * -math.sqrt(0.5))
        quotient = math.sqrt(2 / math.pi) / xp.where(xp.equal(scaled, 0), 1, scaled)
        found = xp.where(xp.equal(scaled, 0), np.inf, quotient)
    else:
        found = getattr(special, name)(*operands)
    found = found[0] if isinstance(found, tuple) else found
    if name == "gammaln":  # SciPy's is minus infinity there
        found = xp.where(xp.equal(operands[0], -np.inf), np.inf, found)
    dtype = [x.dtype for x in operands if hasattr(x, "dtype")][-1]
    return xp.asarray(found, dtype=dtype)


def dirichlet_slope(xp: Any, special: Any, shape: Any, others: Any, x: Any) -> Any:
    """How fast one share ``x`` of a Dirichlet distribution grows with its concentration ``shape``,
    over ``1 - x``; the other ones sum to ``others``.

    As ``gamma_slope``, of the quantile of a Beta distribution (in the smaller tail).
    """
    shape, others = xp.asarray(shape, np.float64), xp.asarray(others, np.float64)
    tiny = np.finfo(np.float64).tiny
    x = xp.maximum(xp.asarray(x, np.float64), tiny)
    rest = xp.maximum(1 - x, tiny)
    below, above = special.betainc(shape, others, x), special.betainc(others, shape, rest)

    def logarithms(step: int) -> tuple[Any, Any]:
        moved = shape * (1 + step * _STEP)
        low = special.betaincinv(moved, others, below)
        high = special.betaincinv(others, moved, above)
        return xp.log(xp.maximum(low, tiny)), xp.log(xp.maximum(high, tiny))

    moved = [logarithms(step) for step in (1, -1, 2, -2)]
    low, high = (
        (8 * (near - back) - (far - behind)) / (12 * _STEP) / shape
        for near, back, far, behind in zip(*moved, strict=True)
    )
    # The lower tail is a power: log(x) = (log(p) + log(shape * beta(shape, others))) / shape.
    power = (special.digamma(shape + 1) - special.digamma(shape + others) - xp.log(x)) / shape
    low = xp.where(x < 1e-200, power, low)
    return xp.where(below < above, low * x / rest, -high)


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
