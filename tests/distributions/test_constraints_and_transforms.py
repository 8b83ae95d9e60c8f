"""Constraints, transforms, their registries and divergences, beside PyTorch's."""

from __future__ import annotations

import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.distributions import constraints, transforms
from mpgrad.distributions.parameters import broadcast_all
from tests.semantics.paired import compare, seen
from tests.torch_outcomes import Of

pytestmark = pytest.mark.torch

_RANDOM = np.random.default_rng(0)
_X = _RANDOM.standard_normal((4, 3))
_SQUARE = _RANDOM.standard_normal((2, 3, 3))


def compared(program: Any, of_torch: Of, rtol: float = 1e-7, atol: float = 1e-9) -> None:
    def told(lib: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return seen(program(lib), exact=False)

    for oracle, theirs in of_torch(told):
        compare(told(mg), theirs, rtol, atol, oracle)


# ---------------------------------------------------------------------- constraints


def values_of_all_kinds(lib: Any) -> list[Any]:
    x = lib.tensor(_X)
    square = lib.tensor(_SQUARE)
    definite = square @ square.mT + lib.eye(3, dtype=lib.float64)
    factor = lib.linalg.cholesky(definite)
    return [
        x,
        x.abs(),
        x.round(),
        x.abs().round(),
        (x > 0).double(),
        lib.softmax(x, -1),
        lib.sigmoid(x),
        x * float("nan"),
        lib.eye(3, dtype=lib.float64),
        square,
        definite,
        definite - 9 * lib.eye(3, dtype=lib.float64),
        factor,
        factor / factor.norm(dim=-1, keepdim=True),
        factor.mT,
    ]


NAMED = [
    "boolean",
    "one_hot",
    "nonnegative_integer",
    "positive_integer",
    "real",
    "real_vector",
    "positive",
    "nonnegative",
    "unit_interval",
    "simplex",
    "lower_triangular",
    "lower_cholesky",
    "corr_cholesky",
    "square",
    "symmetric",
    "positive_semidefinite",
    "positive_definite",
]
WITH_ARGUMENTS: dict[str, Any] = {
    "integer_interval": lambda c: c.integer_interval(0, 2),
    "greater_than": lambda c: c.greater_than(0.5),
    "greater_than_eq": lambda c: c.greater_than_eq(0.5),
    "less_than": lambda c: c.less_than(0.5),
    "interval": lambda c: c.interval(-0.5, 0.5),
    "half_open_interval": lambda c: c.half_open_interval(-1.0, 1.0),
    "multinomial": lambda c: c.multinomial(3),
    "independent": lambda c: c.independent(c.positive, 2),
    "cat": lambda c: c.cat([c.real, c.positive], -1, [1, 2]),
    "stack": lambda c: c.stack([c.real, c.positive, c.unit_interval], -1),
}


@pytest.mark.parametrize("name", [*NAMED, *WITH_ARGUMENTS])
def test_what_a_constraint_allows(name: str, of_torch: Of) -> None:
    def program(lib: Any) -> Any:
        known = lib.distributions.constraints
        constraint = WITH_ARGUMENTS[name](known) if name in WITH_ARGUMENTS else getattr(known, name)
        found: list[Any] = [constraint.is_discrete, constraint.event_dim]
        return found + [constraint.check(value) for value in values_of_all_kinds(lib)]

    compared(program, of_torch)


def test_a_dependent_constraint_is_known_to_objects_only() -> None:
    kind = mg.distributions.Uniform
    assert constraints.is_dependent(kind.support)
    assert kind.support.event_dim == 0
    with pytest.raises(ValueError, match="dependent constraint"):
        kind.support.check(mg.zeros(1))
    with pytest.raises(NotImplementedError, match="cannot be determined statically"):
        _ = constraints.dependent.event_dim
    assert repr(kind(0.0, 2.0).support) == "Interval(lower_bound=0.0, upper_bound=2.0)"
    assert not constraints.is_dependent(mg.distributions.Normal.support)


# ---------------------------------------------------------------------- transforms


def of_all_transforms(lib: Any) -> dict[str, Any]:
    t, n = lib.distributions.transforms, lib.distributions.Normal
    return {
        "exp": t.ExpTransform(),
        "power": t.PowerTransform(2.0),
        "sigmoid": t.SigmoidTransform(),
        "softplus": t.SoftplusTransform(),
        "tanh": t.TanhTransform(),
        "abs": t.AbsTransform(),
        "affine": t.AffineTransform(1.0, -2.0),
        "affine of vectors": t.AffineTransform(lib.tensor(_X[0]), 2.0, event_dim=1),
        "softmax": t.SoftmaxTransform(),
        "stick breaking": t.StickBreakingTransform(),
        "correlations": t.CorrCholeskyTransform(),
        "reshape": t.ReshapeTransform((3,), (1, 3)),
        "independent": t.IndependentTransform(t.ExpTransform(), 1),
        "several": t.ComposeTransform(
            [t.TanhTransform(), t.AffineTransform(0.0, 2.0), t.StickBreakingTransform()]
        ),
        "none": t.identity_transform,
        "inverse": t.ExpTransform().inv,
        "cumulative": t.CumulativeDistributionTransform(n(0.0, 2.0)),
        "cat": t.CatTransform([t.ExpTransform(), t.TanhTransform()], -1, [1, 2]),
        "stack": t.StackTransform([t.ExpTransform(), t.TanhTransform(), t.SigmoidTransform()], -1),
        "cat of rows": t.CatTransform([t.ExpTransform(), t.TanhTransform()], 0, [1, 3]),
    }


TRANSFORMS = list(of_all_transforms(mg))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_what_a_transform_gives(name: str, of_torch: Of) -> None:
    def program(lib: Any) -> Any:
        transform = of_all_transforms(lib)[name]
        x = lib.tensor(np.abs(_X) if name in ("power", "inverse") else _X).requires_grad_()
        y = transform(x)
        found = [y, transform.inv(y), tuple(transform.forward_shape(x.shape)), transform.bijective]
        found += [transform.domain.event_dim, transform.codomain.event_dim]
        found.append(tuple(transform.inverse_shape(y.shape)))
        if name not in ("abs", "softmax"):
            slope = transform.log_abs_det_jacobian(x, y)
            found += [slope, lib.autograd.grad(y.sum() + slope.sum(), x)]
        return [value.detach() if hasattr(value, "detach") else value for value in found]

    compared(program, of_torch)


@pytest.mark.parametrize("name", ["LowerCholeskyTransform", "PositiveDefiniteTransform"])
def test_transforms_of_matrices(name: str, of_torch: Of) -> None:
    def program(lib: Any) -> Any:
        transform = getattr(lib.distributions.transforms, name)()
        y = transform(lib.tensor(_SQUARE))
        return [y, transform.inv(y)]

    compared(program, of_torch)


def test_equal_transforms() -> None:
    once, again = of_all_transforms(mg), of_all_transforms(mg)
    for (name, one), (other_name, other) in product(once.items(), again.items()):
        if name not in ("cumulative", "independent", "cat", "stack", "cat of rows"):
            assert (one == other) == (name == other_name), (name, other_name)
    assert once["exp"].inv.inv is once["exp"]
    assert once["several"].inv.inv is once["several"]
    assert transforms.identity_transform == transforms.identity_transform.inv


def test_a_cache_goes_to_all_parts() -> None:
    whole = of_all_transforms(mg)["several"].with_cache(1)
    x = mg.tensor(_X * 20)
    assert whole.inv(whole(x)) is x


REGISTERED: dict[str, Any] = {
    "real": lambda c: c.real,
    "positive": lambda c: c.positive,
    "above": lambda c: c.greater_than(2.0),
    "below": lambda c: c.less_than(-1.0),
    "unit": lambda c: c.unit_interval,
    "between": lambda c: c.interval(-1.0, 3.0),
    "simplex": lambda c: c.simplex,
    "correlations": lambda c: c.corr_cholesky,
    "vectors": lambda c: c.independent(c.positive, 1),
    "parts": lambda c: c.cat([c.positive, c.unit_interval], -1, [1, 2]),
}


@pytest.mark.parametrize("name", REGISTERED)
def test_transforms_to_constraints(name: str, of_torch: Of) -> None:
    def program(lib: Any) -> Any:
        d = lib.distributions
        x = lib.tensor(_X)
        found: list[Any] = []
        for registry in (d.biject_to, d.transform_to):
            y = registry(REGISTERED[name](d.constraints))(x)
            found += [y, REGISTERED[name](d.constraints).check(y).all()]
        return found

    compared(program, of_torch)


def test_a_constraint_of_ones_own_is_registered() -> None:
    class Even(constraints.Constraint):
        pass

    with pytest.raises(NotImplementedError, match="Even"):
        mg.distributions.biject_to(Even())
    mg.distributions.biject_to.register(Even, lambda _: transforms.ExpTransform())
    assert isinstance(mg.distributions.biject_to(Even()), transforms.ExpTransform)
    with pytest.raises(TypeError, match="Constraint"):
        mg.distributions.transform_to.register(3, lambda _: transforms.ExpTransform())


# ---------------------------------------------------------------------- distributions


def of_numbers(lib: Any) -> dict[str, Any]:
    d = lib.distributions
    a, b = lib.tensor([0.7, 1.9], dtype=lib.float64), lib.tensor([1.3, 2.5], dtype=lib.float64)
    return {
        "Bernoulli": d.Bernoulli(a / 2),
        "Beta": d.Beta(a, b),
        "Binomial": d.Binomial(3, a / 2),
        "Cauchy": d.Cauchy(a, b),
        "ContinuousBernoulli": d.ContinuousBernoulli(a / 2),
        "Exponential": d.Exponential(a),
        "Gamma": d.Gamma(a, b),
        "Geometric": d.Geometric(a / 2),
        "Gumbel": d.Gumbel(a, b),
        "HalfNormal": d.HalfNormal(a),
        "Laplace": d.Laplace(a, b),
        "Normal": d.Normal(a, b),
        "Pareto": d.Pareto(a, b),
        "Poisson": d.Poisson(a),
        "Uniform": d.Uniform(a / 9, a / 2),
        "narrow": d.Uniform(a, a + b),
        "wide": d.Uniform(-a, a),
    }


PAIRS = list(product(of_numbers(mg), repeat=2))


@pytest.mark.parametrize("name", of_numbers(mg))
def test_divergences_from(name: str, of_torch: Of) -> None:
    def program(lib: Any) -> Any:
        known = of_numbers(lib)
        found = []
        for other, q in known.items():
            try:
                found.append([other, lib.distributions.kl_divergence(known[name], q)])
            except NotImplementedError:
                found.append([other, "not implemented"])
        return found

    compared(program, of_torch, 1e-6, 1e-8)


def vectors(lib: Any) -> dict[str, Any]:
    d = lib.distributions
    square = lib.tensor(_SQUARE)
    matrix = square @ square.mT + lib.eye(3, dtype=lib.float64)
    loc = lib.tensor(_X[:2])
    normal = d.Normal(loc, lib.tensor(np.exp(_X[:2])))
    return {
        "covariance": d.MultivariateNormal(loc, matrix),
        "precision": d.MultivariateNormal(loc, precision_matrix=matrix),
        "factor": d.MultivariateNormal(loc, scale_tril=lib.linalg.cholesky(matrix)),
        "few": d.LowRankMultivariateNormal(loc, square[..., :2], lib.tensor(np.exp(_X[:2]))),
        "independent": d.Independent(normal, 1),
        "stick": d.TransformedDistribution(normal, d.StickBreakingTransform()),
        "turned": d.TransformedDistribution(
            d.Normal(lib.zeros(3, dtype=lib.float64), lib.ones(3, dtype=lib.float64)),
            [d.AffineTransform(lib.tensor(_X), 2.0), d.SoftmaxTransform()],
        ),
        "dirichlet": d.Dirichlet(lib.tensor(np.exp(_X))),
        "one hot": d.OneHotCategorical(logits=lib.tensor(_X)),
        "multinomial": d.Multinomial(4, logits=lib.tensor(_X)),
        "mixture": d.MixtureSameFamily(
            d.Categorical(logits=lib.tensor(_X[0])), d.Normal(lib.tensor(_X), 1.0)
        ),
        "wishart": d.Wishart(lib.tensor(5.0, dtype=lib.float64), matrix),
        "correlations": d.LKJCholesky(3, lib.tensor([0.5, 2.0], dtype=lib.float64)),
        "von Mises": d.VonMises(loc, 2.0),
        "relaxed": d.RelaxedOneHotCategorical(
            lib.tensor(0.5, dtype=lib.float64), logits=lib.tensor(_X)
        ),
    }


@pytest.mark.parametrize("name", vectors(mg))
def test_shapes_and_supports(name: str, of_torch: Of) -> None:
    def program(lib: Any) -> Any:
        distribution = vectors(lib)[name]
        wide = distribution.expand((5, *distribution.batch_shape))
        drawn = wide.sample((2,))
        found: list[Any] = [
            tuple(distribution.batch_shape),
            tuple(distribution.event_shape),
            tuple(wide.batch_shape),
            tuple(drawn.shape),
            bool(distribution.support.check(drawn).all()),
            distribution.support.event_dim,
            distribution.support.is_discrete,
            tuple(wide.log_prob(drawn).shape) if name != "turned" else (),
        ]
        for moment in ("mean", "variance", "mode"):
            try:
                found.append(getattr(distribution, moment))
            except NotImplementedError:
                found.append("not implemented")
        matrices = ("covariance_matrix", "precision_matrix", "scale_tril")
        return found + [getattr(distribution, name, None) for name in matrices]

    compared(program, of_torch, 1e-6, 1e-8)


def test_a_distribution_of_ones_own() -> None:
    """As programs for PyTorch define them."""

    class Triangle(mg.distributions.Distribution):
        arg_constraints = {"width": constraints.positive}  # noqa: RUF012
        support = constraints.nonnegative

        def __init__(self, width: Any, validate_args: Any = None) -> None:
            (self.width,) = broadcast_all(width)
            super().__init__(self.width.shape, validate_args=validate_args)

        def log_prob(self, value: Any) -> Any:
            self._validate_sample(value)
            return mg.log(1 - value / self.width)

    own = Triangle(mg.tensor([2.0, 4.0]))
    assert repr(own) == "Triangle(width: mpgrad.Size([2]))"
    assert own.expand((3, 2)).width.shape == (3, 2)
    with pytest.raises(ValueError, match="within the support"):
        own.log_prob(mg.tensor([-1.0, 1.0]))
    with pytest.raises(ValueError, match="not broadcastable"):
        own.log_prob(mg.ones(3))
    with pytest.raises(ValueError, match="parameter width"):
        Triangle(mg.tensor(-1.0))

    class Bare(mg.distributions.Distribution):
        pass

    with pytest.warns(UserWarning, match="does not define `arg_constraints`"):
        Bare()


@pytest.mark.parametrize("dtype", [mg.float32, mg.float64])
def test_draws_of_extreme_parameters_are_inside(dtype: Any) -> None:
    """Gamma distributed numbers below the least number of the dtype were 0, their ratios NaN."""
    mg.manual_seed(0)
    small = mg.tensor(0.01, dtype=dtype)
    drawn = mg.distributions.Beta(small, small).sample((20_000,))
    assert bool(((drawn > 0) & (drawn < 1)).all())
    assert abs(float((drawn < 0.5).double().mean()) - 0.5) < 0.02
    assert bool((mg.distributions.Gamma(small, small).sample((20_000,)) > 0).all())


def test_a_single_number_is_drawn() -> None:
    for distribution in (
        mg.distributions.Gamma(2.0, 1.0),
        mg.distributions.Chi2(2.0),
        mg.distributions.StudentT(3.0),
        mg.distributions.Beta(2.0, 1.0),
        mg.distributions.FisherSnedecor(2.0, 3.0),
        mg.distributions.InverseGamma(2.0, 1.0),
    ):
        assert distribution.sample().shape == ()
        assert distribution.rsample((3,)).shape == (3,)


def test_a_scalar_chooses_among_large_arrays() -> None:
    """where() with a condition of no dimensions failed above 64 KiB."""
    for choice in (True, False):
        found = mg.where(mg.tensor(choice), mg.ones(60_000), mg.zeros(60_000))
        assert bool((found == float(choice)).all())
