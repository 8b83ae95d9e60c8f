"""Weights that stay orthogonal, and parametrizations after one another, beside PyTorch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import nn
from mpgrad.nn.parametrizations import orthogonal
from mpgrad.nn.utils import parametrize
from tests.torch_outcomes import Of

MAPS = ("matrix_exp", "cayley", "householder")
SHAPES = ((4, 4), (5, 3), (3, 5))


def _error_to_identity(weight: mg.Tensor) -> float:
    tall = weight if weight.shape[-2] >= weight.shape[-1] else weight.mT
    return (tall.mH @ tall - mg.eye(tall.shape[-1])).abs().max().item()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("way", "shape", "trivial"), [*itertools.product(MAPS, SHAPES, (True, False))]
)
def test_a_weight_stays_orthogonal(way: str, shape: tuple[int, int], trivial: bool) -> None:
    mg.manual_seed(1)
    layer = orthogonal(nn.Linear(*shape).double(), orthogonal_map=way, use_trivialization=trivial)
    optimizer = mg.optim.SGD(layer.parameters(), lr=0.5)
    before = layer.weight.detach()
    for _ in range(3):
        assert _error_to_identity(layer.weight) < 1e-10
        optimizer.zero_grad()
        (layer(mg.ones(2, shape[0], dtype=mg.float64)) ** 2).sum().backward()
        optimizer.step()
    assert not mg.allclose(layer.weight, before)


@pytest.mark.parametrize(("way", "shape"), [*itertools.product(MAPS, SHAPES)])
def test_an_orthogonal_matrix_can_be_assigned(way: str, shape: tuple[int, int]) -> None:
    mg.manual_seed(1)
    layer = orthogonal(nn.Linear(*shape).double(), orthogonal_map=way)
    wanted = nn.init.orthogonal_(mg.empty(shape[1], shape[0], dtype=mg.float64))
    layer.weight = wanted
    assert mg.allclose(layer.weight, wanted, atol=1e-10)


def test_without_trivialisation_only_reflections_have_an_inverse() -> None:
    wanted = nn.init.orthogonal_(mg.empty(4, 4, dtype=mg.float64))
    layer = orthogonal(
        nn.Linear(4, 4).double(), use_trivialization=False, orthogonal_map="householder"
    )
    layer.weight = wanted
    assert mg.allclose(layer.weight, wanted, atol=1e-10)
    layer = orthogonal(nn.Linear(4, 4), use_trivialization=False)
    with pytest.raises(NotImplementedError, match="use_trivialization=False"):
        layer.weight = wanted.float()


def test_a_unitary_weight_trains() -> None:
    layer = orthogonal(nn.Linear(3, 3, bias=False).type(mg.complex128))
    assert _error_to_identity(layer.weight) < 1e-10
    layer(mg.ones(1, 3, dtype=mg.complex128)).abs().sum().backward()
    assert _error_to_identity(layer.weight) < 1e-10


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="has no parameter or buffer with name 'foo'"):
        orthogonal(nn.Linear(2, 2), "foo")
    with pytest.raises(ValueError, match="Expected a matrix or batch of matrices"):
        orthogonal(nn.Linear(2, 2), "bias")
    with pytest.raises(ValueError, match='orthogonal_map has to be one of "matrix_exp", "cayley"'):
        orthogonal(nn.Linear(2, 2), orthogonal_map="qr")
    with pytest.raises(ValueError, match="does not support complex tensors"):
        orthogonal(nn.Linear(2, 2).type(mg.complex64), orthogonal_map="householder")
    layer = orthogonal(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="Expected a matrix or batch of matrices of shape"):
        layer.weight = mg.eye(3)


W = np.random.default_rng(2).standard_normal((3, 3))


def after_one_another(T: Any) -> Any:
    class RankOne(T.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, y: Any) -> Any:
            return x.unsqueeze(-1) @ y.unsqueeze(-2)

        def right_inverse(self, Y: Any) -> Any:
            return Y[:, 0], Y[0]

    class Double(T.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return 2.0 * x

        def right_inverse(self, w: Any) -> Any:
            return 0.5 * w

    functions = T.nn.utils.parametrize
    model = T.nn.Linear(3, 3).double()
    model.load_state_dict({"weight": T.tensor(W), "bias": T.zeros(3, dtype=T.float64)})
    functions.register_parametrization(model, "weight", RankOne(), unsafe=True)
    told = [model.weight.tolist()]
    functions.register_parametrization(model, "weight", Double())
    told.append(model.weight.tolist())
    model.weight = T.tensor(W)
    told.append(model.weight.tolist())
    told.append([part.tolist() for part in model.parametrizations.weight.parameters()])
    other = T.nn.Linear(3, 3).double()
    functions.transfer_parametrizations_and_params(model, other)
    told += [other.weight.tolist(), functions.type_before_parametrizations(other).__name__]
    functions.remove_parametrizations(model, "weight")
    return [*told, model.weight.tolist()]


def test_parametrizations_after_one_another(of_torch: Of) -> None:
    here = after_one_another(mg)
    for oracle, there in of_torch(after_one_another):
        assert here == there, oracle


def test_a_tensor_without_an_inverse_is_not_assigned() -> None:
    class Symmetric(nn.Module):
        def forward(self, x: mg.Tensor) -> mg.Tensor:
            return x.triu() + x.triu(1).mT

    layer = nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    with pytest.raises(RuntimeError, match="Symmetric does not implement right_inverse"):
        layer.weight = mg.eye(3)


def test_older_weight_norms_load() -> None:
    older = nn.utils.weight_norm(nn.Linear(2, 3))
    newer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 3))
    newer.load_state_dict(older.state_dict())
    assert mg.allclose(newer.weight, older(mg.eye(2)).mT - older.bias[:, None])


def test_a_complex_spectral_norm_is_one() -> None:
    mg.manual_seed(0)
    layer = nn.Linear(4, 3, bias=False).type(mg.complex128)
    nn.utils.parametrizations.spectral_norm(layer, n_power_iterations=200)
    layer.train()
    assert abs(mg.linalg.svdvals(layer.weight)[0].item() - 1) < 1e-6
