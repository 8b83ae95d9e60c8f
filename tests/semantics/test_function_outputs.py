"""Group H: what a custom Function returns from forward and from backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.semantics.functions import (
    PLACES,
    define,
    double,
    doubled_in_place,
    twice_the_gradient,
)
from tests.semantics.paired import error_of, leaf, paired

# ---------------------------------------------------------------------- changes in place


@paired("H8")
def test_mark_dirty_rewrites_the_history_of_the_input(lib: Any) -> Any:
    x = leaf(lib, 3)
    results = []
    for place in PLACES:
        y = x * 3
        before = y._version
        out = define(lib, doubled_in_place, twice_the_gradient, run_on=place).apply(y)
        assert out is y
        (grad,) = lib.autograd.grad((y * y).sum(), x)
        results.append((y, y.grad_fn.name(), y._version - before, y.is_leaf, grad))
    return results


@paired("H8")
def test_mark_dirty_makes_a_constant_require_grad(lib: Any) -> Any:
    def forward(ctx: Any, target: Any, factor: Any) -> Any:
        target.mul_(factor)
        ctx.mark_dirty(target)
        return target

    target, factor = lib.ones(3, dtype=lib.float64), leaf(lib, 3)
    out = define(lib, forward, lambda ctx, grad: (grad, grad * 5)).apply(target, factor)
    target.sum().backward()
    return out is target, target, target.is_leaf, target._version, factor.grad


@paired("H8")
def test_mark_dirty_without_recording_counts_the_change(lib: Any) -> Any:
    custom = define(lib, doubled_in_place, twice_the_gradient)
    constant = lib.ones(2)
    out = custom.apply(constant)
    with lib.no_grad():
        x = leaf(lib, 2)
        quiet = custom.apply(x)
    return out is constant, constant._version, quiet, x._version, x.is_leaf


@paired("H8", "H5")
def test_who_saved_the_old_values_finds_out_about_mark_dirty(lib: Any) -> Any:
    y = leaf(lib, 3) * 3
    square = y * y
    define(lib, doubled_in_place, twice_the_gradient).apply(y)
    return error_of(square.sum().backward, "modified by an inplace operation")


@paired("H8")
def test_mark_dirty_refuses_what_it_cannot_do(lib: Any) -> Any:
    def forgets(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x * 2

    def no_tensor(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(3)
        return x * 2

    def no_input(ctx: Any, x: Any) -> Any:
        y = x * 2
        ctx.mark_dirty(y)
        return y

    def run(forward: Any, x: Any) -> Any:
        return define(lib, forward, twice_the_gradient).apply(x)

    x = leaf(lib, 2)
    with pytest.warns(UserWarning, match="a tensor that was not an input"):
        out = run(no_input, x)
    return (
        error_of(
            lambda: run(doubled_in_place, x), "a leaf Variable that requires grad", "in-place"
        ),
        error_of(lambda: run(forgets, x * 1), "marked as dirty", "not returned as output"),
        error_of(lambda: run(no_tensor, x * 1), "mark_dirty can only accept variable"),
        out,
    )


# ---------------------------------------------------------------------- outputs


@paired("H9")
def test_mark_non_differentiable_outputs_get_zeros(lib: Any) -> Any:
    def forward(ctx: Any, x: Any) -> Any:
        y, mask = x * 2, x * 3
        ctx.mark_non_differentiable(mask)
        return y, mask

    x = leaf(lib, 3)
    results = []
    for place in PLACES:
        custom = define(lib, forward, lambda ctx, grad, other: grad + other + 1, run_on=place)
        y, mask = custom.apply(x)
        results += [*lib.autograd.grad(y.sum(), x), mask, mask.grad_fn]
    return results


@paired("H9")
def test_non_differentiable_outputs_may_get_none(lib: Any) -> Any:
    shown = []

    class Two(lib.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            first, second = x.clone(), x.clone()
            ctx.mark_non_differentiable(second)
            ctx._materialize_non_diff_grads = False
            return first, second

        @staticmethod
        def backward(ctx: Any, one: Any, two: Any) -> Any:
            shown.append(two is None)
            return one * 2

    x = leaf(lib, 3)
    Two.apply(x)[0].sum().backward()
    return shown, x.grad


@paired("H10")
def test_undefined_gradients_reach_a_function_as_zeros_or_none(lib: Any) -> Any:
    shown = []

    def function(materialize: bool) -> Any:
        class Same(lib.autograd.Function):  # type: ignore[misc, name-defined]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.set_materialize_grads(materialize)
                return x * 1

            @staticmethod
            def backward(ctx: Any, grad: Any) -> Any:
                shown.append(None if grad is None else grad.sum().item())
                return grad

        return Same

    x = leaf(lib, 3)
    for materialize in (True, False):
        stopped = lib._C._functions.UndefinedGrad()(function(materialize).apply(x))
        stopped.sum().backward()
    return shown, x.grad


@paired("H13")
def test_a_view_returned_without_recording_stays_a_view(lib: Any) -> Any:
    class Alias(lib.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x[:]

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad

    x = leaf(lib, 2)
    with lib.no_grad():
        output = Alias.apply(x)
    return output.requires_grad, error_of(
        lambda: output.zero_(), "A view was created in no_grad mode and is being modified inplace"
    )


@paired("H13")
def test_a_view_that_forward_has_changed_keeps_the_history_of_its_function(lib: Any) -> Any:
    class Changed(lib.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            view = x.clone()[:2]
            view += 2
            return view

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return lib.cat([grad, grad * 0])

    x = leaf(lib, 4)
    y = Changed.apply(x)
    y.sum().backward()
    return type(y.grad_fn).__name__, y, x.grad


@paired("H9")
def test_mark_non_differentiable_on_an_input_and_on_no_tensor(lib: Any) -> Any:
    def as_is(ctx: Any, x: Any) -> Any:
        ctx.mark_non_differentiable(x)
        return x

    def number(ctx: Any, x: Any) -> Any:
        ctx.mark_non_differentiable(3)
        return x * 2

    x = leaf(lib, 2)
    out = define(lib, as_is, None).apply(x)
    error = error_of(lambda: define(lib, number, None).apply(x), "mark_non_differentiable")
    return out is x, out, x.requires_grad, error


@paired("H10")
def test_undefined_gradients_arrive_as_zeros_or_as_none(lib: Any) -> Any:
    def forward(ctx: Any, x: Any, materialize: bool) -> Any:
        ctx.set_materialize_grads(materialize)
        ctx.materialize = materialize
        return x * 2, x * 3

    def backward(ctx: Any, first: Any, second: Any) -> Any:
        assert (second is not None) == ctx.materialize
        return first + 1 if second is None else first + second, None

    x = leaf(lib, 3)
    results = []
    for place in PLACES:
        custom = define(lib, forward, backward, run_on=place)
        for materialize in (True, False):
            results += lib.autograd.grad(custom.apply(x, materialize)[0].sum(), x)
    return results


@paired("H10")
def test_set_materialize_grads_takes_a_bool(lib: Any) -> Any:
    custom = define(lib, lambda ctx, x: ctx.set_materialize_grads(1), None)
    return error_of(lambda: custom.apply(leaf(lib, 2)), "set_materialize_grads")


@paired("H11")
def test_an_input_returned_as_is_becomes_a_new_tensor(lib: Any) -> Any:
    x = leaf(lib, 3)
    results = []
    for place in PLACES:
        y = define(lib, lambda ctx, x: x, lambda ctx, grad: grad * 5, run_on=place).apply(x)
        assert y is not x
        assert x.is_leaf
        results.append((y, y.grad_fn.name(), lib.autograd.grad(y.sum(), x)))
    with lib.no_grad():
        x.mul_(2)  # both lie over the same memory and count its changes together
    return results, y, y._version == x._version


@paired("H12")
def test_the_same_tensor_returned_twice(lib: Any) -> Any:
    def forward(ctx: Any, x: Any) -> Any:
        y = x * 2
        return y, y

    x = leaf(lib, 2)
    results = []
    for place in PLACES:
        custom = define(lib, forward, lambda ctx, a, b: a * 10 + b, run_on=place)
        first, second = custom.apply(x)
        assert first is second
        results.append((first.output_nr, lib.autograd.grad((first + 3 * second).sum(), x)))
    return results


@paired("H12")
def test_an_input_returned_twice_gives_two_tensors(lib: Any) -> Any:
    x = leaf(lib, 2)
    custom = define(lib, lambda ctx, x: (x, x), lambda ctx, a, b: a * 10 + b)
    first, second = custom.apply(x)
    (grad,) = lib.autograd.grad((first + 3 * second).sum(), x)
    return first is second, first.output_nr, second.output_nr, grad


@paired("H14")
def test_values_that_are_no_tensors_pass_through(lib: Any) -> Any:
    def forward(ctx: Any, x: Any, name: str, flag: Any) -> Any:
        return x * 2, name, 3, None, [name], x * 3

    def backward(ctx: Any, *grads: Any) -> Any:
        assert [grad is None for grad in grads] == [False, True, True, True, True, False]
        return grads[0] * grads[5], None, None

    x = leaf(lib, 2)
    results = []
    for place in PLACES:
        out = define(lib, forward, backward, run_on=place).apply(x, "name", True)
        results.append((out, [getattr(o, "output_nr", None) for o in out]))
        results += lib.autograd.grad((out[0] + out[5]).sum(), x)
    alone = define(lib, lambda ctx, x: None, backward).apply(x)
    return results, alone, define(lib, lambda ctx, x: (), backward).apply(x)


@paired("H14")
def test_a_gradient_for_what_was_no_tensor(lib: Any) -> Any:
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, grad

    x = leaf(lib, 2)
    return [
        error_of(
            lambda place=place: (
                define(lib, lambda ctx, x, k: x * k, backward, run_on=place)
                .apply(x, 2.0)
                .sum()
                .backward()
            ),
            "function CustomBackward returned a gradient different than None at position 2",
            "the corresponding forward input was not a Variable",
        )
        for place in PLACES
    ]


@paired("H15")
def test_the_number_of_gradients(lib: Any) -> Any:
    def run(returned: Callable[[Any], Any], place: str) -> Any:
        custom = define(lib, lambda ctx, x, y: x * y, lambda ctx, g: returned(g), run_on=place)
        x = leaf(lib, 2)
        return lib.autograd.grad(custom.apply(x, leaf(lib, 2)).sum(), x)

    words = "function CustomBackward returned an incorrect number of gradients (expected 2, got "
    return [
        (
            error_of(lambda place=place: run(lambda g: g, place), f"{words}1)"),
            error_of(lambda place=place: run(lambda g: (g, g, g), place), f"{words}3)"),
            run(lambda g: (g, g, None, None), place),
        )
        for place in PLACES
    ]


@paired("H16")
def test_a_gradient_is_a_tensor_or_none(lib: Any) -> Any:
    errors = []
    for place in PLACES:
        for wrong in ("text", [1.0], {}):
            custom = define(lib, double, lambda ctx, grad, wrong=wrong: wrong, run_on=place)
            out = custom.apply(leaf(lib, 2)).sum()
            errors.append(error_of(out.backward, "expected Variable or None (got "))
    return errors


@paired("H17")
def test_shape_and_dtype_of_a_gradient_are_brought_into_line(lib: Any) -> Any:
    def run(returned: Callable[[Any], Any], place: str) -> Any:
        x = leaf(lib, 2)
        custom = define(lib, double, lambda ctx, grad: returned(grad), run_on=place)
        return lib.autograd.grad(custom.apply(x).sum(), x)

    return [
        (
            run(lambda grad: lib.ones(5, 2), place),
            run(lambda grad: lib.ones(2, dtype=lib.float32) * 0.1, place),
            run(lambda grad: lib.ones(2, dtype=lib.int64), place),
            error_of(
                lambda place=place: run(lambda grad: lib.ones(3), place),
                "Function CustomBackward returned an invalid gradient at index 0 - got [3] but "
                "expected shape compatible with [2]",
            ),
        )
        for place in PLACES
    ]


@paired("H18")
def test_none_stays_undefined_and_is_not_zeros(lib: Any) -> Any:
    x = leaf(lib, 2)
    results = []
    for place in PLACES:
        nothing = define(lib, double, lambda ctx, grad: None, run_on=place)
        nothing.apply(x).sum().backward()
        nothing.apply(x * 3 + 1).sum().backward()
        assert x.grad is None
        # A Function behind it runs all the same, with the zeros it asks for by default.
        (grad,) = lib.autograd.grad(
            nothing.apply(define(lib, double, twice_the_gradient, run_on=place).apply(x)).sum(), x
        )
        results.append(grad)
    return results


@paired("H19")
def test_nothing_is_recorded_where_nothing_requires_grad(lib: Any) -> Any:
    kept = []

    def forward(ctx: Any, x: Any) -> Any:
        ctx.note = "kept"
        ctx.save_for_backward(x)
        kept.append(ctx)
        return x * 2

    custom = define(lib, forward, None)
    out = custom.apply(lib.ones(2))
    with lib.no_grad():
        quiet = custom.apply(leaf(lib, 2))
    ctx = kept[0]
    return (
        out,
        quiet,
        ctx.note,
        ctx.saved_tensors,
        ctx.needs_input_grad,
        ctx.next_functions,
        ctx.metadata,
    )


@paired("H21")
def test_integer_and_bool_outputs_have_no_gradient(lib: Any) -> Any:
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2, x.argmax(), x > 0

    def backward(ctx: Any, grad: Any, index: Any, mask: Any) -> Any:
        assert (index.shape, mask.shape) == ((), (3,))
        assert not bool(index)
        return grad

    x = leaf(lib, 3)
    results = []
    for place in PLACES:
        out = define(lib, forward, backward, run_on=place).apply(x)
        results.append((out, lib.autograd.grad(out[0].sum(), x)))
    return results
