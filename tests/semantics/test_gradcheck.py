"""Q1, Q2: gradcheck and gradgradcheck, which must find what is wrong and nothing else."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.autograd.function import once_differentiable
from mpgrad.autograd.gradcheck import GradcheckError
from tests.semantics.functions import PLACES, define, double, squares
from tests.semantics.paired import error_of, leaf, paired, row

BOTH_MODES = ({"fast_mode": False}, {"fast_mode": True})


def checked(lib: Any, function: Any, inputs: Any, **options: Any) -> list[Any]:
    """The results of both modes."""
    return [lib.autograd.gradcheck(function, inputs, **mode, **options) for mode in BOTH_MODES]


def complaints(lib: Any, function: Any, inputs: Any, *words: str, **options: Any) -> list[Any]:
    """The errors of both modes."""
    return [
        error_of(
            lambda mode=mode: lib.autograd.gradcheck(function, inputs, **mode, **options), *words
        )
        for mode in BOTH_MODES
    ]


@paired("Q1")
def test_right_gradients_pass(lib: Any) -> Any:
    x, y = leaf(lib, 2, 3), leaf(lib, 3, seed=1)

    def several(x: Any, y: Any) -> Any:
        return x.exp() * y, (x * x).sum(), y.reshape(3, 1) + x.sum(), x.argmax()

    return (
        checked(lib, lambda x: x * x, x),
        checked(lib, several, (x, y)),
        checked(lib, lambda x, y: x @ y, [x, y]),
        checked(lib, lambda x: [x * 3], (x,)),
        x.grad,
    )


@paired("Q1")
def test_a_wrong_gradient_is_found_on_either_side(lib: Any) -> Any:
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * 3 * x

    x = leaf(lib, 3)
    words = "Jacobian mismatch for output 0 with respect to input 0", "numerical:", "analytical:"
    results = []
    for place in PLACES:
        wrong = define(lib, squares, backward, run_on=place)
        results += complaints(lib, wrong.apply, x, *words)
        results += checked(lib, wrong.apply, x, raise_exception=False)
    return results


@paired("Q1")
def test_one_wrong_element_is_found(lib: Any) -> Any:
    def backward(ctx: Any, grad: Any) -> Any:
        result = grad * 2
        result[1, 2] *= 1.1
        return result

    wrong = define(lib, double, backward)
    return complaints(lib, wrong.apply, leaf(lib, 3, 4), "Jacobian mismatch")


@paired("Q1")
def test_the_names_of_output_and_input_are_told(lib: Any) -> Any:
    wrong = define(lib, lambda ctx, x, y: x * 2 + y * 3, lambda ctx, grad: (grad * 2, grad * 4))

    def function(x: Any, y: Any) -> Any:
        return x + y, wrong.apply(x, y)

    words = "Jacobian mismatch for output 1 with respect to input 1"
    return complaints(lib, function, (leaf(lib, 2), leaf(lib, 2, seed=1)), words)


@paired("Q1")
def test_a_missing_gradient_is_found(lib: Any) -> Any:
    nothing = define(lib, double, lambda ctx, grad: None)
    unused = define(lib, lambda ctx, x, y: x * 2, lambda ctx, grad: (grad * 2, None))
    x, y = leaf(lib, 3), leaf(lib, 2, seed=1)
    return (
        complaints(lib, nothing.apply, x, "Jacobian mismatch"),
        checked(lib, unused.apply, (x, y)),
    )


@paired("Q1")
def test_an_output_that_is_cut_off_must_be_constant(lib: Any) -> Any:
    x = leaf(lib, 3)
    return (
        complaints(lib, lambda x: x.detach() * 2, x, "expected to be zero"),
        checked(lib, lambda x: lib.ones(3), x),
        checked(lib, lambda x: x.argmax(), x),
    )


@paired("Q1")
def test_tolerances_and_the_step_count(lib: Any) -> Any:
    x = leaf(lib, 3)
    almost = define(lib, double, lambda ctx, grad: grad * 2.001)
    return (
        complaints(lib, almost.apply, x, "Jacobian mismatch", rtol=1e-5),
        checked(lib, almost.apply, x, rtol=1e-2),
        checked(lib, almost.apply, x, rtol=0.0, atol=0.1),
        # The difference quotient of a cube is off by the square of the step.
        complaints(lib, lambda x: x * x * x, x, "Jacobian mismatch", eps=1.0),
        checked(lib, lambda x: x * x, x, eps=1.0),
    )


@paired("Q1")
def test_a_backward_that_changes_from_run_to_run(lib: Any) -> Any:
    calls = []

    def backward(ctx: Any, grad: Any) -> Any:
        calls.append(1)
        return grad * (2 + 1e-7 * len(calls))

    moody = define(lib, double, backward)
    x = leaf(lib, 3)
    return (
        complaints(lib, moody.apply, x, "Backward is not reentrant", "nondet"),
        checked(lib, moody.apply, x, nondet_tol=1e-3, check_undefined_grad=False),
    )


@paired("Q1")
def test_backward_must_multiply_by_its_gradient(lib: Any) -> Any:
    calls = []

    def backward(ctx: Any, grad: Any) -> Any:
        calls.append(1)
        return grad * 2 + (0 if bool((grad != 0).any()) else 1)

    affine = define(lib, double, backward)
    return complaints(lib, affine.apply, leaf(lib, 3), "backward not multiplied by grad_output")


@paired("Q1")
def test_undefined_gradients_are_tried(lib: Any) -> Any:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    def careless(ctx: Any, first: Any, second: Any) -> Any:
        if first is None or second is None:
            return lib.ones(3, dtype=lib.float64)
        return first * 2 + second * 3

    def careful(ctx: Any, first: Any, second: Any) -> Any:
        parts = [g * k for g, k in ((first, 2), (second, 3)) if g is not None]
        return sum(parts) if parts else None

    def crashes(ctx: Any, first: Any, second: Any) -> Any:
        return first * 2 + second * 3

    x = leaf(lib, 3)

    def second_only(function: Any) -> Any:
        return lambda x: function.apply(x)

    words = "Expected all input grads to be undefined or zero"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells how to turn this check off
        return (
            checked(lib, second_only(define(lib, forward, careful)), x),
            error_of(
                lambda: lib.autograd.gradcheck(
                    lambda x: define(
                        lib,
                        lambda ctx, x: (ctx.set_materialize_grads(False), x * 2)[1],
                        lambda ctx, grad: lib.ones(3) if grad is None else grad * 2,
                    ).apply(x),
                    x,
                ),
                words,
            ),
            error_of(lambda: lib.autograd.gradcheck(define(lib, forward, crashes).apply, x)),
            error_of(lambda: lib.autograd.gradcheck(define(lib, forward, careless).apply, x)),
        )


@paired("Q1")
def test_misuse_is_told_apart_from_wrong_gradients(lib: Any) -> Any:
    x = leaf(lib, 3)
    none = "at least one input tensor to require gradient"
    return (
        complaints(lib, lambda x: x * 2, lib.ones(3), none),
        complaints(lib, lambda x: x * 2, (), none),
        complaints(lib, lambda x: x * 2, x, "check_backward_ad", check_backward_ad=False),
        complaints(lib, lambda x: x * 2, (x, 3)),
    )


@paired("Q1")
def test_an_input_whose_elements_share_memory(lib: Any) -> Any:
    wide = lib.broadcast_to(lib.ones(3, dtype=lib.float64), (2, 3)).requires_grad_()
    return complaints(lib, lambda x: x * 2, wide, "has a dimension with stride 0")


@paired("Q1")
def test_single_precision_is_warned_about(lib: Any) -> Any:
    x = leaf(lib, 3, dtype="float32")
    with pytest.warns(UserWarning, match="Input #0 requires gradient and is not a double"):
        return lib.autograd.gradcheck(lambda x: x * 2, x, eps=1e-2, atol=1e-2)


@paired("Q1")
def test_the_inputs_are_put_back_and_no_grad_is_touched(lib: Any) -> Any:
    x = leaf(lib, 3)
    before, version = x.detach().clone(), x._version
    checked(lib, lambda x: x.exp(), x)
    with pytest.raises(ZeroDivisionError):
        lib.autograd.gradcheck(lambda x: x * (1 / len(x.tolist()[3:])), x)
    assert x.tolist() == before.tolist()
    return x, x.grad, x._version == version


@paired("Q1")
def test_dtypes_and_batches_are_checked_on_request(lib: Any) -> Any:
    x = leaf(lib, 2, 3)
    y = leaf(lib, 3, 2, seed=1)

    def run(function: Any, inputs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch compiles something deprecated for its vmap
            return checked(lib, function, inputs, check_grad_dtypes=True, check_batched_grad=True)

    return run(lambda x: x.tanh(), x), run(lambda x, y: x @ y, (x, y))


@paired("Q1")
def test_a_function_of_a_view_and_of_what_is_no_leaf(lib: Any) -> Any:
    x = leaf(lib, 3, 2)
    computed = leaf(lib, 3) * 2
    return (
        checked(lib, lambda x: x.t().reshape(6)[1:4], x),
        checked(lib, lambda x: x.exp(), computed),
        checked(lib, lambda x: x * 2, x.detach().t().requires_grad_()),
        checked(lib, lambda x: x * x, lib.zeros(0, dtype=lib.float64).requires_grad_()),
        checked(lib, lambda x: x * x, lib.tensor(2.0, dtype=lib.float64).requires_grad_()),
    )


@row("Q1")
def test_forward_mode_is_refused_and_not_passed_over() -> None:
    # torch has it; mpgrad says that it has not.
    x = mg.ones(2, dtype=mg.float64).requires_grad_()
    for option in ("check_forward_ad", "check_batched_forward_grad"):
        with pytest.raises(NotImplementedError, match="forward-mode"):
            mg.autograd.gradcheck(lambda x: x * 2, x, **{option: True})
    with pytest.raises(NotImplementedError, match="forward-mode"):
        mg.autograd.gradgradcheck(lambda x: x * 2, x, check_fwd_over_rev=True)


@row("Q1")
def test_the_error_says_where_the_largest_difference_is() -> None:
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * mg.tensor(np.array([2.0, 2.5, 2.0]))

    wrong = define(mg, double, backward)
    with pytest.raises(GradcheckError, match=r"largest difference is 0\.5\d* at \(1, 1\)|0\.49"):
        mg.autograd.gradcheck(wrong.apply, mg.ones(3, dtype=mg.float64).requires_grad_())


# ---------------------------------------------------------------------- second derivatives


def cube(ctx: Any, x: Any) -> Any:
    ctx.save_for_backward(x)
    return x * x * x


def slope_of_cube(ctx: Any, grad: Any) -> Any:
    (x,) = ctx.saved_tensors
    return grad * 3 * x * x


@paired("Q2")
def test_right_second_derivatives_pass(lib: Any) -> Any:
    x, y = leaf(lib, 3), leaf(lib, 3, seed=1)
    custom = define(lib, cube, slope_of_cube)
    return [
        lib.autograd.gradgradcheck(function, inputs, **mode)
        for mode in BOTH_MODES
        for function, inputs in (
            (lambda x: x * x * x, x),
            (lambda x, y: (x * y).exp().sum(), (x, y)),
            (lambda x, y: (x.tanh(), x * y * y), (x, y)),
            (custom.apply, x),
        )
    ]


@paired("Q2")
def test_a_wrong_second_derivative_is_found(lib: Any) -> Any:
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * 3 * x * x.detach()  # right, but its own derivative is not

    custom = define(lib, cube, backward)
    x = leaf(lib, 3)
    assert lib.autograd.gradcheck(custom.apply, x)
    return [
        error_of(
            lambda mode=mode: lib.autograd.gradgradcheck(custom.apply, x, **mode),
            "Jacobian mismatch",
        )
        for mode in BOTH_MODES
    ] + [lib.autograd.gradgradcheck(custom.apply, x, raise_exception=False)]


@paired("Q2")
def test_seeds_may_be_given_or_scattered(lib: Any) -> Any:
    x, seed = leaf(lib, 2, 3), leaf(lib, 2, 3, seed=1)
    return (
        lib.autograd.gradgradcheck(lambda x: x.exp(), x, seed),
        lib.autograd.gradgradcheck(lambda x: x.exp(), (x,), [seed.detach()]),
        lib.autograd.gradgradcheck(lambda x: x.exp(), x, gen_non_contig_grad_outputs=True),
        error_of(
            lambda: lib.autograd.gradgradcheck(
                lambda x: x, x, check_rev_over_rev=False, check_fwd_over_rev=False
            ),
            "check_rev_over_rev",
        ),
    )


@row("Q2", "E6")
def test_once_differentiable_fails_gradgradcheck() -> None:
    # torch answers with a Jacobian of zeros: there its error is behind a Node that leads nowhere.
    custom = define(mg, cube, once_differentiable(slope_of_cube))
    x = leaf(mg, 3)
    assert mg.autograd.gradcheck(custom.apply, x)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        mg.autograd.gradgradcheck(custom.apply, x)


@paired("Q1")
def test_a_backward_that_cannot_bear_undefined_gradients_says_so(lib: Any) -> Any:
    def refusing(grad: Any) -> None:
        if grad is None:
            raise RuntimeError("it is undefined")

    def function(x: Any) -> Any:
        y = x.clone()
        y.register_hook(refusing)
        return y

    check = lib.autograd.gradcheck
    x = leaf(lib, 1)
    with pytest.warns(UserWarning, match="undefined gradient support"):
        error = error_of(lambda: check(function, (x,)), "to handle undefined output grads")
    return error, check(function, (x,), check_undefined_grad=False)


@paired("Q1")
def test_pytorchs_older_jacobians(lib: Any) -> Any:
    module = importlib.import_module(f"{lib.__name__}.autograd.gradcheck")
    a, b = leaf(lib, 2, 2), leaf(lib, 2, 2, seed=1)

    def function(x: Any, y: Any) -> Any:
        return 2 * x + y, x + 2 * y

    with pytest.warns(FutureWarning, match="private API"):
        numerical = module.get_numerical_jacobian(lambda pair: function(*pair), (a, b), eps=1e-6)
    with pytest.warns(FutureWarning, match="private API"):
        of_a = module.get_numerical_jacobian(lambda pair: function(*pair), (a, b), a, 1e-6)
    with pytest.warns(FutureWarning, match="private API"):
        analytical, *rest = module.get_analytical_jacobian((a, b), function(a, b)[0])
    with pytest.warns(FutureWarning):
        refused = error_of(
            lambda: module.get_analytical_jacobian((a,), a * 2, grad_out=2.0), "grad_out to be 1.0"
        )
    return [(2 * n).round() / 2 for n in (*numerical, *of_a)], list(analytical), rest, refused
