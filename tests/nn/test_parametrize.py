"""Parametrized tensors: computed from originals, as in PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import nn
from mpgrad.nn.utils import parametrizations, parametrize
from tests.semantics.paired import compare, seen
from tests.torch_outcomes import Of

X = np.random.default_rng(0).standard_normal((2, 2, 5))
#: Name -> (the layer, its arguments, the options).
KINDS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "weight_norm": ("Conv1d", (2, 3, 2), {}),
    "weight_norm all": ("Conv1d", (2, 3, 2), {"dim": None}),
    "spectral_norm": ("Conv1d", (2, 3, 2), {"n_power_iterations": 2}),
    "spectral_norm transposed": ("ConvTranspose1d", (2, 3, 2), {}),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_layer_trains_as_pytorchs(name: str, of_torch: Of) -> None:
    kind, args, options = KINDS[name]
    function = name.split()[0]

    def told(lib: Any) -> list[Any]:
        layer = getattr(lib.nn, kind)(*args).double()
        if lib is mg:
            getattr(parametrizations, function)(layer, **options)
        else:
            getattr(lib.nn.utils.parametrizations, function)(layer, **options)
        start = {
            key: np.random.default_rng(at).uniform(0.2, 1, tuple(value.shape))
            for at, (key, value) in enumerate(sorted(layer.state_dict().items()))
        }
        layer.load_state_dict({key: lib.tensor(value) for key, value in start.items()})
        outputs = []
        for _ in range(2):
            outputs.append(layer(lib.tensor(X)))
            (outputs[-1] ** 2).sum().backward()
        outputs.append(layer.eval()(lib.tensor(X)))
        names = sorted(layer.state_dict())
        grads = [parameter.grad for _, parameter in sorted(layer.named_parameters())]
        lib.nn.utils.parametrize.remove_parametrizations(layer, "weight")
        found = seen([outputs, grads, layer.weight.detach()], exact=False)
        return [names, sorted(layer.state_dict()), type(layer).__name__, found]

    *said, found = told(mg)
    for oracle, (*their_said, theirs) in of_torch(told):
        assert said == their_said, oracle
        compare(found, theirs, 1e-9, 1e-12, oracle)


class Symmetric(nn.Module):
    """The upper triangle, mirrored."""

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        """Symmetric."""
        return x.triu() + x.triu(1).mT

    def right_inverse(self, x: mg.Tensor) -> mg.Tensor:
        """The upper triangle."""
        return x.triu()


class Doubled(nn.Module):
    """Twice the tensor; without an inverse."""

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        """Twice."""
        return 2 * x


class Row(nn.Module):
    """Another shape."""

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        """The first row."""
        return x[0]


def test_functions_follow_each_other_and_can_be_removed() -> None:
    layer = nn.Linear(3, 3)
    original = layer.weight
    parametrize.register_parametrization(layer, "weight", Symmetric())
    parametrize.register_parametrization(layer, "weight", Doubled())
    assert parametrize.is_parametrized(layer, "weight")
    assert not parametrize.is_parametrized(layer, "bias")
    assert [name for name, _ in layer.named_parameters()] == [
        "bias",
        "parametrizations.weight.original",
    ]
    assert layer.parametrizations.weight.original is original
    before = layer.weight.detach().numpy()
    np.testing.assert_array_equal(before, before.T)
    layer(mg.ones(1, 3)).sum().backward()
    assert original.grad is not None
    other = copy.deepcopy(layer)
    np.testing.assert_array_equal(other.weight.detach().numpy(), before)
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is nn.Linear
    assert layer.weight is original
    np.testing.assert_array_equal(layer.weight.detach().numpy(), before)
    assert parametrize.is_parametrized(other, "weight")


def test_assignment_goes_through_the_inverse() -> None:
    layer = nn.Linear(2, 2)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    layer.weight = mg.tensor([[1.0, 2.0], [7.0, 3.0]])
    np.testing.assert_array_equal(layer.weight.detach().numpy(), [[1, 2], [2, 3]])


def test_inside_of_cached_it_is_computed_once() -> None:
    layer = nn.Linear(2, 2)
    parametrize.register_parametrization(layer, "weight", Doubled())
    with parametrize.cached():
        assert layer.weight is layer.weight
    assert layer.weight is not layer.weight


def test_what_does_not_fit_is_named() -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="with name 'wait'"):
        parametrize.register_parametrization(layer, "wait", Doubled())
    with pytest.raises(ValueError, match="may not change the shape"):
        parametrize.register_parametrization(layer, "weight", Row())
    with pytest.raises(ValueError, match="does not have a parametrization on weight"):
        parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is nn.Linear
    assert isinstance(layer.weight, nn.Parameter)
