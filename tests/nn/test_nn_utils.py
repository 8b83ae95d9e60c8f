"""nn.utils: clipped gradients and parameters in one vector are those of PyTorch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.nn import utils
from tests.torch_outcomes import Of

SHAPES = ((3, 4), (5,), ())


def parameters(lib: Any = mg, scale: float = 1.0) -> list[Any]:
    """Three with gradients, and one without."""
    generator = np.random.default_rng(0)
    made = [lib.zeros(shape, dtype=lib.float64, requires_grad=True) for shape in SHAPES]
    for parameter in made:
        parameter.grad = lib.tensor(scale * generator.standard_normal(tuple(parameter.shape)))
    return [*made, lib.zeros(2, requires_grad=True)]


def gradients(found: list[Any]) -> list[np.ndarray]:
    return [parameter.grad.numpy() for parameter in found[:3]]


@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, math.inf])
@pytest.mark.parametrize("max_norm", [0.5, 1e3])
def test_norms_are_clipped_as_in_pytorch(norm_type: float, max_norm: float, of_torch: Of) -> None:
    def clipped(lib: Any) -> list[Any]:
        found = parameters(lib)
        norm = lib.nn.utils.clip_grad_norm_(found, max_norm, norm_type)
        return [norm.item(), *gradients(found)]

    for oracle, theirs in of_torch(clipped):
        for mine, reference in zip(clipped(mg), theirs, strict=True):
            np.testing.assert_allclose(mine, reference, rtol=1e-12, err_msg=oracle)


def test_the_norm_afterwards_is_the_largest_allowed() -> None:
    found = parameters()
    before = utils.clip_grad_norm_(found, 0.5)
    assert before.item() > 0.5
    grads = [parameter.grad for parameter in found[:3]]
    assert utils.get_total_norm(grads).item() == pytest.approx(0.5, rel=1e-5)


def test_short_gradients_stay_as_they_are() -> None:
    found = parameters(scale=1e-3)
    before = [grad.copy() for grad in gradients(found)]
    places = [parameter.grad for parameter in found[:3]]
    utils.clip_grad_norm_(iter(found), 1.0)
    assert all(parameter.grad is place for parameter, place in zip(found, places, strict=False))
    assert all(np.array_equal(a, b) for a, b in zip(gradients(found), before, strict=True))


def test_one_parameter_and_none() -> None:
    (first, *_) = parameters()
    assert utils.clip_grad_norm_(first, 0.1).item() > 0.1
    assert utils.clip_grad_norm_([], 1.0).item() == 0
    assert utils.clip_grad_norm_([mg.zeros(2, requires_grad=True)], 1.0).item() == 0


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_norm_that_is_not_finite_can_be_an_error(bad: float) -> None:
    found = parameters()
    found[0].grad[0, 0] = bad
    before = [grad.copy() for grad in gradients(found)]
    with pytest.raises(RuntimeError, match=r"order 2\.0 .* non-finite"):
        utils.clip_grad_norm_(found, 1.0, error_if_nonfinite=True)
    assert all(np.array_equal(a, b, True) for a, b in zip(gradients(found), before, strict=True))
    with np.errstate(invalid="ignore"):
        assert not math.isfinite(utils.clip_grad_norm_(found, 1.0).item())


def test_values_are_clamped() -> None:
    found = parameters()
    before = gradients(found)
    expected = [np.clip(grad, -0.3, 0.3) for grad in before]
    utils.clip_grad_value_(found, 0.3)
    assert all(np.array_equal(a, b) for a, b in zip(gradients(found), expected, strict=True))


def test_parameters_in_one_vector_and_back() -> None:
    model = mg.nn.Sequential(mg.nn.Linear(3, 2), mg.nn.Linear(2, 1))
    vector = utils.parameters_to_vector(model.parameters())
    assert vector.shape == (11,)
    vector.sum().backward()
    assert all(parameter.grad.numpy().all() for parameter in model.parameters())
    utils.vector_to_parameters(mg.arange(11.0), model.parameters())
    assert model[0].weight.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert model[1].bias.tolist() == [10]
    assert model[0].weight.is_leaf
    with pytest.raises(RuntimeError, match="12 elements, the parameters 11"):
        utils.vector_to_parameters(mg.zeros(12), model.parameters())
    with pytest.raises(TypeError, match="expected a Tensor"):
        utils.vector_to_parameters([0.0] * 11, model.parameters())
