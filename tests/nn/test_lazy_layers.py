"""Lazy layers take their sizes from the first input, and train as PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import nn
from tests.semantics.paired import compare, seen
from tests.torch_outcomes import Of

X = np.random.default_rng(0).standard_normal((2, 4, 5, 5, 5))
#: Name -> (arguments, dimensions of the input).
KINDS: dict[str, tuple[tuple[Any, ...], int]] = {
    "LazyLinear": ((3,), 2),
    "LazyConv1d": ((6, 3), 3),
    "LazyConv2d": ((6, 3), 4),
    "LazyConv3d": ((6, 3), 5),
    "LazyConvTranspose1d": ((6, 3), 3),
    "LazyConvTranspose2d": ((6, 3), 4),
    "LazyConvTranspose3d": ((6, 3), 5),
    "LazyBatchNorm1d": ((), 3),
    "LazyBatchNorm2d": ((), 4),
    "LazyBatchNorm3d": ((), 5),
    "LazyInstanceNorm2d": ((1e-5, 0.1, True, True), 4),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_lazy_layer_becomes_pytorchs(name: str, of_torch: Of) -> None:
    args, dims = KINDS[name]

    def told(lib: Any) -> list[Any]:
        layer = getattr(lib.nn, name)(*args, dtype=lib.float64)
        optimizer = lib.optim.SGD(layer.parameters(), lr=0.1)
        x = lib.tensor(X.reshape(2, 4, 125)[..., 0] if dims == 2 else X[(..., *(0,) * (5 - dims))])
        layer(x)
        start = {
            key: np.random.default_rng(at).uniform(0.2, 1, tuple(value.shape))
            for at, (key, value) in enumerate(sorted(layer.state_dict().items()))
        }
        layer.load_state_dict({key: lib.tensor(value) for key, value in start.items()})
        (layer(x) ** 2).sum().backward()
        optimizer.step()
        kept = layer.state_dict()
        found = seen([kept[key] for key in sorted(kept)], exact=False)
        return [type(layer).__name__, sorted(kept), found]

    here = told(mg)
    for oracle, there in of_torch(told):
        assert here[:2] == there[:2], oracle
        compare(here[2], there[2], 1e-9, 1e-12, oracle)


def test_the_parameters_stay_and_get_their_shape() -> None:
    layer = nn.LazyConv2d(6, 3, groups=2)
    parameters = list(layer.parameters())
    assert layer.has_uninitialized_params()
    assert repr(parameters[0]) == "<UninitializedParameter>"
    layer(mg.ones(1, 4, 5, 5))
    assert [id(p) for p in layer.parameters()] == [id(p) for p in parameters]
    assert layer.weight.shape == (6, 2, 3, 3)
    assert isinstance(layer, nn.Conv2d)
    assert not isinstance(layer, nn.LazyConv2d)
    assert layer.in_channels == 4


def test_a_state_dict_makes_the_parameters() -> None:
    trained = nn.Linear(4, 3)
    layer = nn.LazyLinear(3)
    layer.load_state_dict(trained.state_dict())
    x = mg.randn(2, 4)
    np.testing.assert_array_equal(layer(x).detach().numpy(), trained(x).detach().numpy())
    assert layer.in_features == 4


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"Expected 3D \(unbatched\) or 4D"):
        nn.LazyConv2d(6, 3)(mg.ones(2, 2))
    with pytest.raises(ValueError, match="must be divisible by groups, got 3 and 2"):
        nn.LazyConv2d(6, 3, groups=2)(mg.ones(1, 3, 5, 5))
