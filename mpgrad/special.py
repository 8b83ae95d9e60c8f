"""``mg.special``: PyTorch's names for special functions."""

from __future__ import annotations

# Functions return Tensors, which must have their methods.
import mpgrad.tensor_methods  # noqa: F401  isort: skip

from mpgrad.base.missing_names import missing_from as _missing_from
from mpgrad.ops.calling.out_argument import publish as _publish
from mpgrad.ops.elementwise.piecewise import erfc, logit
from mpgrad.ops.elementwise.rounding import round  # noqa: A004
from mpgrad.ops.elementwise.special import (
    PLAIN,
    digamma,
    entr,
    erfcx,
    erfinv,
    i0,
    i0e,
    i1,
    i1e,
    log_ndtr,
    ndtr,
    ndtri,
    polygamma,
    sinc,
    xlog1py,
    zeta,
)
from mpgrad.ops.elementwise.special import igamma as gammainc
from mpgrad.ops.elementwise.special import igammac as gammaincc
from mpgrad.ops.elementwise.special import lgamma as gammaln
from mpgrad.ops.elementwise.special import mvlgamma as multigammaln
from mpgrad.ops.elementwise.special_polynomials import POLYNOMIALS
from mpgrad.ops.elementwise.transcendental import erf, exp2, expm1, log1p, xlogy
from mpgrad.ops.elementwise.transcendental import sigmoid as expit
from mpgrad.ops.neural.activation import log_softmax, softmax
from mpgrad.ops.reductions.reduction import logsumexp

psi = digamma
globals().update(PLAIN | POLYNOMIALS)

__all__ = [
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfcx",
    "erfinv",
    "exp2",
    "expit",
    "expm1",
    "gammainc",
    "gammaincc",
    "gammaln",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "log1p",
    "log_ndtr",
    "log_softmax",
    "logit",
    "logsumexp",
    "multigammaln",
    "ndtr",
    "ndtri",
    "polygamma",
    "psi",
    "round",
    "sinc",
    "softmax",
    "xlog1py",
    "xlogy",
    "zeta",
    *PLAIN,
    *POLYNOMIALS,
]

_publish(globals(), __all__, __all__)

__getattr__ = _missing_from(__name__)
