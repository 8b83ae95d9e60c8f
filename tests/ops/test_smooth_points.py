"""Derivatives where a function is smooth and its formula is not: at an exact fit, far out, at
singular matrices, of nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.autograd import gradcheck, gradgradcheck

F = mg.nn.functional

Of = Callable[[mg.Tensor], mg.Tensor]


def derivatives(function: Of, at: Any, count: int) -> list[Any]:
    """The first derivatives of the sum of ``function`` at each element of ``at``."""
    x = mg.tensor(at, dtype=mg.float64, requires_grad=True)
    y, found = function(x), []
    for _ in range(count):
        (y,) = mg.autograd.grad(y.sum(), x, create_graph=True)
        found.append(y.tolist())
    return found


@pytest.mark.parametrize("width", [0.5, 1.0, 2.0])
def test_losses_at_an_exact_fit(width: float) -> None:
    target = mg.zeros(3, dtype=mg.float64)

    def huber(x: mg.Tensor) -> mg.Tensor:
        return F.huber_loss(x, target, "sum", width)

    def smooth(x: mg.Tensor) -> mg.Tensor:
        return F.smooth_l1_loss(x, target, reduction="sum", beta=width)

    at = [0.0, width / 2, 3.0]
    assert derivatives(huber, at, 2) == [[0.0, width / 2, width], [1.0, 1.0, 0.0]]
    assert derivatives(smooth, at, 2) == [[0.0, 0.5, 1.0], [1 / width, 1 / width, 0.0]]


def test_the_logarithm_of_a_probability_far_out() -> None:
    at = [-np.inf, -1e9, -1e3, -5.0, 0.0, 5.0, 40.0, 1e3, np.inf]
    first, second = derivatives(mg.special.log_ndtr, at, 2)
    root = math.sqrt(2 / math.pi)
    expected = [math.inf, 1e9, 1000.000999998, 5.186503967125839, root, 1.4867199409876e-06]
    np.testing.assert_allclose(first, [*expected, 0, 0, 0], rtol=1e-9, atol=1e-300)
    expected = [-1.0, -1.0, -0.999999000006, -0.967303566, -2 / math.pi, -7.433601915e-06]
    np.testing.assert_allclose(second, [*expected, 0, 0, 0], rtol=1e-6, atol=1e-300)
    third = derivatives(mg.special.log_ndtr, [40.0, 0.0], 3)[2]
    np.testing.assert_allclose(third, [0.0, 4 * root / math.pi - root], atol=1e-12)


def test_angles_and_powers_at_the_origin() -> None:
    zero = mg.zeros(1, dtype=mg.float64, requires_grad=True)
    other = mg.zeros(1, dtype=mg.float64, requires_grad=True)
    first = mg.autograd.grad(mg.atan2(zero, other), (zero, other), create_graph=True)
    again = mg.autograd.grad(first[0] + first[1], (zero, other))
    assert [g.item() for g in (*first, *again)] == [0.0] * 4
    powers = mg.arange(4)
    assert derivatives(lambda x: x[:, None] ** powers, [0.0], 3) == [[1.0], [2.0], [6.0]]


# ---------------------------------------------------------------------- matrices

SINGULAR = {
    "rank 1": [[1.0, 2.0], [2.0, 4.0]],
    "rank 0": [[0.0, 0.0], [0.0, 0.0]],
    "one": [[0.0]],
    "rank 2 of 3": [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [0.0, 1.0, 1.0]],
    "rank 1 of 3": [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [3.0, 6.0, 9.0]],
    "nearly": [[1.0, 2.0], [2.0, 4.0 + 1e-12]],
    "regular": [[3.0, 1.0], [2.0, 5.0]],
    "complex": [[1j, 2.0], [2.0, -4j]],
    "a batch": [[[1.0, 2.0], [2.0, 4.0]], [[1.0, 0.0], [0.0, 1.0]]],
}


@pytest.mark.parametrize("name", SINGULAR)
def test_determinants_of_singular_matrices(name: str) -> None:
    matrix = np.asarray(SINGULAR[name])
    kind = mg.complex128 if matrix.dtype.kind == "c" else mg.float64
    x = mg.tensor(matrix, dtype=kind, requires_grad=True)
    assert gradcheck(mg.linalg.det, (x,))
    assert gradgradcheck(mg.linalg.det, (x,))


def test_cofactors_of_a_singular_matrix_to_the_last_digits() -> None:
    x = mg.tensor([[1.0, 2.0], [2.0, 4.0]], dtype=mg.float64, requires_grad=True)
    for keeps in (False, True):
        (found,) = mg.autograd.grad(mg.linalg.det(x), x, create_graph=keeps)
        np.testing.assert_allclose(found.detach(), [[4, -2], [-2, 1]], atol=1e-14)
    thrice = mg.tensor([[3.0, 1.0], [2.0, 5.0]], dtype=mg.float64, requires_grad=True)

    def of_gradient(x: mg.Tensor) -> mg.Tensor:
        return mg.autograd.grad(mg.linalg.det(x), x, create_graph=True)[0].sin()

    assert gradgradcheck(of_gradient, (thrice,))


def test_infinite_and_empty_matrices() -> None:
    x = mg.ones(2, 3, 3)
    x[0, 1, 1] = math.inf
    for p in (None, 2, -2):
        found = mg.linalg.cond(x + mg.eye(3), p)
        assert found[0].isnan()
        assert found[1].isfinite()
    solved = mg.linalg.tensorsolve(mg.zeros(0, 0, 1, 2, 3, 0), mg.zeros(0, 0))
    assert tuple(solved.shape) == (1, 2, 3, 0)
    assert tuple(mg.linalg.householder_product(mg.ones(2, 6, 0), mg.ones(2, 0)).shape) == (2, 6, 0)
    assert tuple(mg.cov(mg.ones(0, 3)).shape) == (0, 0)
    assert tuple(mg.corrcoef(mg.ones(0, 3)).shape) == (0, 0)


def test_what_least_squares_tells() -> None:
    A, B = mg.randn(5, 3), mg.randn(5, 2)
    shapes = {d: tuple(mg.linalg.lstsq(A, B, driver=d).residuals.shape) for d in (None, "gelsy")}
    assert shapes == {None: (0,), "gelsy": (0,)}
    for driver in ("gels", "gelsd", "gelss"):
        assert tuple(mg.linalg.lstsq(A, B, driver=driver).residuals.shape) == (2,)


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_whole_numbers_times_a_fraction(name: str) -> None:
    x, a, b = mg.arange(6).reshape(2, 3), mg.arange(2), mg.arange(3)
    with pytest.raises(RuntimeError, match=f"argument {name} must not be a floating point number"):
        mg.addr(x, a, b, **{name: 2.5})
    assert mg.addr(x, a, b, **{name: 2}).dtype == mg.int64


# ---------------------------------------------------------------------- sums of exponentials


def test_complex_sums_of_nothing() -> None:
    nothing = complex(-math.inf, 0)
    for given, expected in (
        ([nothing, 1 + 1j], [nothing, 1 + 1j]),
        ([1 + 1j, complex(-math.inf, 3)], [1 + 1j, 1 + 1j]),
        ([nothing, nothing, 2j], [nothing, nothing, 2j]),
    ):
        x = mg.tensor(given, requires_grad=True)
        assert mg.logcumsumexp(x, 0).tolist() == expected
    x = mg.tensor([1 + 1j, nothing, 2 + 0j], requires_grad=True)
    (found,) = mg.autograd.grad(mg.logcumsumexp(x, 0)[2].real, x)
    shares = np.exp([1 + 1j, -math.inf, 2])
    np.testing.assert_allclose(found.numpy(), np.conj(shares / shares.sum()), atol=1e-6)


@pytest.mark.parametrize("name", ["multi_margin_loss", "multilabel_margin_loss"])
def test_margins_that_are_just_kept(name: str) -> None:
    x = mg.tensor([[1.0, 0.0]], requires_grad=True)
    target = mg.tensor([0]) if name == "multi_margin_loss" else mg.tensor([[0, -1]])
    loss = getattr(F, name)(x, target)
    assert loss.item() == 0
    assert mg.autograd.grad(loss, x)[0].tolist() == [[0.0, 0.0]]
