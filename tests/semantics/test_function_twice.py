"""E6, H20: custom Functions under create_graph."""

from __future__ import annotations

from typing import Any

import numpy as np

import mpgrad as mg
from tests.semantics.functions import PLACES, define, slope_of_squares, squares
from tests.semantics.paired import error_of, leaf, paired, row


def cube(ctx: Any, x: Any) -> Any:
    ctx.save_for_backward(x)
    return x * x * x


def slope_of_cube(ctx: Any, grad: Any) -> Any:
    (x,) = ctx.saved_tensors
    return grad * 3 * x * x


@paired("H20", "E6")
def test_recording_is_on_in_backward_only_with_create_graph(lib: Any) -> Any:
    seen = []

    def backward(ctx: Any, grad: Any) -> Any:
        seen.append(lib.is_grad_enabled())
        return slope_of_cube(ctx, grad)

    x = leaf(lib, 3)
    seed = lib.ones(3, dtype=lib.float64).requires_grad_()
    y = define(lib, cube, backward).apply(x)
    plain = lib.autograd.grad(y, x, seed, retain_graph=True)
    recorded = lib.autograd.grad(y, x, seed, create_graph=True)
    with lib.no_grad():
        inside = lib.autograd.grad(y, x, seed, create_graph=True)
    return seen, plain, recorded, inside


@paired("H20", "E6")
def test_second_and_third_derivatives_of_a_function(lib: Any) -> Any:
    x = leaf(lib, 3)
    results = []
    for place in PLACES:
        y = define(lib, cube, slope_of_cube, run_on=place).apply(x)
        (first,) = lib.autograd.grad((y * y).sum(), x, create_graph=True)
        (second,) = lib.autograd.grad(first.sum(), x, create_graph=True)
        (third,) = lib.autograd.grad(second.sum(), x)
        results.append((first, second, third))
    return results


@paired("H20", "E6")
def test_a_double_backward_that_is_a_function_too(lib: Any) -> Any:
    class Slope(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, grad: Any, x: Any) -> Any:
            ctx.save_for_backward(grad, x)
            return grad * 2 * x

        @staticmethod
        def backward(ctx: Any, outer: Any) -> Any:
            grad, x = ctx.saved_tensors
            return outer * 2 * x, outer * 2 * grad

    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return Slope.apply(grad, x)

    x = leaf(lib, 3)
    y = define(lib, squares, backward).apply(x.sin())
    (first,) = lib.autograd.grad(y.sum(), x, create_graph=True)
    (first * first).sum().backward()
    return first, first.grad_fn is not None, x.grad


@paired("H20", "E6")
def test_a_saved_output_leads_back_to_its_node(lib: Any) -> Any:
    def forward(ctx: Any, x: Any) -> Any:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    def backward(ctx: Any, grad: Any) -> Any:
        (y,) = ctx.saved_tensors
        return grad * y

    x = leaf(lib, 3)
    y = define(lib, forward, backward).apply(x)
    (first,) = lib.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = lib.autograd.grad(first.sum(), x, create_graph=True)
    return first, second, lib.autograd.grad(second.sum(), x)


@paired("H10", "H20")
def test_undefined_gradients_under_create_graph(lib: Any) -> Any:
    def forward(ctx: Any, x: Any, materialize: bool) -> Any:
        ctx.set_materialize_grads(materialize)
        return x * 2, x * 3

    seen = []

    def backward(ctx: Any, first: Any, second: Any) -> Any:
        seen.append([first is None, second is None])
        return second * 3, None

    x = leaf(lib, 3)
    results = []
    for materialize in (True, False):
        y = define(lib, forward, backward).apply(x, materialize)[1]
        (first,) = lib.autograd.grad((y * y).sum(), x, create_graph=True)
        results += [first, *lib.autograd.grad(first.sum(), x)]
    return seen, results


@paired("E6")
def test_once_differentiable_runs_unrecorded_and_refuses_the_second_time(lib: Any) -> Any:
    modes = []
    once = lib.autograd.function.once_differentiable

    def slope(ctx: Any, grad: Any) -> Any:
        modes.append((lib.is_grad_enabled(), grad.requires_grad))
        return slope_of_squares(ctx, grad)

    custom = define(lib, squares, once(slope))
    x = leaf(lib, 3)
    custom.apply(x).sum().backward()
    (first,) = lib.autograd.grad((custom.apply(x) ** 2).sum(), x, create_graph=True)
    error = error_of(
        first.sum().backward,
        "trying to differentiate twice a function that was marked with @once_differentiable",
    )
    return x.grad, first, error, modes


@paired("E6")
def test_once_differentiable_of_a_linear_function_has_nothing_to_refuse(lib: Any) -> Any:
    once = lib.autograd.function.once_differentiable
    custom = define(lib, squares, once(slope_of_squares))
    x = leaf(lib, 3)
    # The seed does not require grad, so neither does what backward makes of it.
    (first,) = lib.autograd.grad(custom.apply(x).sum(), x, create_graph=True)
    return first


@paired("E6")
def test_once_differentiable_with_several_results(lib: Any) -> Any:
    once = lib.autograd.function.once_differentiable

    def forward(ctx: Any, x: Any, y: Any, k: int) -> Any:
        return x * y * k

    def backward(ctx: Any, grad: Any) -> Any:
        return grad * 2, None, None

    x, y = leaf(lib, 3), leaf(lib, 3, seed=1)
    seed = lib.ones(3, dtype=lib.float64).requires_grad_()
    out = define(lib, forward, once(backward)).apply(x, y, 2)
    found = lib.autograd.grad(out, (x, y), seed, create_graph=True, allow_unused=True)
    return found, error_of(found[0].sum().backward, "@once_differentiable")


@row("E6")
def test_what_numpy_computed_counts_as_constant() -> None:
    # Not with torch: a NumPy array is no gradient there.
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad.detach().numpy() * 2 * x.detach().numpy()

    x = leaf(mg, 3)
    y = define(mg, squares, backward).apply(x)
    (first,) = mg.grad((y * y).sum(), x, create_graph=True)
    assert not first.requires_grad
    np.testing.assert_allclose(first.numpy(), 4 * x.detach().numpy() ** 3)
