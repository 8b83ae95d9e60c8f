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
    "jacrev of jacrev": lambda t, x, y: t.func.jacrev(
        t.func.jacfwd(lambda a: (a.sin() * a.flip(0)).sum())
    )(x[0]),
    "jacrev of a tree": lambda t, x, y: t.func.jacrev(
        lambda p: (p["a"] * p["b"][0].sum(), {"c": p["b"][0].sum()})
    )({"a": x[0], "b": [y[0]]}),
    "jacrev of two arguments": lambda t, x, y: t.func.jacrev(
        lambda a, b: (a @ b, a.sum()), argnums=(1, 0), has_aux=True
    )(x, y),
    "hessian of two arguments": lambda t, x, y: t.func.hessian(
        lambda a, b: (a * b**2).sum(), argnums=(0, 1)
    )(x[0], x[1]),
    "hessian of a vector": lambda t, x, y: t.func.hessian(lambda a: a**3 * a.sum())(x[0]),
    "a derivative of what is outside": lambda t, x, y: t.func.grad(
        lambda w: t.func.grad(lambda a: (a * w).sin().sum())(x[0]).sum()
    )(x[1]),
    "a step of gradient descent": lambda t, x, y: t.func.grad(
        lambda p: (
            (x[0] * (p - 0.1 * t.func.grad(lambda q: ((q * x[1] - 1) ** 2).sum())(p))) ** 2
        ).sum()
    )(x[2]),
    "vjp inside grad": lambda t, x, y: t.func.grad(
        lambda w: t.func.vjp(lambda a: (a * w).sin(), x[0])[1](x[1])[0].sum()
    )(x[2]),
    "jvp inside grad": lambda t, x, y: t.func.grad(
        lambda w: t.func.jvp(lambda a: (a * w).sin(), (x[0],), (w * w,))[1].sum()
    )(x[2]),
    "grad inside jvp": lambda t, x, y: t.func.jvp(
        t.func.grad(lambda a: (a**3 * x[1]).sum()), (x[0],), (x[2],)
    ),
    "jvp of jvp": lambda t, x, y: t.func.jvp(
        lambda w: t.func.jvp(lambda a: a**3 * w, (x[0],), (w,))[1], (x[1],), (x[2],)
    ),
    "linearize": lambda t, x, y: (lambda found: (found[0], found[1](x + 1), found[1](x)))(
        t.func.linearize(lambda a: a.sin() * 2, x)
    ),
    "vjp of a tree": lambda t, x, y: t.func.vjp(lambda a: {"s": a.sin(), "c": (a.cos(),)}, x)[1](
        {"s": x + 1, "c": (x - 1,)}
    ),
    "a product with the Hessian of each": lambda t, x, y: t.func.vmap(
        lambda a, v: t.func.jvp(t.func.grad(lambda b: (b**4).sum()), (a,), (v,))[1]
    )(x, x + 1),
    "a graph of one's own around it": lambda t, x, y: (
        lambda w: t.autograd.grad(t.func.grad(lambda a: (a * w).sin().sum())(x[0]).sum(), w)
    )(x[1].clone().requires_grad_()),
    "what needs no history": lambda t, x, y: [
        value.requires_grad
        for value in (
            t.func.grad(lambda a: (a * a).sum())(x),
            t.func.vjp(t.sin, x)[0],
            t.func.jacrev(t.sin)(x[0]),
            t.func.jvp(t.sin, (x,), (x,))[1],
        )
    ],
}

#: What is refused, with RuntimeError.
BAD: dict[str, Any] = {
    "no such argument": lambda t, x: t.func.grad(lambda a: a.sum(), argnums=3)(x),
    "an argument twice": lambda t, x: t.func.grad(lambda a: a.sum(), argnums=(0, 0))(x),
    "no argument": lambda t, x: t.func.grad(lambda a: a.sum(), argnums=())(x),
    "no pair": lambda t, x: t.func.grad(lambda a: a.sum(), has_aux=True)(x),
    "no Tensor": lambda t, x: t.func.jacrev(lambda a: None)(x),
    "nothing": lambda t, x: t.func.vjp(lambda a: (), x),
    "another form": lambda t, x: t.func.vjp(lambda a: (a, a), x)[1](x),
    "other shapes": lambda t, x: t.func.jvp(t.sin, (x,), (x[0],)),
    "no tuple": lambda t, x: t.func.jvp(t.sin, x, x),
    "too few": lambda t, x: t.func.jvp(t.sin, (x,), (x, x)),
    "complex": lambda t, x: t.func.jacrev(lambda a: a * 1j)(x),
    "no models": lambda t, x: t.func.stack_module_state([]),
}


@pytest.mark.parametrize("name", BAD)
def test_what_pytorch_refuses_is_refused(name: str, of_torch: Of) -> None:
    def told(lib: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                BAD[name](lib, lib.tensor(_X))
            except Exception as error:
                return type(error).__name__

    for oracle, theirs in of_torch(told):
        assert told(mg) == theirs, oracle


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
    with pytest.raises(RuntimeError, match=r"Missing key\(s\): 'bias'"):
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


def test_batch_norms_that_keep_no_statistics() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    assert func.replace_all_batch_norm_modules_(net) is net
    net(mg.randn(4, 3))
    assert net[1].running_mean is None
    assert not net[1].track_running_stats
    assert "1.running_mean" not in net.state_dict()


class SquaredByNumPy(mg.Function):
    """Its derivative is not recorded."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> mg.Tensor:
        ctx.save_for_backward(x)
        return x.detach() ** 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> mg.Tensor:
        (x,) = ctx.saved_tensors
        return mg.tensor(grad.detach().numpy() * 2 * x.detach().numpy())


@pytest.mark.parametrize("jvp", [func.jvp, mg.autograd.functional.jvp])
def test_two_backwards_need_a_recorded_one(jvp: Any) -> None:
    x = mg.tensor(_X)
    with pytest.raises(RuntimeError, match="not recorded"):
        jvp(SquaredByNumPy.apply, (x,), (x,))
