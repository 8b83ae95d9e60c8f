"""``mg.distributions``: random numbers with densities, by PyTorch's names.

Not here: the generators of random numbers (``ops.generators``). Begin with ``distribution``.
"""

from __future__ import annotations

# Distributions hand out Tensors, which must have their methods.
import mpgrad.tensor_methods  # noqa: F401  isort: skip

from mpgrad.base.missing_names import missing_from as _missing_from
from mpgrad.distributions import constraints, transforms
from mpgrad.distributions.compound import (
    Independent,
    MixtureSameFamily,
    TransformedDistribution,
)
from mpgrad.distributions.constraint_registry import biject_to, transform_to
from mpgrad.distributions.continuous import (
    Cauchy,
    Exponential,
    Gumbel,
    HalfNormal,
    Laplace,
    LogNormal,
    Normal,
    Uniform,
)
from mpgrad.distributions.counts import Multinomial, NegativeBinomial
from mpgrad.distributions.discrete import (
    Bernoulli,
    Binomial,
    Categorical,
    Geometric,
    OneHotCategorical,
    OneHotCategoricalStraightThrough,
    Poisson,
)
from mpgrad.distributions.distribution import Distribution
from mpgrad.distributions.divergence import kl_divergence, register_kl
from mpgrad.distributions.gammas import Beta, Chi2, Dirichlet, Gamma, StudentT
from mpgrad.distributions.multivariate import MultivariateNormal
from mpgrad.distributions.positive import (
    FisherSnedecor,
    GeneralizedPareto,
    HalfCauchy,
    InverseGamma,
    Kumaraswamy,
    Pareto,
    Weibull,
)
from mpgrad.distributions.random_matrices import LKJCholesky, LowRankMultivariateNormal, Wishart
from mpgrad.distributions.relaxed import (
    ContinuousBernoulli,
    LogisticNormal,
    RelaxedBernoulli,
    RelaxedOneHotCategorical,
    VonMises,
)
from mpgrad.distributions.transforms import (
    AbsTransform,
    AffineTransform,
    CatTransform,
    ComposeTransform,
    CorrCholeskyTransform,
    CumulativeDistributionTransform,
    ExpTransform,
    IndependentTransform,
    LowerCholeskyTransform,
    PositiveDefiniteTransform,
    PowerTransform,
    ReshapeTransform,
    SigmoidTransform,
    SoftmaxTransform,
    SoftplusTransform,
    StackTransform,
    StickBreakingTransform,
    TanhTransform,
    Transform,
    identity_transform,
)

__all__ = [
    "AbsTransform",
    "AffineTransform",
    "Bernoulli",
    "Beta",
    "Binomial",
    "CatTransform",
    "Categorical",
    "Cauchy",
    "Chi2",
    "ComposeTransform",
    "ContinuousBernoulli",
    "CorrCholeskyTransform",
    "CumulativeDistributionTransform",
    "Dirichlet",
    "Distribution",
    "ExpTransform",
    "Exponential",
    "FisherSnedecor",
    "Gamma",
    "GeneralizedPareto",
    "Geometric",
    "Gumbel",
    "HalfCauchy",
    "HalfNormal",
    "Independent",
    "IndependentTransform",
    "InverseGamma",
    "Kumaraswamy",
    "LKJCholesky",
    "Laplace",
    "LogNormal",
    "LogisticNormal",
    "LowRankMultivariateNormal",
    "LowerCholeskyTransform",
    "MixtureSameFamily",
    "Multinomial",
    "MultivariateNormal",
    "NegativeBinomial",
    "Normal",
    "OneHotCategorical",
    "OneHotCategoricalStraightThrough",
    "Pareto",
    "Poisson",
    "PositiveDefiniteTransform",
    "PowerTransform",
    "RelaxedBernoulli",
    "RelaxedOneHotCategorical",
    "ReshapeTransform",
    "SigmoidTransform",
    "SoftmaxTransform",
    "SoftplusTransform",
    "StackTransform",
    "StickBreakingTransform",
    "StudentT",
    "TanhTransform",
    "Transform",
    "TransformedDistribution",
    "Uniform",
    "VonMises",
    "Weibull",
    "Wishart",
    "biject_to",
    "constraints",
    "identity_transform",
    "kl_divergence",
    "register_kl",
    "transform_to",
    "transforms",
]

__getattr__ = _missing_from(__name__)
