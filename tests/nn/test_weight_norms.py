"""Weights that are computed before each forward, and forward hooks, beside PyTorch's."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import nn
from tests.semantics.paired import compare, seen
from tests.torch_outcomes import Of

numbers = np.random.default_rng(0)
X = numbers.standard_normal((2, 2, 5))
#: Name -> (the layer's arguments, the function, its options).
KINDS: dict[str, tuple[str, tuple[Any, ...], str, dict[str, Any]]] = {
    "weight_norm": ("Conv1d", (2, 3, 2), "weight_norm", {}),
    "weight_norm all": ("Conv1d", (2, 3, 2), "weight_norm", {"dim": None}),
    "spectral_norm": ("Conv1d", (2, 3, 2), "spectral_norm", {"n_power_iterations": 2}),
    "spectral_norm transposed": ("ConvTranspose1d", (2, 3, 2), "spectral_norm", {}),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_layer_trains_as_pytorchs(name: str, of_torch: Of) -> None:
    kind, args, function, options = KINDS[name]

    def told(lib: Any) -> list[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer names of PyTorch's
            layer = getattr(lib.nn.utils, function)(
                getattr(lib.nn, kind)(*args).double(), **options
            )
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
            plain = getattr(lib.nn.utils, f"remove_{function}")(layer)
            found = seen([outputs, grads, plain.weight], exact=False)
        return [names, sorted(plain.state_dict()), found]

    *names, found = told(mg)
    for oracle, (*their_names, theirs) in of_torch(told):
        assert names == their_names, oracle
        compare(found, theirs, 1e-9, 1e-12, oracle)


def test_forward_hooks_change_arguments_and_outputs(of_torch: Of) -> None:
    def told(lib: Any) -> list[Any]:
        layer, log = lib.nn.Flatten(), []
        first = layer.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        layer.register_forward_pre_hook(
            lambda m, args, kwargs: log.append(sorted(kwargs)), with_kwargs=True
        )
        layer.register_forward_hook(lambda m, args, out: log.append(list(out.shape)))
        last = layer.register_forward_hook(lambda m, args, out: out + 1)
        outputs = [layer(lib.ones(1, 2, 2)).tolist()]
        first.remove()
        outputs.append(layer(lib.ones(1, 2, 2)).tolist())
        last.remove()
        return [log, outputs, layer(lib.ones(1, 2, 2)).tolist()]

    for oracle, theirs in of_torch(told):
        assert told(mg) == theirs, oracle


def test_misuse_is_named() -> None:
    layer = nn.utils.weight_norm(nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="Cannot register two hooks"):
        nn.utils.weight_norm(layer)
    with pytest.raises(ValueError, match="spectral_norm of 'weight' not found"):
        nn.utils.remove_spectral_norm(layer)
    with pytest.raises(ValueError, match="n_power_iterations to be positive"):
        nn.utils.spectral_norm(nn.Linear(2, 2), n_power_iterations=0)
