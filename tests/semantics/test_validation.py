"""Group C: how gradients are summed, and what is checked of the gradients that rules return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.semantics.paired import error_of, leaf, paired, values


def returning(lib: Any, gradients: Callable[..., Any], forward: Any = None) -> Any:
    """A Function whose backward returns ``gradients(grad)``; it is called MyFn."""

    class MyFn(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            return forward(*inputs) if forward is not None else inputs[0] * 2

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return gradients(*grads)

    return MyFn


def ones(lib: Any, *shape: int, dtype: str = "float64") -> Any:
    return lib.ones(shape, dtype=getattr(lib, dtype))


# ---------------------------------------------------------------------- sums


@paired("C1")
def test_contributions_are_added_in_a_fixed_order(lib: Any) -> Any:
    x = leaf(lib, 3)
    results = []
    for scales in ((1e16, 1.0, -1e16), (1.0, 1e16, -1e16), (1e16, -1e16, 1.0)):
        loss = sum((x * scale).sum() for scale in scales)
        results.append(lib.autograd.grad(loss, x)[0].tolist())
    return results  # 0 or 1, as the order has it


@paired("C1", "C2")
def test_a_wide_sum(lib: Any) -> Any:
    x = leaf(lib, 5, dtype="float32")
    y = x * 1
    total = sum((y * float(factor)).sum() for factor in values(40, seed=3))
    total.backward()
    return x.grad


@paired("C2")
def test_sums_change_no_gradient_that_a_user_sees(lib: Any) -> Any:
    x, kept = leaf(lib, 3), []
    Passed = returning(lib, lambda grad: kept.append(grad) or (grad, grad), lambda a, b: a + b)
    y, z = x * 2, x * 3
    y.retain_grad()
    y.register_hook(lambda grad: kept.append(grad))
    (Passed.apply(y, z).exp() + y.sin() + z).sum().backward()
    (y.detach() * x).sum().backward()
    return [grad.detach() for grad in kept], y.grad, x.grad


@paired("C2")
def test_one_seed_may_serve_several_roots(lib: Any) -> Any:
    x, seed = leaf(lib, 3), lib.tensor(values(3, seed=2))
    y = x * 1
    lib.autograd.backward([y, y, x], [seed, seed, seed])
    return x.grad, seed


@paired("C3")
def test_a_sum_is_differentiable(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x * x
    loss = (y * y + y.exp() + x * y).sum()
    (first,) = lib.autograd.grad(loss, x, create_graph=True)
    (second,) = lib.autograd.grad(first.sum(), x, create_graph=True)
    return first, second, lib.autograd.grad(second.sum(), x)


@paired("C4")
def test_an_undefined_contribution_is_left_out(lib: Any) -> Any:
    Dropped = returning(lib, lambda grad: None)
    x = leaf(lib, 3)
    y = x * 2
    (Dropped.apply(y).sum() + (y * 3).sum()).backward()
    alone, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    Dropped.apply(alone * 2).sum().backward()
    Second = returning(lib, lambda grad: (None, grad), lambda a, b: a * b)
    Second.apply(alone, w).sum().backward()
    return x.grad, alone.grad, w.grad


@paired("C4")
def test_an_undefined_gradient_counts_as_unused(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = returning(lib, lambda grad: None).apply(x * 2).sum()
    return (
        lib.autograd.grad(y, x, allow_unused=True, retain_graph=True),
        lib.autograd.grad(y, x, materialize_grads=True, retain_graph=True),
        error_of(lambda: lib.autograd.grad(y, x), "appears to not have been used in the graph"),
    )


# ---------------------------------------------------------------------- number and shape


@paired("C6")
def test_as_many_gradients_as_inputs(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)

    def run(gradients: Callable[..., Any], *inputs: Any) -> Any:
        return returning(lib, gradients).apply(*inputs).sum().backward

    words = "MyFnBackward returned an incorrect number of gradients"
    errors = [
        error_of(run(lambda grad: (grad, grad), x), words, "expected 1, got 2"),
        error_of(run(lambda grad: grad, x, w), words, "expected 2, got 1"),
        error_of(run(lambda grad: (), x), words, "expected 1, got 0"),
    ]
    run(lambda grad: (grad, None, None), x)()  # more, if all of them are None
    return errors, x.grad, w.grad


@paired("C7")
def test_a_gradient_is_summed_to_the_shape_of_its_input(lib: Any) -> Any:
    x, column, empty = leaf(lib, 3), leaf(lib, 3, 1, seed=1), leaf(lib, 0)
    wide = lib.tensor(values(2, 4, 3, seed=2))
    returning(lib, lambda grad: wide).apply(x).sum().backward()
    cube = lib.tensor(values(5, 3, 4, seed=3))
    returning(lib, lambda grad: cube).apply(column).sum().backward()
    returning(lib, lambda grad: ones(lib, 4, 0)).apply(empty).sum().backward()
    return x.grad, column.grad, empty.grad


@paired("C7")
def test_a_gradient_of_another_shape_is_an_error(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    words = "Function MyFnBackward returned an invalid gradient at index"

    def refused(gradients: Any, *words: str) -> Any:
        y = returning(lib, gradients, lambda a, b: a + b).apply(x, w)
        return error_of(y.sum().backward, *words)

    return (
        refused(
            lambda grad: (ones(lib, 4), grad),
            f"{words} 0 - got [4] but expected shape compatible with [3]",
        ),
        refused(
            lambda grad: (grad, ones(lib, 3, 2)),
            f"{words} 1 - got [3, 2] but expected shape compatible with [3]",
        ),
        refused(lambda grad: (ones(lib, 1), grad), "got [1] but"),  # would have to be expanded
        refused(lambda grad: (ones(lib), grad), "got [] but"),
        x.grad,
        w.grad,
    )


@paired("C7")
def test_a_gradient_that_nobody_wants_is_not_checked(lib: Any) -> Any:
    x, constant = leaf(lib, 3), lib.tensor(values(3, seed=1))
    Odd = returning(lib, lambda grad: (grad, ones(lib, 7)), lambda a, b: a + b)
    Odd.apply(x, constant).sum().backward()
    return x.grad


# ---------------------------------------------------------------------- dtype and layout


@paired("C8")
def test_a_gradient_is_cast_to_the_dtype_of_its_input(lib: Any) -> Any:
    results = []
    for mine, theirs in (
        ("float32", "float64"),
        ("float64", "float32"),
        ("float32", "int64"),
        ("float64", "bool"),
        ("float32", "float16"),
    ):
        x = leaf(lib, 3, dtype=mine)
        given = lib.tensor([0, 1, 1]).to(getattr(lib, theirs))
        returning(lib, lambda grad, given=given: given).apply(x * 1).sum().backward()
        results.append(x.grad)
    return results


@paired("C8")
def test_mixed_dtypes_meet_in_one_graph(lib: Any) -> Any:
    single, double = leaf(lib, 3, dtype="float32"), leaf(lib, 3, seed=1)
    y = single * double
    (y.to(lib.float32) * single).sum().backward()
    return y, single.grad, double.grad


@paired("C8", "C12")
def test_a_complex_gradient_of_a_real_input_is_an_error(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = returning(lib, lambda grad: grad * (1 + 2j)).apply(x)
    return error_of(y.sum().backward), x.grad


@paired("C2", "D5")
def test_a_gradient_may_lie_in_memory_in_any_way(lib: Any) -> Any:
    x, w = leaf(lib, 2, 3), leaf(lib, 2, 3, seed=1)
    turned = lib.tensor(values(3, 2, seed=2)).permute(1, 0)
    returning(lib, lambda grad: turned).apply(x).sum().backward()
    w.sum().backward()  # its gradient is one expanded number
    w.grad.mul_(2)
    return x.grad, x.grad.is_contiguous(), w.grad, w.grad.is_contiguous()


@paired("C11", "A4")
def test_seeds_are_cast_like_any_gradient(lib: Any) -> Any:
    x, results = leaf(lib, 3, dtype="float32"), []
    y = x * 2
    for dtype in ("float64", "int64", "bool", "float16"):
        seed = lib.tensor([0, 1, 1]).to(getattr(lib, dtype))
        results += lib.autograd.grad(y, x, seed, retain_graph=True)
    strided = lib.tensor(values(3, 2)).permute(1, 0)[1]
    y.backward(strided)
    return results, x.grad


# ---------------------------------------------------------------------- complex numbers


def complex_leaf(lib: Any, seed: int = 0) -> Any:
    data = values(3, seed=seed) + 1j * values(3, seed=seed + 100)
    return lib.tensor(data).requires_grad_()


@paired("C12")
def test_a_real_input_of_a_complex_operation_gets_the_real_part(lib: Any) -> Any:
    x, z = leaf(lib, 3), complex_leaf(lib)
    product = x * z
    (product * product).real.sum().backward()
    return x.grad, z.grad


@paired("C12")
def test_a_real_gradient_of_a_complex_input_becomes_complex(lib: Any) -> Any:
    z = complex_leaf(lib)
    given = lib.tensor(values(3, seed=7))
    y = returning(lib, lambda grad: given).apply(z)
    y.real.sum().backward()
    return z.grad


@paired("A5")
def test_a_seed_is_complex_where_its_root_is(lib: Any) -> Any:
    x, z = leaf(lib, 3), complex_leaf(lib)
    real, imaginary = ones(lib, 3), lib.tensor(values(3) * 1j)
    words = "For complex Tensors, both grad_output and output are required to have the same dtype"
    w = z * 2
    w.backward(imaginary)
    return (
        error_of(lambda: (x * 2).backward(imaginary), words, "grad_output[0]"),
        error_of(lambda: (z * 2).backward(real), words),
        z.grad,
    )


@paired("A2")
def test_a_complex_root_needs_a_seed(lib: Any) -> Any:
    z = complex_leaf(lib)
    words = "grad can be implicitly created only for real scalar outputs but got"
    return error_of((z * z).sum().backward, words), z.grad
