"""P3: autograd.functional, by backward and by differentiating backward."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import mpgrad as mg
from tests.semantics.functions import PLACES, define, slope_of_squares, squares
from tests.semantics.paired import error_of, leaf, paired, row, values

NAMES = ("vjp", "jvp", "jacobian", "hessian", "hvp", "vhp")


def constant(lib: Any, *shape: int, seed: int = 0) -> Any:
    return lib.tensor(values(*shape, seed=seed))


def pair(x: Any, y: Any) -> Any:
    return x * y, x.exp().sum()


def loss(x: Any) -> Any:
    return (x * x * x).sum()


def loss_of_two(x: Any, y: Any) -> Any:
    return (x * x * y).sum()


@paired("P3")
def test_vjp(lib: Any) -> Any:
    f = lib.autograd.functional
    x, y, v = constant(lib, 3), constant(lib, 2, 3, seed=1), constant(lib, 3, seed=2)
    return (
        f.vjp(lambda x: x * x, x, v),
        f.vjp(loss, x),
        f.vjp(pair, (x, y), (y, lib.tensor(2.0, dtype=lib.float64))),
        f.vjp(lambda x: (x * 2,), (x,), (v,)),
    )


@paired("P3")
def test_jvp(lib: Any) -> Any:
    f = lib.autograd.functional
    x, y, v = constant(lib, 3), constant(lib, 2, 3, seed=1), constant(lib, 3, seed=2)
    return (
        f.jvp(lambda x: x * x, x, v),
        f.jvp(pair, (x, y), (v, y)),
        f.jvp(lambda x: (x.tanh(), x @ x), (x,), (v,)),
        f.jvp(lambda x: x.exp(), lib.tensor(2.0, dtype=lib.float64)),
    )


@paired("P3")
def test_jacobian(lib: Any) -> Any:
    jacobian = lib.autograd.functional.jacobian
    x, y = constant(lib, 3), constant(lib, 2, 3, seed=1)
    return (
        jacobian(lambda x: x * x, x),
        jacobian(loss, x),
        jacobian(lambda x, y: x * y, (x, y)),
        jacobian(pair, (x, y)),
        jacobian(lambda x: (x * 2, x.sum()), x),
        jacobian(lambda x: x * 2, (x,)),
        jacobian(lambda x: x.sin(), y, vectorize=True),
    )


@paired("P3")
def test_hessian(lib: Any) -> Any:
    hessian = lib.autograd.functional.hessian
    x, y = constant(lib, 3), constant(lib, 2, 3, seed=1)
    return (
        hessian(loss, x),
        hessian(loss_of_two, (x, y)),
        hessian(lambda x: x[:1] ** 3, x),
        hessian(loss, (x,)),
        hessian(lambda x: x.sum(), x),
        hessian(lambda x: lib.ones(()), x),
        hessian(loss, x, vectorize=True),
    )


@paired("P3")
def test_products_with_the_hessian(lib: Any) -> Any:
    x, y, v = constant(lib, 3), constant(lib, 2, 3, seed=1), constant(lib, 3, seed=2)
    results = []
    for product in (lib.autograd.functional.hvp, lib.autograd.functional.vhp):
        results += [
            product(loss, x, v),
            product(loss_of_two, (x, y), (v, y)),
            product(lambda x: x**3, lib.tensor(2.0, dtype=lib.float64)),
            product(lambda x: (x[:2] ** 3).sum().reshape(1), x, v),
            product(lambda x: x.sum(), x, v),
        ]
    return results


@paired("P3")
def test_what_does_not_depend_on_the_inputs_is_zero(lib: Any) -> Any:
    f = lib.autograd.functional
    x, y, v = constant(lib, 3), constant(lib, 2, 3, seed=1), constant(lib, 3, seed=2)

    def nothing(x: Any) -> Any:
        return lib.ones(2, dtype=lib.float64)

    def first_only(x: Any, y: Any) -> Any:
        return x * x

    return (
        f.vjp(nothing, x, lib.ones(2)),
        f.jvp(nothing, x, v),
        f.jacobian(nothing, x),
        f.vjp(first_only, (x, y), v),
        f.jvp(first_only, (x, y), (v, y)),
        f.jacobian(first_only, (x, y)),
        f.hessian(lambda x, y: loss(x), (x, y)),
        f.hvp(lambda x, y: loss(x), (x, y), (v, y)),
    )


@paired("P3")
def test_strict_refuses_independence(lib: Any) -> Any:
    f = lib.autograd.functional
    x, y, v = constant(lib, 3), constant(lib, 2, 3, seed=1), constant(lib, 3, seed=2)

    def cut(x: Any) -> Any:
        return x.detach() * 2

    def cut_loss(x: Any) -> Any:
        return cut(x).sum()

    def first_only(x: Any, y: Any) -> Any:
        return x * x

    def fails(name: str, words: str, *args: Any, **options: Any) -> Any:
        return error_of(lambda: getattr(f, name)(*args, strict=True, **options), words)

    cut_off = "does not require gradients"
    unused = "independent of input 1"
    linear = "the jacobian of the user-provided function with respect to input 0 is independent"
    return (
        [fails(name, cut_off, cut, x, v) for name in ("vjp", "jvp")],
        [fails(name, cut_off, cut_loss, x, v) for name in ("hvp", "vhp")],
        [fails(name, cut_off, cut_loss, x) for name in ("jacobian", "hessian")],
        fails("vjp", unused, first_only, (x, y), v),
        fails("jvp", unused, first_only, (x, y), (v, y)),
        fails("jacobian", unused, first_only, (x, y)),
        [fails(name, linear, lambda x: x.sum(), x, v) for name in ("hvp", "vhp")],
        fails("hessian", linear, lambda x: x.sum(), x),
        [
            fails(name, "is independent of input 0", lambda x: x * 2, x, *rest, create_graph=True)
            for name, rest in (("vjp", (v,)), ("jacobian", ()))
        ],
        fails("jacobian", "not supported together", loss, x, vectorize=True),
        f.vjp(lambda x: x * 2, x, v, strict=True),
        f.hvp(loss, x, v, strict=True),
    )


@paired("P3")
def test_create_graph_leads_back_to_the_caller(lib: Any) -> Any:
    f = lib.autograd.functional
    x, v = leaf(lib, 3), leaf(lib, 3, seed=1)
    results = []
    for result in (
        f.vjp(lambda x: x.exp(), x, v, create_graph=True)[1],
        f.jvp(lambda x: x.exp(), x, v, create_graph=True)[1],
        f.jacobian(lambda x: x.exp(), x, create_graph=True),
        f.hessian(loss, x, create_graph=True),
        f.hvp(loss, x, v, create_graph=True)[1],
        f.vhp(loss, x, v, create_graph=True)[1],
    ):
        weights = constant(lib, *result.shape, seed=3)
        found = lib.autograd.grad((result * weights).sum(), (x, v), allow_unused=True)
        results.append((result, found))
    assert x.grad is None
    return results


@paired("P3")
def test_without_create_graph_nothing_is_recorded(lib: Any) -> Any:
    f = lib.autograd.functional
    x, v = leaf(lib, 3), leaf(lib, 3, seed=1)
    seen = []

    def function(x: Any) -> Any:
        seen.append((lib.is_grad_enabled(), x.requires_grad))
        return (x * x).sum()

    with lib.no_grad():
        inside = f.vjp(function, x), f.jvp(function, x, v), f.jacobian(function, x)
    return inside, f.hessian(function, x), f.hvp(function, x, v), seen, x.grad, x.is_leaf


@paired("P3")
def test_arguments_are_tensors_or_tuples_of_tensors(lib: Any) -> Any:
    f = lib.autograd.functional
    x = constant(lib, 3)
    errors = []
    for name in NAMES:
        function = getattr(f, name)
        words = f"{name} must be either a Tensor or a tuple of Tensors"
        errors += [
            error_of(lambda function=function: function(loss, 3), f"The inputs given to {words}"),
            error_of(lambda function=function: function(loss, [x]), f"The inputs given to {words}"),
            error_of(lambda function=function: function(loss, (x, 3)), "the value at index 1"),
        ]
    for name in ("vjp", "jacobian"):
        function = getattr(f, name)
        errors.append(
            error_of(
                lambda function=function: function(lambda x: [x], x),
                "The outputs of the user-provided function",
            )
        )
    errors.append(error_of(lambda: f.jacobian(loss, lib.tensor([1, 2])), "floating point"))
    return errors


@paired("P3")
def test_the_vector_must_fit(lib: Any) -> Any:
    f = lib.autograd.functional
    x, y = constant(lib, 3), constant(lib, 4, seed=1)
    errors = []
    for name in ("vjp", "jvp", "hvp", "vhp"):
        product = getattr(f, name)
        function = (lambda x: x * 2) if name in ("vjp", "jvp") else loss
        errors += [
            error_of(lambda p=product, g=function: p(g, x), "The vector v can only be None"),
            error_of(lambda p=product, g=function: p(g, x, y), "v has invalid size"),
            error_of(lambda p=product, g=function: p(g, x, 3), "The v given to"),
            error_of(lambda p=product, g=function: p(g, x, (x, x)), "contain a single Tensor"),
        ]
    errors += [
        error_of(lambda: f.jvp(pair, (x, x), (x,)), "v is a tuple of invalid length"),
        error_of(lambda: f.jvp(pair, (x, x), (x, y)), "Entry 1 in v has invalid size"),
    ]
    return errors


@paired("P3")
def test_a_hessian_needs_one_output_with_one_element(lib: Any) -> Any:
    f = lib.autograd.functional
    x = constant(lib, 3)
    errors = []
    for name, rest in (("hessian", ()), ("hvp", (x,)), ("vhp", (x,))):
        function = getattr(f, name)
        errors += [
            error_of(lambda h=function, r=rest: h(lambda x: x * x, x, *r), "a single element"),
            error_of(lambda h=function, r=rest: h(lambda x: (loss(x),), x, *r), "a single Tensor"),
        ]
    return errors


@paired("P3")
def test_the_strategies(lib: Any) -> Any:
    f = lib.autograd.functional
    x = constant(lib, 3)
    forward = {"strategy": "forward-mode"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch compiles something deprecated
        columns = f.jacobian(lambda x: x.exp(), x, vectorize=True, **forward)
    return (
        columns,
        error_of(lambda: f.jacobian(loss, x, **forward)),
        error_of(lambda: f.jacobian(loss, x, vectorize=True, create_graph=True, **forward)),
        error_of(lambda: f.jacobian(loss, x, strategy="sideways"), "Expected strategy"),
        error_of(lambda: f.hessian(loss, x, outer_jacobian_strategy="forward-mode")),
    )


@paired("P3")
def test_through_custom_functions(lib: Any) -> Any:
    f = lib.autograd.functional
    x, v = constant(lib, 3), constant(lib, 3, seed=1)
    results = []
    for place in PLACES:
        custom = define(lib, squares, slope_of_squares, run_on=place)

        def function(x: Any, custom: Any = custom) -> Any:
            return custom.apply(x.sin())

        results += [
            f.jvp(function, x, v),
            f.jacobian(function, x),
            f.hessian(lambda x, function=function: function(x).sum(), x),
        ]
    return results


@row("P3")
def test_jvp_refuses_a_backward_that_numpy_computed() -> None:
    # Not with torch, where such a backward gives a product of zeros.
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad.detach().numpy() + x.detach().numpy()

    custom = define(mg, squares, backward)
    x = mg.ones(3)
    with pytest.raises(RuntimeError, match="not recorded"):
        mg.autograd.functional.jvp(custom.apply, x, x)
