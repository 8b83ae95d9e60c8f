"""Group J, in-place operations: what they record, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from tests.ops.cases import CASES
from tests.semantics.paired import error_of, leaf, paired, row, values

#: In-place methods of one argument less than their operator, and values that suit them.
_UNARY = (
    "abs neg square exp expm1 sin cos tan sinh cosh tanh sigmoid erf relu sign floor ceil round "
    "arctan exp2 sgn trunc"
)
_POSITIVE = "log log1p sqrt rsqrt reciprocal log2 log10"


@paired("J5")
def test_every_unary_form_is_recorded(lib: Any) -> Any:
    found = {}
    for name in (_UNARY + " " + _POSITIVE).split():
        x = leaf(lib, 5)
        y = x * x + 0.5 if name in _POSITIVE.split() else x * 0.7
        same = getattr(y, name + "_")()
        assert same is y
        y.sum().backward()
        found[name] = (y, y._version, x.grad)
    return found


@paired("J5")
def test_every_binary_form_is_recorded(lib: Any) -> Any:
    found = {}
    for name in ("add", "sub", "mul", "div", "multiply", "divide", "subtract"):
        x, w = leaf(lib, 2, 3), leaf(lib, 3, seed=1)
        y = x * 2
        getattr(y, name + "_")(w)
        getattr(y, name + "_")(1.5)
        y.pow(2).sum().backward()
        found[name] = (y, y._version, x.grad, w.grad)
    return found


@paired("J5")
def test_powers_limits_and_remainders(lib: Any) -> Any:
    x, w = leaf(lib, 4), leaf(lib, 4, seed=1)
    found = []
    for change in (
        lambda y: y.pow_(2),
        lambda y: y.abs_().pow_(w),
        lambda y: y.clamp_(-0.2, 0.3),
        lambda y: y.clamp_(min=0.1),
        lambda y: y.clamp_(w.detach() - 1, w.detach() + 1),
        lambda y: y.clip_(max=0.0),
        lambda y: y.clamp_min_(-0.1).clamp_max_(0.2),
        lambda y: y.atan2_(w),
        lambda y: y.mul_(0.3).asin_(),
        lambda y: y.remainder_(0.3),
        lambda y: y.add_(w, alpha=3).sub_(w, alpha=0.5),
    ):
        y = change(x * 1.1)
        found.append((y, *lib.autograd.grad(y.sum(), [x, w], allow_unused=True)))
    return found


@paired("J5")
def test_pythons_operators(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    y = same = x * 1
    y += w
    y *= 2
    y -= w * w
    y /= 3
    y **= 2
    assert y is same
    y.sum().backward()
    return y, y._version, x.grad, w.grad


@paired("J5")
def test_a_constant_begins_to_require_grad(lib: Any) -> Any:
    y = lib.zeros(3, dtype=lib.float64)
    flags = [y.requires_grad, y.is_leaf]
    w = leaf(lib, 3)
    y.add_(w)
    flags += [y.requires_grad, y.is_leaf, y.grad_fn is not None]
    y.mul_(w).sum().backward()
    return flags, w.grad


@paired("J5", "J2")
def test_old_values_that_the_formula_needs_are_kept(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    y = x * 1
    y.mul_(w)
    y.div_(w)
    y.mul_(w).sin_()
    y.sum().backward()
    return x.grad, w.grad


@paired("J2")
def test_results_that_were_saved_may_not_change(lib: Any) -> Any:
    words = "modified by an inplace operation", "is at version 1; expected version 0", "Hint"
    found = []
    for saves in (
        lambda x: x.exp(),
        lambda x: x.tanh(),
        lambda x: x.sigmoid(),
        lambda x: x.softmax(0),
        lambda x: (x * x + 1).sqrt(),
    ):
        y = saves(leaf(lib, 3))
        y.add_(1)
        found.append(error_of(lambda y=y: y.sum().backward(), "which is output 0 of", *words))
    return found


@paired("J2")
def test_operands_that_were_saved_may_not_change(lib: Any) -> Any:
    words = "modified by an inplace operation", "is at version 2; expected version 0"
    x = leaf(lib, 3)
    found = []
    for combine in (
        lambda x, w: x * w,
        lambda x, w: x / w,
        lambda x, w: x @ w,
        lambda x, w: (x * x).pow(w),
        lambda x, w: lib.where(w > 0, x, w * x),
    ):
        w = lib.tensor(values(3)) ** 2 + 0.5
        before = w._version
        y = combine(x, w).sum()
        w.add_(1).mul_(2)
        found.append((before, error_of(lambda y=y: y.backward(), *words)))
    y = x * 1
    y *= y
    return found, error_of(lambda: y.sum().backward(), "is at version 1; expected version 0")


@paired("J2")
def test_a_failed_backward_may_be_tried_again_elsewhere(lib: Any) -> Any:
    x, w = leaf(lib, 3), lib.tensor(values(3))
    good, bad = (x * 2).sum(), x * w
    w.add_(1)
    error = error_of(lambda: (good + bad.sum()).backward(), "inplace operation")
    before = x.grad
    good.backward()
    return error, before, x.grad


@paired("J2")
def test_what_is_not_needed_may_change(lib: Any) -> Any:
    x, w = leaf(lib, 3), lib.tensor(values(3))
    y = x + w  # saves nothing
    w.mul_(3)
    z = y * w
    y.add_(5)  # z needs w only
    (z + y).sum().backward()
    return x.grad, y, z


@paired("J3")
def test_no_change_of_a_leaf(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    words = "a leaf Variable that requires grad is being used in an in-place operation"
    changes = [
        lambda: x.add_(1),
        lambda: x.mul_(w),
        lambda: x.zero_(),
        lambda: x.fill_(2),
        lambda: x.copy_(w),
        lambda: x.exp_(),
        lambda: x.clamp_(0, 1),
        lambda: x.uniform_(),
        lambda: x.normal_(),
        lambda: x.masked_fill_(lib.tensor([True, False, True]), 0.0),
        lambda: x.index_put_((lib.tensor([0]),), w[:1]),
        lambda: x.__iadd__(w),
    ]
    return [error_of(change, words) for change in changes], x, x._version, x.grad_fn


@paired("J19")
def test_a_leaf_changes_without_recording(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    with lib.no_grad():
        x.add_(w).mul_(2)
        x[1] = 0.5
        x -= 0.1 * w
    x.detach().mul_(3)
    flags = (x.is_leaf, x.requires_grad, x._version)
    (x * x).sum().backward()
    return flags, x, x.grad, w.grad


@paired("J3", "J5")
def test_shapes_and_dtypes_that_do_not_fit(lib: Any) -> Any:
    whole, x = lib.tensor([1, 2]), leaf(lib, 2)
    cast = "can't be cast to the desired output type"
    overlap = "more than one element of the written-to tensor refers to a single memory location"
    y = lib.tensor(values(4))
    found = [
        error_of(lambda: whole.add_(0.5), cast),
        error_of(lambda: whole.div_(2), cast),
        error_of(lambda: whole.exp_(), cast),
        error_of(lambda: whole.mul_(x), cast),
        error_of(lambda: (x > 0).add_(1), cast),
        error_of(lambda: (x * 1).add_(lib.ones(3, 2)), "doesn't match the broadcast shape"),
        error_of(lambda: lib.ones(1).expand(3).add_(1), overlap),
        error_of(lambda: y[1:].add_(y[:-1]), "refer to a single memory location"),
    ]
    return found, whole, y[::2].add_(y[1::2]), y.add_(y)


@paired("J5")
def test_mixed_dtypes(lib: Any) -> Any:
    x, w = leaf(lib, 3, dtype="float32"), leaf(lib, 3, seed=1)
    y = x * 1
    y.mul_(w).add_(lib.tensor([1, 2, 3])).sub_(2)
    y.sum().backward()
    return y, x.grad, w.grad


@paired("J5")
def test_integers_and_booleans(lib: Any) -> Any:
    a, b = lib.tensor([6, 7]), lib.tensor([True, False])
    a += 1
    a //= 2
    a %= 3
    a |= 4
    a &= 6
    a ^= 1
    b |= lib.tensor([True, True])
    b &= lib.tensor([False, True])
    return a, a._version, b, b._version, a.neg_().abs_().clamp_(max=4), a.pow_(2)


@paired("C2")
def test_gradients_that_a_user_holds_are_never_changed(lib: Any) -> Any:
    kept = []
    x, y, w = leaf(lib, 3), leaf(lib, 3, seed=1), lib.tensor(values(3, seed=2))
    seed = lib.tensor(values(3, seed=3))
    total = x + y
    total.register_hook(lambda g: kept.append(g))
    branch = total * w
    branch.register_hook(lambda g: kept.append(g))
    lib.autograd.backward([branch + total, total], [seed, seed])
    first = x.grad
    held = first.clone()
    x.grad = None
    (x * 3 + total.detach()).sum().backward()
    x.grad.zero_()
    y.grad.mul_(10)
    return kept, seed, first, held, x.grad, y.grad


@paired("C2", "J1")
def test_a_second_backward_adds_into_the_same_grad(lib: Any) -> Any:
    x = leaf(lib, 3)
    (x * 2).sum().backward()
    grad = x.grad
    view = grad[1:]
    (x * 3).sum().backward()
    return x.grad is grad, grad, view


@row("J5")
def test_every_operator_of_one_input_keeps_its_gradient_in_place() -> None:
    """What an in-place form gives equals the out-of-place form, for the whole table."""
    checked = set()
    for case in CASES:
        if case.name not in f"{_UNARY} {_POSITIVE}".split():
            continue
        (array,) = case.arrays()
        if array.dtype.kind == "c":
            continue
        x = mg.tensor(array, requires_grad=True)
        out, y = case.function(mg, x), getattr(x * 1, f"{case.name}_")()
        seed = mg.tensor(np.random.default_rng(0).random(out.shape))
        with mg.Engine("local"):
            wanted, found = mg.grad(out, x, seed)[0], mg.grad(y, x, seed)[0]
        np.testing.assert_array_equal(found.numpy(), wanted.numpy(), err_msg=case.name)
        checked.add(case.name)
    assert len(checked) > 25


@paired("J2")
def test_a_hook_that_changes_what_a_later_node_saved(lib: Any) -> Any:
    found = []
    for size in (3, 20_000):  # the second is read by workers where it lies
        x, w = leaf(lib, size), lib.tensor(values(size, seed=1))
        y = x * w

        def change(grad: Any, w: Any = w) -> None:
            w.add_(1)

        y.register_hook(change)
        words = "modified by an inplace operation", "is at version 1; expected version 0"
        found.append((error_of((y * 2).sum().backward, *words), x.grad, w))
    return found


@paired("J2")
def test_a_hook_may_change_what_nobody_needs_any_more(lib: Any) -> Any:
    x, w = leaf(lib, 3), lib.tensor(values(3, seed=1))
    y = x * 2
    z = y * w

    def change(grad: Any) -> None:
        w.add_(1)

    y.register_hook(change)  # when it is called, the Node of z has run
    (z + y).sum().backward()
    return x.grad, w


@row("J2")
@pytest.mark.process
def test_a_change_that_a_worker_might_miss_is_refused(process_engine: mg.Engine) -> None:
    def run() -> mg.Tensor:
        x, w = mg.ones(20_000, requires_grad=True), mg.ones(20_000)
        first = x.exp()
        second = x * w  # recorded later, so its Node comes first; nothing says that it is done

        def change(grad: mg.Tensor) -> None:
            w.add_(1)

        first.register_hook(change)
        (first + second).sum().backward()
        assert x.grad is not None
        return x.grad

    with mg.Engine("local"):
        run()
    with pytest.raises(RuntimeError, match=r"a worker may not have read it yet. clone\(\)"):
        run()


@row("J2")
@pytest.mark.parametrize(
    "chosen",
    [
        lambda x: mg.nn.functional.max_pool2d(x, 2),
        lambda x: mg.nn.functional.max_pool1d(x[0], 3, return_indices=True)[0],
        lambda x: x.max(1)[0],
        lambda x: x.min(-1, keepdim=True).values,
        lambda x: mg.frexp(x)[0],
    ],
)
def test_values_may_change_when_only_their_indices_are_needed(chosen: Any) -> None:
    grads = []
    for change in (mg.mul, mg.Tensor.mul_):
        x = leaf(mg, 2, 3, 4, 4)
        change(chosen(x), 3).sum().backward()
        grads.append(x.grad.tolist())
    assert grads[0] == grads[1]
