"""Initialisations of whole matrices, and what is drawn for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.nn import init
from tests.torch_outcomes import Of


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 2, 3), (1, 1)])
def test_orthogonal_rows_or_columns(shape: tuple[int, ...]) -> None:
    mg.manual_seed(0)
    made = init.orthogonal_(mg.empty(*shape), gain=2.0).numpy().reshape(shape[0], -1)
    product = made @ made.T if made.shape[0] < made.shape[1] else made.T @ made
    np.testing.assert_allclose(product, 4 * np.eye(len(product)), atol=1e-5)


def test_orthogonal_matrices_have_no_preferred_sign() -> None:
    mg.manual_seed(0)
    corners = [init.orthogonal_(mg.empty(2, 2))[0, 0].item() for _ in range(100)]
    assert 30 < sum(corner > 0 for corner in corners) < 70


def test_eye_and_dirac_are_pytorchs(of_torch: Of) -> None:
    def values(lib: Any) -> list[Any]:
        nn = lib.nn.init
        return [
            nn.eye_(lib.empty(2, 3)).tolist(),
            nn.dirac_(lib.empty(4, 2, 3)).tolist(),
            nn.dirac_(lib.empty(4, 2, 3, 2), 2).tolist(),
        ]

    for oracle, theirs in of_torch(values):
        assert values(mg) == theirs, oracle


def test_a_convolution_of_dirac_leaves_its_input() -> None:
    x = mg.arange(10.0).reshape(1, 2, 5)
    weight = init.dirac_(mg.empty(2, 2, 3))
    assert mg.equal(mg.nn.functional.conv1d(x, weight, padding=1), x)


def test_truncated_draws_stay_within_their_bounds() -> None:
    mg.manual_seed(0)
    drawn = init.trunc_normal_(mg.empty(10_000), mean=1.0, std=2.0, a=0.0, b=2.0).numpy()
    assert 0 <= drawn.min() < 0.01
    assert 1.99 < drawn.max() <= 2
    assert abs(drawn.mean() - 1) < 0.02
    with pytest.raises(ValueError, match="hardly any draw"):
        init.trunc_normal_(mg.empty(2), a=50.0, b=51.0)


def test_sparse_columns() -> None:
    made = init.sparse_(mg.empty(10, 4), sparsity=0.35)
    assert (made == 0).sum(0).tolist() == [4, 4, 4, 4]


@pytest.mark.parametrize("name", ["orthogonal_", "normal_", "trunc_normal_", "kaiming_normal_"])
def test_draws_come_from_the_generator(name: str) -> None:
    def drawn() -> mg.Tensor:
        generator = mg.Generator().manual_seed(3)
        return getattr(init, name)(mg.empty(3, 4), generator=generator)

    state = mg.get_rng_state()
    assert mg.equal(drawn(), drawn())
    assert mg.equal(mg.get_rng_state(), state)


def test_older_names_warn() -> None:
    with pytest.warns(FutureWarning, match=r"in favor of `nn.init.constant_`"):
        assert init.constant(mg.empty(2), 3.0).tolist() == [3, 3]


def test_parameters_are_filled_without_a_record() -> None:
    weight = mg.nn.Parameter(mg.zeros(3, 3))
    init.orthogonal_(weight)
    assert weight.is_leaf
    assert weight.requires_grad


@pytest.mark.parametrize("fill", [init.eye_, lambda x: init.sparse_(x, 0.1)])
def test_what_is_no_matrix_is_refused(fill: Any) -> None:
    with pytest.raises(ValueError, match="2 dimensions"):
        fill(mg.empty(3))


@pytest.mark.parametrize("shape", [(4,), (2, 3), (2, 3, 4), (2, 3, 4, 5)])
def test_softmax_chooses_a_dimension_as_pytorch_does(shape: tuple[int, ...], of_torch: Of) -> None:
    def values(lib: Any) -> list[Any]:
        x = lib.arange(float(np.prod(shape))).reshape(shape) / 7
        layers = (lib.nn.Softmax(), lib.nn.LogSoftmax(), lib.nn.Softmin())
        with pytest.warns(UserWarning, match="Implicit dimension choice"):
            return [layer(x).tolist() for layer in layers]

    for oracle, theirs in of_torch(values):
        for here, there in zip(values(mg), theirs, strict=True):
            np.testing.assert_allclose(here, there, rtol=1e-6, err_msg=oracle)
