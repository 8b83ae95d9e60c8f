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
    #: Of which arguments alone: with NaN or infinity (or numbers near it), complex ones, nearly
    #: singular matrices, rows of equal elements, of float16 or uint8, an empty list of dimensions,
    #: no elements.
    only_of: Literal[
        "", "infinite", "huge", "complex", "singular", "equal", "half", "bytes", "no dims", "empty"
    ] = ""


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
        r"|matrix_power|eigvals|eigvalsh|ldl_factor|ldl_factor_ex|lstsq|householder_product|matrix_exp)",
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
        r"linalg\.vector_norm|dist|nn\.functional\.(normalize|pairwise_distance)",
        r"^nan in place of",
        "a norm of order NaN: of no elements PyTorch takes it for 0, of a number for its size",
    ),
    Left(
        r"arcsin|arccos|asin|acos|arctanh|atanh|arccosh|acosh|arcsinh|asinh|tan|tanh|reciprocal|sqrt"
        r"|add|sub|subtract|rsub|diff|mul|multiply|div|divide|true_divide|exp|log|sigmoid|pow|square"
        r"|cumulative_trapezoid|trapezoid|trapz|angle|rsqrt|gradient|nn\.functional\.tanhshrink|float_power",
        r"(nan|inf) in place of|in place of -?(nan|inf)",
        "of infinite complex numbers and of 0 below a line: which part becomes NaN depends on how "
        "products are taken",
        only_of="complex",
    ),
    Left(r"mode", r"in place of", "NaN has no place in the order of elements", only_of="infinite"),
    Left(r"median|nanmedian", r"^dtype", "of no integers there is no NaN: it is a float here"),
    Left(
        r"nn\.functional\.cross_entropy",
        r"^0\.0 in place of nan$",
        "without classes PyTorch's mean of no losses is NaN",
    ),
    Left(
        r"linalg\.(cond|svdvals)|pinverse|(linalg\.)?(pinv|inv|inv_ex|inverse|solve|solve_ex|lstsq|det|slogdet"
        r"|logdet|matrix_power|tensorinv|lu|lu_factor|lu_factor_ex|lu_solve|solve_triangular|cholesky_inverse)"
        r"|triangular_solve|cholesky_solve|cholesky_inverse",
        _VALUE,
        "the least singular value of a nearly singular matrix, and its vectors, are rounding",
        only_of="singular",
    ),
    Left(
        r"linalg\.lstsq",
        r"^0\.0 in place of|in place of 0\.0$",
        "with a large `rcond`: PyTorch's gelsy estimates the rank without singular values",
    ),
    Left(
        r"topk|kthvalue",
        r"^int64.* in place of int64",
        "which of equal elements is meant is not defined",
    ),
    Left(
        r"nn\.functional\.soft_margin_loss",
        r"in place of (inf|nan)$",
        "PyTorch's exp overflows",
    ),
    Left(
        r"nn\.functional\.soft_margin_loss",
        _VALUE,
        "PyTorch negates bytes as bytes",
        only_of="bytes",
    ),
    Left(
        r"special\.\w+_polynomial_\w+",
        _VALUE,
        "of a degree of 255 PyTorch's recurrence in float32 has few digits",
        only_of="bytes",
    ),
    Left(
        r"(nn\.functional\.)?cosine_similarity",
        r"^(0\.0|-?\d\.\d+e-0[5-9]) in place of (0\.0|-?\d\.\d+e-0[5-9])$",
        "the derivative along a vector is 0 or rounding",
    ),
    Left(
        r"(linalg\.)?(ldl_factor|ldl_factor_ex|lu_factor|lu_factor_ex|lu)",
        r"^int32.* in place of int32",
        "what LAPACK makes of NaN and infinity differs from library to library",
        only_of="infinite",
    ),
    Left(
        r"quantile",
        r"^[01]\.0 in place of [01]\.0$",
        "which of several NaNs gets the gradient is not defined",
        only_of="infinite",
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
        r"in place of nan$|^(nan|[01]\.0) in place of [01]\.0$",
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
        r"in place of (nan|-?inf|-?0\.0)$",
        "PyTorch divides products that have over- or underflowed in the gradient",
    ),
    Left(
        r"logcumsumexp",
        _VALUE,
        "PyTorch takes the gradient in logarithms, to which a huge number leaves no digits",
        only_of="huge",
    ),
    Left(
        r"nn\.functional\.(instance|group|layer|batch)_norm",
        _VALUE,
        "how far equal elements lie from their mean is rounding",
        only_of="equal",
    ),
    Left(
        r"nn\.functional\.(instance|group|layer|batch)_norm",
        r"^-?\d\.\d+e-0[5-9] in place of -?\d\.\d+e-0[5-9]$",
        "the gradients of a group's elements add up to 0 or rounding",
    ),
    Left(
        r"nn\.functional\.(instance|group|layer|batch)_norm|(nn\.functional\.)?cosine_similarity",
        _VALUE,
        "float16 is computed in float32",
        only_of="half",
    ),
    Left(
        r"nn\.functional\.(instance|group|layer|batch)_norm",
        r"in place of -?(nan|inf)$|^-?(nan|inf) in place of",
        "whether squares overflow depends on how they are summed",
        only_of="huge",
    ),
    Left(
        r"special\.\w+_polynomial_\w+",
        r"^(nan|-?inf) in place of",
        "of NaN PyTorch gives a number, and of infinite terms NaN",
        only_of="huge",
    ),
    Left(
        r"special\.\w+_polynomial_\w+",
        r"in place of (nan|-?inf)$",
        "PyTorch's recurrence overflows, in float32 long before SciPy's in float64",
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
        r"(linalg\.)?matrix_exp",
        _VALUE,
        "which digits the powers of a huge matrix leave depends on how it is scaled",
        only_of="huge",
    ),
    Left(
        r"linspace|logspace",
        r"^nan in place of",
        "between infinite ends nothing is evenly spaced",
    ),
    Left(
        r"renorm",
        r"in place of -?0\.0$",
        "the norm is one of float64; in PyTorch only that of the gradient, and powers overflow",
    ),
    Left(
        r"vander",
        r"in place of None$",
        "the power 0 has the gradient 0; in PyTorch a column of ones has none",
    ),
    Left(
        r"addc(mul|div)",
        r"^nan in place of -?0\.0$",
        "a product that is added to nothing has a gradient of 0, and 0 times NaN is NaN",
        only_of="infinite",
    ),
    Left(
        r"vander",
        r"in place of nan$",
        "a power of an infinite complex number has NaN where the definition of products has it",
        only_of="infinite",
    ),
    Left(
        r"histogramdd",
        r"(0\.0 in place of 1|1\.0 in place of 0)\.0$",
        "between ends that are equal but for rounding, the element stands in another of the bins",
        only_of="huge",
    ),
    Left(
        r"logspace",
        r"in place of nan$",
        "a complex power that overflows keeps an imaginary part of 0",
        only_of="huge",
    ),
    Left(
        r"(linalg\.)?pinv(erse)?",
        r"^nan in place of -?inf$",
        "the squares of an inverse overflow in the gradient, in another order",
    ),
    Left(
        r"igammac?",
        r"(nan|inf) in place of|in place of -?(nan|inf)",
        "where both arguments are infinite SciPy has no limit",
        only_of="infinite",
    ),
    Left(
        r"nn\.functional\.softplus",
        r"in place of inf$",
        "PyTorch's exp overflows, where the threshold is too high",
    ),
    Left(
        r"polar",
        _VALUE,
        "the gradient of an infinite absolute value is finite; PyTorch divides infinities",
        only_of="infinite",
    ),
    Left(
        r"kaiser_window",
        r"in place of (nan|0\.0)$",
        "PyTorch's Bessel function of a large `beta` overflows in float32",
    ),
    Left(
        r"std(_mean)?",
        r"in place of \S+$",
        "the deviation of equal elements is 0 or rounding, and its gradient with it",
        only_of="equal",
    ),
    Left(
        r"renorm",
        r"^nan in place of 1\.0$",
        "a slice with NaN stays as it is; its gradient is NaN, in PyTorch 1",
        only_of="infinite",
    ),
    Left(
        r"nn\.functional\.(softplus|celu)",
        _VALUE,
        "of a huge or infinite `alpha` or `beta` PyTorch's gradient takes the reciprocal",
        only_of="huge",
    ),
    Left(
        r"var_mean|std_mean|std|var",
        _VALUE,
        "of an empty list of dimensions PyTorch's gradient counts one element",
        only_of="no dims",
    ),
    Left(
        r"float_power|pow",
        r"^inf in place of -inf$|^0\.0 in place of nan$",
        "PyTorch takes a power of -1 / 2 for the reciprocal of a square root: of -0 it is minus "
        "infinity, of minus infinity NaN",
    ),
    Left(
        r"(special\.)?logit",
        _VALUE,
        "an `eps` of NaN limits nothing; in PyTorch that depends on the vector register",
        only_of="infinite",
    ),
    Left(
        r"special\.gammaincc?",
        r"(nan|inf) in place of|in place of -?(nan|inf)",
        "where both arguments are infinite SciPy has no limit",
        only_of="infinite",
    ),
    Left(
        r"nanmean",
        r"^0\.0 in place of nan$",
        "of the mean of no numbers the gradient is 0 times infinity in PyTorch",
    ),
    Left(
        r"(nn\.functional\.)?(pixel_shuffle|pixel_unshuffle)",
        r"^shape ",
        "of an empty image PyTorch gives the image as it is",
        only_of="empty",
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
    numbers = [value for value in given if isinstance(value, float)]
    infinite = not all(np.isfinite(value).all() for value in (*arrays, *numbers))
    met = {
        "": True,
        "infinite": infinite,
        "huge": infinite or any((np.abs(value) > 1e20).any() for value in (*arrays, *numbers)),
        "complex": any(array.dtype.kind == "c" for array in arrays),
        "singular": any(map(_is_singular, arrays)),
        "equal": any(array.ndim and (array == array[..., :1]).all(-1).any() for array in arrays),
        "half": any(array.dtype == np.float16 for array in arrays),
        "bytes": any(array.dtype == np.uint8 for array in arrays),
        "empty": any(array.size == 0 for array in arrays),
        "no dims": any(isinstance(value, list | tuple) and not value for value in given),
    }
    for left in LEFT:
        fits = re.fullmatch(left.operator, name) and re.search(left.difference, difference)
        if fits and met[left.only_of]:
            return left.reason
    return ""


def _is_singular(array: Any) -> bool:
    """Whether ``array`` holds a matrix whose inverse has a derivative of at most three digits."""
    if array.ndim < 2 or 0 in array.shape or array.dtype == np.float16:
        return False
    if not np.isfinite(array).all():
        return False
    eps = np.finfo(array.dtype if array.dtype.kind in "fc" else np.float32).eps
    return not (eps * np.linalg.cond(array) ** 2 <= 1e-3).all()
