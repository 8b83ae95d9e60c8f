"""``mg.func``: vmap, jvp, functional_call and stack_module_state beside PyTorch's."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import func, nn
from tests.semantics.paired import compare, seen
from tests.torch_outcomes import Of

_X = np.random.default_rng(0).standard_normal((4, 3))
_Y = np.random.default_rng(1).standard_normal((3, 4))

PROGRAMS: dict[str, Any] = {
    "a product": lambda t, x, y: t.func.vmap(t.dot, in_dims=(0, 1))(x, y),
    "a whole argument": lambda t, x, y: t.func.vmap(t.mv, in_dims=(None, 0), out_dims=1)(x, x[:2]),
    "a tree": lambda t, x, y: t.func.vmap(
        lambda d: (d["x"].sum(), {"y": d["y"] * 2}["y"]), in_dims=({"x": 0, "y": 1},)
    )({"x": x, "y": y}),
    "vmap of vmap": lambda t, x, y: t.func.vmap(
        lambda a: t.func.vmap(lambda b: (a * b).sum(), in_dims=1)(y)
    )(x),
    "gradients of each": lambda t, x, y: t.func.vmap(t.func.grad(lambda a: (a**3).sum()))(x),
    "jvp": lambda t, x, y: t.func.jvp(lambda a, b: (a @ b).sin(), (x, y), (x + 1, y * 2)),
    "jvp of one": lambda t, x, y: t.func.jvp(t.exp, (x,), (x,)),
    "jacfwd": lambda t, x, y: t.func.jacfwd(lambda a: (a**2).sum(0))(x),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_gives_what_pytorchs_gives(name: str, of_torch: Of) -> None:
    def told(lib: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's, about its own code
            found = PROGRAMS[name](lib, lib.tensor(_X), lib.tensor(_Y))
        return seen(found, exact=False)

    for oracle, theirs in of_torch(told):
        compare(told(mg), theirs, 1e-9, 1e-12, oracle)


def test_what_vmap_gives_has_a_gradient() -> None:
    x = mg.tensor(_X, requires_grad=True)
    func.vmap(lambda row: (row**2).sum())(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * _X)


def test_a_module_with_other_parameters_is_as_before() -> None:
    layer = nn.Linear(3, 2, dtype=mg.float64)
    kept = layer.weight
    other = {"weight": mg.ones(2, 3, dtype=mg.float64, requires_grad=True)}
    out = func.functional_call(layer, other, mg.tensor(_X))
    np.testing.assert_allclose(
        out.detach().numpy(), _X @ np.ones((3, 2)) + layer.bias.detach().numpy()
    )
    out.sum().backward()
    assert other["weight"].grad is not None
    assert layer.weight is kept
    with pytest.raises(RuntimeError, match=r"missing \['bias'\]"):
        func.functional_call(layer, other, mg.tensor(_X), strict=True)


def test_stacked_models_give_what_each_gives() -> None:
    models = [nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).eval() for _ in range(3)]
    parameters, buffers = func.stack_module_state(models)
    x = mg.tensor(_X.astype(np.float32))

    def call(p: Any, b: Any) -> Any:
        return func.functional_call(models[0], (p, b), (x,))

    found = func.vmap(call)(parameters, buffers)
    for one, model in zip(found, models, strict=True):
        np.testing.assert_allclose(one.detach().numpy(), model(x).detach().numpy(), rtol=1e-6)


def test_lengths_that_differ_are_named() -> None:
    with pytest.raises(ValueError, match=r"got sizes \[3, 4\]"):
        func.vmap(mg.dot)(mg.tensor(_X), mg.tensor(_Y))
