"""Special functions: gamma, error and Bessel functions and their kin, by SciPy.

The derivatives are those of Abramowitz and Stegun, "Handbook of Mathematical Functions" (1964),
chapters 6, 7 and 9.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mpgrad.ops.calling.promotion import floating, real_tensors, refuse_complex, require_tensors
from mpgrad.ops.elementwise.arithmetic import add
from mpgrad.recording.dispatch.operator_call import call, unrecorded
from mpgrad.recording.graph.registry import Operator, not_implemented, operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "digamma",
    "entr",
    "erfcx",
    "erfinv",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "igamma",
    "igammac",
    "lgamma",
    "log_ndtr",
    "mvlgamma",
    "ndtr",
    "ndtri",
    "polygamma",
    "sinc",
    "xlog1py",
    "zeta",
]

_ROOT_PI = math.sqrt(math.pi)


def _times(xp: Any, grad: Any, *factors: Any) -> Any:
    for factor in factors:
        grad = xp.multiply(grad, factor)
    return grad


def _i1_grad(xp: Any, grad: Any, input: Any, result: Any) -> Any:
    origin = xp.equal(input, 0)
    safe = xp.where(origin, 1.0, input)
    slope = xp.subtract(xp.special("i0", input), xp.divide(result, safe))
    return xp.multiply(grad, xp.where(origin, 0.5, slope))


def _i1e_grad(xp: Any, grad: Any, input: Any, result: Any) -> Any:
    origin = xp.equal(input, 0)
    safe = xp.where(origin, 1.0, input)
    factor = xp.add(xp.sign(safe), xp.divide(1.0, safe))
    slope = xp.subtract(xp.special("i0e", input), xp.multiply(result, factor))
    return xp.multiply(grad, xp.where(origin, 0.5, slope))


def _log_ndtr_bend(xp: Any, input: Any, slope: Any) -> Any:
    """``slope * (input + slope)``; below -1e8 it is 1, where the sum has no digits left."""
    is_far = xp.less(input, -1e8)
    left_out = xp.logical_or(is_far, xp.equal(slope, 0))
    bend = xp.multiply(slope, xp.add(xp.where(left_out, 0.0, input), slope))
    return xp.where(is_far, 1.0, bend)


def _evaluated(name: str) -> Callable[[Any, Any], Any]:
    return lambda xp, input: xp.special(name, input)


#: By SciPy's name: the operator's name, and its derivative.
_OPERATORS: dict[str, Operator] = {
    scipy: operator(name, _evaluated(scipy), input=derivative)
    for scipy, name, derivative in (
        (
            "gammaln",
            "lgamma",
            lambda xp, grad, input: _times(xp, grad, xp.special("digamma", input)),
        ),
        (
            "digamma",
            "digamma",
            lambda xp, grad, input: _times(xp, grad, xp.special("polygamma", 1, input)),
        ),
        (
            "erfinv",
            "erfinv",
            lambda xp, grad, result: _times(xp, grad, _ROOT_PI / 2, xp.exp(xp.square(result))),
        ),
        (
            "erfcx",
            "special_erfcx",
            lambda xp, grad, input, result: _times(
                xp, grad, xp.subtract(_times(xp, result, input, 2.0), 2 / _ROOT_PI)
            ),
        ),
        (
            "ndtr",
            "special_ndtr",
            lambda xp, grad, input: _times(
                xp, grad, 1 / math.sqrt(2 * math.pi), xp.exp(_times(xp, xp.square(input), -0.5))
            ),
        ),
        (
            "ndtri",
            "special_ndtri",
            lambda xp, grad, result: _times(
                xp, grad, math.sqrt(2 * math.pi), xp.exp(_times(xp, xp.square(result), 0.5))
            ),
        ),
        (
            "log_ndtr",
            "special_log_ndtr",
            lambda xp, grad, input: _times(xp, grad, xp.special("log_ndtr_slope", input)),
        ),
        # Its own derivative: that of the quotient overflows far above 0.
        (
            "log_ndtr_slope",
            "special_log_ndtr_slope",
            lambda xp, grad, input, result: _times(
                xp, xp.negative(grad), _log_ndtr_bend(xp, input, result)
            ),
        ),
        ("i0", "i0", lambda xp, grad, input: _times(xp, grad, xp.special("i1", input))),
        (
            "i0e",
            "special_i0e",
            lambda xp, grad, input, result: _times(
                xp, grad, xp.subtract(xp.special("i1e", input), _times(xp, result, xp.sign(input)))
            ),
        ),
        ("i1", "special_i1", _i1_grad),
        ("i1e", "special_i1e", _i1e_grad),
    )
}

_polygamma = operator(
    "polygamma",
    lambda xp, input, *, n: xp.special("polygamma", n, input),
    input=lambda xp, grad, input, n: _times(xp, grad, xp.special("polygamma", n + 1, input)),
)
_zeta = operator(
    "special_zeta",
    lambda xp, input, other: xp.special("zeta", input, other),
    input=not_implemented("special_zeta: input"),
    other=lambda xp, grad, input, other, other_shape: xp.sum_to(
        _times(xp, grad, xp.negative(input), xp.special("zeta", xp.add(input, 1.0), other)),
        other_shape,
    ),
)


def _igamma_grad(xp: Any, grad: Any, input: Any, other: Any) -> Any:
    logarithm = xp.subtract(
        xp.multiply(xp.subtract(input, 1.0), xp.log(other)),
        xp.add(other, xp.special("gammaln", input)),
    )
    return xp.multiply(grad, xp.exp(logarithm))


def _at_origin(xp: Any, name: str, at_origin: float, input: Any, other: Any) -> Any:
    """SciPy's function of that name; of no shape (NaN) at 0 what PyTorch says."""
    no_shape = xp.logical_and(xp.isnan(input), xp.equal(other, 0))
    return xp.where(no_shape, at_origin, xp.special(name, input, other))


_igamma = operator(
    "igamma",
    lambda xp, input, other: _at_origin(xp, "gammainc", 0.0, input, other),
    input=not_implemented("igamma: input"),
    other=lambda xp, grad, input, other, other_shape: xp.sum_to(
        _igamma_grad(xp, grad, input, other), other_shape
    ),
)
_igammac = operator(
    "igammac",
    lambda xp, input, other: _at_origin(xp, "gammaincc", 1.0, input, other),
    input=not_implemented("igammac: input"),
    other=lambda xp, grad, input, other, other_shape: xp.sum_to(
        xp.negative(_igamma_grad(xp, grad, input, other)), other_shape
    ),
)


#: ``sample`` is a draw: the quantile of a uniform number, which depends on the shape.
standard_gamma = operator(
    "standard_gamma",
    lambda xp, shape, sample: xp.copy(sample),
    shape=lambda xp, grad, shape, sample: xp.multiply(
        grad, xp.special("gamma_slope", shape, sample)
    ),
)


def _dirichlet_grad(xp: Any, grad: Any, concentration: Any, sample: Any) -> Any:
    """One share grows and the others, in their proportions, make room for it."""
    others = xp.subtract(xp.sum(concentration, -1, True), concentration)
    slope = xp.special("dirichlet_slope", concentration, others, sample)
    mean = xp.sum(xp.multiply(sample, grad), -1, True)
    return xp.multiply(slope, xp.subtract(grad, mean))


#: ``sample`` is a draw of the Dirichlet distribution.
standard_dirichlet = operator(
    "standard_dirichlet",
    lambda xp, concentration, sample: xp.copy(sample),
    concentration=_dirichlet_grad,
)


def special(name: str, *values: Any) -> Tensor:
    """SciPy's function ``name`` of Tensors, for formulas.

    Raises:
        NotImplementedError: it has no derivative.
    """
    if name == "polygamma":
        return call(_polygamma, values[1], n=values[0])
    if name == "zeta":
        return call(_zeta, *values)
    if name not in _OPERATORS:
        raise NotImplementedError(f"the derivative of {name!r} is not implemented")
    return call(_OPERATORS[name], *values)


# -------------------------------------------------------------------------------------- functions


def _unary(name: str, scipy: str, doc: str) -> Callable[[Any], Tensor]:
    def function(input: Any) -> Tensor:
        tensor = floating(input)
        refuse_complex(name, tensor)
        return call(_OPERATORS[scipy], tensor)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc + "\n\n    Raises:\n        ImportError: SciPy is not installed.\n    "
    return function


lgamma = _unary("lgamma", "gammaln", "The logarithm of the absolute value of the gamma function.")
digamma = _unary("digamma", "digamma", "The derivative of ``lgamma``.")
erfinv = _unary("erfinv", "erfinv", "What ``erf`` maps to ``input``.")
erfcx = _unary("erfcx", "erfcx", "``exp(input ** 2) * erfc(input)``, which does not overflow.")
ndtr = _unary("ndtr", "ndtr", "The probability that a standard normal number is below ``input``.")
ndtri = _unary("ndtri", "ndtri", "What ``ndtr`` maps to ``input``.")
log_ndtr = _unary("log_ndtr", "log_ndtr", "The logarithm of ``ndtr``, exact far below 0, too.")
i0 = _unary("i0", "i0", "The modified Bessel function of the first kind, of order 0.")
i0e = _unary("i0e", "i0e", "``exp(-abs(input)) * i0(input)``.")
i1 = _unary("i1", "i1", "The modified Bessel function of the first kind, of order 1.")
i1e = _unary("i1e", "i1e", "``exp(-abs(input)) * i1(input)``.")


def polygamma(n: int, input: Any) -> Tensor:
    """The ``n``-th derivative of ``digamma``.

    Raises:
        RuntimeError: ``n`` is negative.
        ImportError: SciPy is not installed.
    """
    if isinstance(n, Tensor):  # as a method the tensor comes first
        n, input = input, n
    if n < 0:
        raise RuntimeError("polygamma(n, x) does not support negative n.")
    tensor = floating(input)
    refuse_complex("polygamma", tensor)
    return digamma(tensor) if n == 0 else call(_polygamma, tensor, n=n)


def mvlgamma(input: Any, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of ``p`` dimensions.

    Raises:
        RuntimeError: ``p`` is less than 1.
        ImportError: SciPy is not installed.
    """
    if p < 1:
        raise RuntimeError("p has to be greater than or equal to 1")
    tensor = floating(input)
    total: Any = p * (p - 1) / 4 * math.log(math.pi)
    for at in range(p):
        total = add(lgamma(add(tensor, -at / 2)), total)
    return total  # type: ignore[no-any-return]


def zeta(input: Any, other: Any) -> Tensor:
    """Hurwitz's zeta function: the sum of ``(k + other) ** -input`` over ``k`` from 0.

    Only ``other`` has a derivative.

    Raises:
        ImportError: SciPy is not installed.
    """
    return call(_zeta, *real_tensors("zeta", input, other, float_result=True))


def igamma(input: Any, other: Any) -> Tensor:
    """The regularised lower incomplete gamma function of shape ``input`` up to ``other``.

    Only ``other`` has a derivative.

    Raises:
        ImportError: SciPy is not installed.
    """
    require_tensors("igamma", input=input, other=other)
    return call(_igamma, *real_tensors("igamma", input, other, float_result=True))


def igammac(input: Any, other: Any) -> Tensor:
    """The regularised upper incomplete gamma function; see ``igamma``."""
    require_tensors("igammac", input=input, other=other)
    return call(_igammac, *real_tensors("igammac", input, other, float_result=True))


def _entr_values(xp: Any, input: Any) -> Any:
    limited = xp.where(xp.less(input, 0), -math.inf, input)
    inside = xp.multiply(xp.negative(input), xp.log(input))
    return xp.where(xp.greater(input, 0), inside, limited)


_entr = operator(
    "special_entr",
    _entr_values,
    input=lambda xp, grad, input: xp.multiply(grad, xp.subtract(-1.0, xp.log(input))),
)


def entr(input: Any) -> Tensor:
    """``-input * log(input)``, 0 at 0, and minus infinity below, where the gradient is NaN."""
    tensor = floating(input)
    refuse_complex("entr", tensor)
    return call(_entr, tensor)


def _xlog1py_values(xp: Any, a: Any, b: Any) -> Any:
    nothing = xp.logical_and(xp.equal(a, 0), xp.logical_not(xp.isnan(b)))
    return xp.where(nothing, 0.0, xp.multiply(a, xp.log1p(b)))


_xlog1py = operator(
    "special_xlog1py",
    _xlog1py_values,
    a=lambda xp, grad, a, b, a_shape: xp.sum_to(
        xp.where(
            xp.logical_and(xp.equal(a, 0), xp.less_equal(b, -1)), 0.0, _xlog1py_values(xp, grad, b)
        ),
        a_shape,
    ),
    b=lambda xp, grad, a, b, b_shape: xp.sum_to(
        xp.multiply(grad, xp.divide(a, xp.add(b, 1))), b_shape
    ),
)


def xlog1py(input: Any, other: Any) -> Tensor:
    """``input * log1p(other)``, and 0 where ``input`` is 0 (NaN where ``other`` is NaN)."""
    return call(_xlog1py, *real_tensors("xlog1py", input, other, float_result=True))


def _sinc_values(xp: Any, input: Any) -> Any:
    origin = xp.equal(input, 0)
    angle = xp.multiply(xp.where(origin, 1.0, input), math.pi)
    return xp.where(origin, 1.0, xp.divide(xp.sin(angle), angle))


def _sinc_slope(xp: Any, grad: Any, input: Any) -> Any:
    """``pi * (cos(a) / a - sin(a) / a ** 2)`` at the angle ``a``; near 0 its Taylor series, as the
    difference would cancel."""
    angle = xp.multiply(input, math.pi)
    near = xp.less(xp.absolute(angle), 0.5)
    safe = xp.where(near, 1.0, angle)
    far = xp.divide(xp.subtract(xp.cos(safe), xp.divide(xp.sin(safe), safe)), safe)
    square = xp.multiply(angle, angle)
    series: Any = 0.0
    for factor in (1 / 3991680, -1 / 45360, 1 / 840, -1 / 30, 1 / 3):
        series = xp.add(xp.multiply(square, series), factor)
    slope = xp.where(near, xp.multiply(xp.negative(angle), series), far)
    return xp.multiply(grad, xp.multiply(slope, math.pi))


_sinc = operator("sinc", _sinc_values, input=_sinc_slope)


def sinc(input: Any) -> Tensor:
    """``sin(pi * input) / (pi * input)``, and 1 at 0."""
    return call(_sinc, floating(input))


# ------------------------------------------------------------------------------ without derivative


def _plain(name: str, scipy: str, doc: str) -> Callable[[Any], Tensor]:
    def function(input: Any) -> Tensor:
        tensor = floating(input)
        refuse_complex(name, tensor)
        return unrecorded(lambda xp, x: xp.special(scipy, x), tensor)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc + "\n\n    Raises:\n        ImportError: SciPy is not installed.\n    "
    return function


#: The functions of ``mg.special`` that have no derivative.
PLAIN: dict[str, Callable[..., Tensor]] = {
    **{
        name: _plain(name, scipy, f"{doc}, without a derivative.")
        for name, scipy, doc in (
            ("airy_ai", "airy", "Airy's function Ai"),
            ("bessel_j0", "j0", "Bessel's function of the first kind, of order 0"),
            ("bessel_j1", "j1", "Bessel's function of the first kind, of order 1"),
            ("bessel_y0", "y0", "Bessel's function of the second kind, of order 0"),
            ("bessel_y1", "y1", "Bessel's function of the second kind, of order 1"),
            ("modified_bessel_i0", "i0", "The modified function of the first kind, of order 0"),
            ("modified_bessel_i1", "i1", "The modified function of the first kind, of order 1"),
            ("modified_bessel_k0", "k0", "The modified function of the second kind, of order 0"),
            ("modified_bessel_k1", "k1", "The modified function of the second kind, of order 1"),
            ("scaled_modified_bessel_k0", "k0e", "``exp(input) * modified_bessel_k0(input)``"),
            ("scaled_modified_bessel_k1", "k1e", "``exp(input) * modified_bessel_k1(input)``"),
        )
    },
}
