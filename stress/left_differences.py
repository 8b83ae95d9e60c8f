"""Where mpgrad and PyTorch differ on purpose, or by nobody's fault: what a run does not count."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

import numpy as np


class Left(NamedTuple):
    """A difference that stays."""

    #: Of the operator's whole name, a regular expression.
    operator: str
    #: What the difference looks like, a regular expression.
    difference: str
    reason: str
    #: Of which arguments alone: with NaN or infinity, complex ones, nearly singular matrices, of
    #: float16 or uint8, an empty list of dimensions.
    only_of: Literal["", "infinite", "complex", "singular", "half", "bytes", "no dims"] = ""


#: One value in place of another: shapes and dtypes are the same.
_VALUE = r"^(?!shape|dtype|None)\S+ in place of \S+(?:; \S+ in place of \S+)?$"

_NOT_FINITE = r"^(nan|-?inf) in place of (nan|-?inf)(; (nan|-?inf) in place of (nan|-?inf))?$"

LEFT = (
    Left(
        r"(linalg\.)?(svd|eigh?|eigvals|qr|geqrf)",
        _VALUE,
        "signs and phases of vectors, and the order of complex eigenvalues, are LAPACK's choice",
    ),
    Left(
        r"(linalg\.)?(lu|lu_factor|lu_factor_ex|qr|(slog|log)?det|solve_triangular|triangular_solve"
        r"|cholesky_inverse|cholesky_solve|lu_solve|inv|inv_ex|inverse|solve|solve_ex|tensorinv|tensorsolve|cond"
        r"|matrix_power|eigvals|eigvalsh|ldl_factor|lstsq|householder_product|matrix_exp)",
        _VALUE,
        "what LAPACK makes of NaN and infinity differs from library to library",
        only_of="infinite",
    ),
    Left(
        r"unique_consecutive",
        r"^shape .* in place of \(\d*,\)$|^int64",
        "PyTorch takes a second positional argument for `return_counts`, though it is "
        "`return_inverse`",
    ),
    Left(
        r"special\.(airy_ai|(modified_|scaled_modified_)?bessel_[jyik][01]|spherical_bessel_j0)",
        _VALUE,
        "PyTorch's approximation has fewer digits than SciPy's",
    ),
    Left(
        r"(special\.)?(polygamma|zeta)",
        r"in place of (nan|-?inf)$",
        "at infinity, and where a factor overflows, PyTorch gives NaN for a limit that SciPy knows",
    ),
    Left(
        r"(special\.)?(digamma|psi|polygamma)",
        _VALUE,
        "PyTorch's trigamma, the gradient of digamma, has fewer digits near its poles",
    ),
    Left(
        r"var_mean|std_mean|std|var",
        r"^-?(inf|nan) in place of|in place of (nan|-?inf)$",
        "PyTorch sums in double precision, one element after another: squares that overflow in "
        "float32 do not there, and infinity becomes NaN; its gradient "
        "over an empty list of dimensions divides by 0",
    ),
    Left(
        r"searchsorted|bucketize",
        r"in place of",
        "places in a sequence that is not in order are not defined",
    ),
    Left(
        r"special\.i1e?",
        r"^nan in place of 0\.5$",
        "PyTorch's gradient at NaN is that at 0",
    ),
    Left(
        r"nn\.functional\.hardsigmoid",
        _VALUE,
        "PyTorch's gradient rounds 1 / 6 to float32 for float64, too",
    ),
    Left(
        r"arctan2|atan2",
        _VALUE,
        "PyTorch squares bytes as bytes in the gradient of the other operand",
    ),
    Left(
        r"(special\.)?sinc",
        _VALUE,
        "near 0 PyTorch's gradient is a difference that cancels",
    ),
    Left(
        r"ldexp",
        _VALUE,
        "PyTorch's gradient takes powers of 2 as whole numbers: 0 below 1",
    ),
    Left(
        r"linalg\.vector_norm",
        r"^nan in place of",
        "a norm of order NaN: of no elements PyTorch takes it for 0, of a number for its size",
    ),
    Left(
        r"arcsin|arccos|asin|acos|arctanh|atanh|arccosh|acosh|arcsinh|asinh|tan|tanh|reciprocal|sqrt"
        r"|add|sub|subtract|rsub|mul|multiply|div|divide|true_divide|exp|log|sigmoid|pow|square"
        r"|cumulative_trapezoid|trapezoid|trapz|angle|rsqrt",
        r"(nan|inf) in place of|in place of -?(nan|inf)",
        "of infinite complex numbers and of 0 below a line: which part becomes NaN depends on how "
        "products are taken",
        only_of="complex",
    ),
    Left(r"mode", _VALUE, "NaN has no place in the order of elements", only_of="infinite"),
    Left(r"median|nanmedian", r"^dtype", "of no integers there is no NaN: it is a float here"),
    Left(
        r"nn\.functional\.cross_entropy",
        r"^0\.0 in place of nan$",
        "without classes PyTorch's mean of no losses is NaN",
    ),
    Left(
        r"linalg\.cond|pinverse|(linalg\.)?(pinv|inv|inv_ex|inverse|solve|solve_ex|lstsq|det|slogdet"
        r"|logdet|matrix_power|tensorinv|lu|lu_factor|lu_factor_ex|lu_solve|solve_triangular|cholesky_inverse)"
        r"|triangular_solve|cholesky_solve|cholesky_inverse",
        _VALUE,
        "the least singular value of a nearly singular matrix is rounding",
        only_of="singular",
    ),
    Left(
        r"topk|kthvalue",
        r"^int64.* in place of int64",
        "which of equal elements is meant is not defined",
    ),
    Left(
        r"nn\.functional\.soft_margin_loss",
        r"in place of inf$",
        "PyTorch's exp overflows",
    ),
    Left(
        r"norm|dist|cdist|(nn\.functional\.)?(normalize|pairwise_distance|lp_pool[123]d)|linalg\.\w*norm",
        r"in place of -?(nan|inf|0\.0)$",
        "sums of powers of half precision are taken in float32 here, and overflow later",
    ),
    Left(
        r"nn\.functional\.poisson_nll_loss",
        r"in place of nan$",
        "PyTorch's gradient multiplies the logarithm of a negative count, NaN, by 0",
    ),
    Left(
        r"nn\.functional\.(hardswish|hardtanh|relu6|hardshrink|softshrink|celu|elu|selu)|(special\.)?logit",
        r"^(nan|[01]\.0) in place of (nan|[01]\.0)$",
        "PyTorch's gradient at NaN depends on whether the element lies in a vector register",
        only_of="infinite",
    ),
    Left(
        r"fft\.\w+",
        r"(nan|inf) in place of|in place of -?(nan|inf)",
        "how far NaN and infinity spread depends on the steps of a transform",
        only_of="infinite",
    ),
    Left(
        r"(linalg\.)?matrix_power|linalg\.multi_dot|cov|corrcoef|\w+_window"
        r"|special\.\w+_polynomial_\w+",
        _NOT_FINITE,
        "sums of infinities: which one is left depends on the order of operations",
    ),
    Left(
        r"linalg\.(cholesky|inv|solve)_ex",
        r"nan in place of|in place of nan",
        "of a matrix that fails the result is NaN; PyTorch leaves what the algorithm has reached",
    ),
    Left(
        r"prod|cumprod|linalg\.vander",
        r"in place of (nan|-?inf)$",
        "PyTorch divides products that have overflowed in the gradient",
    ),
    Left(
        r"prod",
        r"^nan in place of -?0\.0$",
        "where two elements are 0, PyTorch's gradient of the product of all is 0, also beside NaN",
        only_of="infinite",
    ),
    Left(
        r"special\.log_ndtr",
        r"^inf in place of nan$",
        "at minus infinity the gradient is infinite; in PyTorch NaN",
    ),
    Left(
        r"nanquantile|quantile",
        r"^-?inf in place of nan$",
        "PyTorch interpolates between two infinities",
    ),
    Left(
        r"(linalg\.)?matrix_exp",
        _VALUE,
        "float16 is computed in float32",
        only_of="half",
    ),
    Left(
        r"nn\.functional\.softplus",
        r"in place of inf$",
        "PyTorch's exp overflows, where the threshold is too high",
    ),
    Left(
        r"var_mean|std_mean|std|var",
        _VALUE,
        "of an empty list of dimensions PyTorch's gradient counts one element",
        only_of="no dims",
    ),
    Left(
        r"special\.zeta",
        _VALUE,
        "PyTorch negates a byte in the gradient before it is a float",
        only_of="bytes",
    ),
)


def reason_for(name: str, difference: str, given: list[Any], arrays: list[Any]) -> str:
    """Why a difference is left; empty: it is not.

    Args:
        name: of the operator, below the library.
        difference: as ``difference`` of the operator database says it.
        given: the arguments.
        arrays: all that are among them.
    """
    infinite = not all(np.isfinite(array).all() for array in arrays)
    met = {
        "": True,
        "infinite": infinite,
        "complex": any(array.dtype.kind == "c" for array in arrays),
        "singular": any(map(_is_singular, arrays)),
        "half": any(array.dtype == np.float16 for array in arrays),
        "bytes": any(array.dtype == np.uint8 for array in arrays),
        "no dims": any(isinstance(value, list | tuple) and not value for value in given),
    }
    for left in LEFT:
        fits = re.fullmatch(left.operator, name) and re.search(left.difference, difference)
        if fits and met[left.only_of]:
            return left.reason
    return ""


def _is_singular(array: Any) -> bool:
    """Whether ``array`` holds a matrix of which three digits are lost."""
    if array.ndim < 2 or 0 in array.shape or array.dtype == np.float16:
        return False
    if not np.isfinite(array).all():
        return False
    return bool((np.linalg.cond(array) > 1e3).any())
