"""What the engine keeps is no memory that user code can still write, and the other way round.

PyTorch passes memory on as it is: there a change shows up elsewhere where the engine happens to
share it, and some of these programs differ from run to run or are refused. Those have no oracle but
``local``, which must give what separate processes give.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.autograd.function_nodes.context import FunctionContext
from mpgrad.autograd.function_nodes.function_node import run_function_backward
from mpgrad.recording.graph.node import InputMetadata
from mpgrad.recording.tensors import copy_on_write
from tests.semantics.functions import double
from tests.semantics.paired import error_of, leaf, paired


@pytest.fixture(autouse=True)
def as_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients here are small, and a Function of this process gets them as it gets large ones."""
    monkeypatch.setattr(copy_on_write, "INLINE_LIMIT_BYTES", -1)


def into_one_buffer(lib: Any, size: int) -> Any:
    """A Function that gives every gradient in the same memory."""
    buffer = lib.zeros(size, dtype=lib.float64)

    class Custom(lib.autograd.Function):  # type: ignore[misc]
        run_on = "client"

        @staticmethod
        def forward(ctx: Any, x: Any, factor: float) -> Any:
            ctx.factor = factor
            return x * factor

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            buffer[...] = grad * ctx.factor
            return buffer, None

    return Custom, buffer


def changing(lib: Any, run_on: str) -> Any:
    """A Function that doubles the gradient in place."""

    class Custom(lib.autograd.Function):  # type: ignore[misc]
        forward = staticmethod(double)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            grad.mul_(2)
            return grad

    Custom.run_on = run_on
    return Custom


@paired()
def test_leaves_behind_one_buffer(lib: Any) -> Any:
    custom, buffer = into_one_buffer(lib, 3)
    leaves = [leaf(lib, 3, seed=seed) for seed in range(6)]
    sum(custom.apply(x, float(at)).sum() for at, x in enumerate(leaves)).backward()
    buffer[...] = 77.0
    assert [x.grad[0].item() for x in leaves] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    return [x.grad for x in leaves]


@paired()
def test_operators_behind_one_buffer(lib: Any) -> Any:
    custom, _ = into_one_buffer(lib, 3000)
    leaves = [leaf(lib, 3000, seed=seed) for seed in range(4)]
    sum(custom.apply(x * 2.0, float(at)).sum() for at, x in enumerate(leaves)).backward()
    return [x.grad for x in leaves]


# PyTorch adds the buffer to itself, or hands it out twice.
@paired(torch=False)
def test_a_sum_of_one_buffer_and_results_of_grad(lib: Any) -> Any:
    custom, _ = into_one_buffer(lib, 3)
    x, y, z = (leaf(lib, 3, seed=seed) for seed in range(3))
    sum(custom.apply(x, float(at)).sum() for at in range(1, 7)).backward()
    assert x.grad.tolist() == [21.0] * 3
    loss = custom.apply(y, 1.0).sum() + custom.apply(z, 2.0).sum()
    results = lib.autograd.grad(loss, [y, z])
    assert [result[0].item() for result in results] == [1.0, 2.0]
    return x.grad, results


@paired()
def test_hooks_that_return_one_buffer(lib: Any) -> Any:
    buffer = lib.zeros(3, dtype=lib.float64)

    def hook(grad: Any) -> Any:
        buffer[...] = grad * 2
        return buffer

    leaves = [leaf(lib, 3, seed=seed) for seed in range(4)]
    for x in leaves:
        x.register_hook(hook)
    sum((x * float(at)).sum() for at, x in enumerate(leaves)).backward()
    assert [x.grad[0].item() for x in leaves] == [0.0, 2.0, 4.0, 6.0]
    return [x.grad for x in leaves]


@paired()
def test_a_gradient_that_a_hook_or_a_function_keeps(lib: Any) -> Any:
    kept: list[Any] = []

    def backward(ctx: Any, grad: Any) -> Any:
        kept.append(grad)
        return grad

    members = {"forward": staticmethod(double), "backward": staticmethod(backward)}
    custom = type("Custom", (lib.autograd.Function,), {**members, "run_on": "client"})
    x, y = leaf(lib, 3), leaf(lib, 3)
    y.register_hook(lambda grad: kept.append(grad))
    (custom.apply(x) * 2.0 + y * 3.0).sum().backward()
    for grad in kept:
        grad.mul_(100)
    assert (x.grad.tolist(), y.grad.tolist()) == ([2.0] * 3, [3.0] * 3)
    x.grad.mul_(10)
    return x.grad, y.grad, kept


@paired()
def test_a_gradient_that_retain_grad_keeps(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = changing(lib, "client").apply(x)
    y.retain_grad()
    (y * 3.0).sum().backward()
    assert (x.grad.tolist(), y.grad.tolist()) == ([6.0] * 3, [3.0] * 3)
    return x.grad, y.grad


# PyTorch refuses to change what `sum` has expanded, and changes the seed of the caller.
@paired(torch=False)
def test_a_gradient_that_others_have_is_changed_in_place(lib: Any) -> Any:
    seen = []
    for run_on in ("client", "worker"):
        for size in (3, 3000):
            custom = changing(lib, run_on)
            x, y, seed = leaf(lib, size), leaf(lib, size), lib.ones(size, dtype=lib.float64)
            (custom.apply(x) + y).sum().backward()
            custom.apply(x).backward(seed)
            z = custom.apply(x)
            results = lib.autograd.grad((z * 3.0).sum(), [z, x])
            seen += [x.grad, y.grad, seed, *results]
            assert [grad[0].item() for grad in seen[-5:]] == [4.0, 1.0, 1.0, 3.0, 6.0]
    return seen


def writing_through_numpy(ctx: Any, grad: Any) -> Any:
    grad.numpy()[0] = 0.0
    return grad


@paired(torch=False)
def test_numpys_refusal_to_write_says_what_to_do(lib: Any) -> Any:
    members = {"forward": staticmethod(double), "backward": staticmethod(writing_through_numpy)}
    custom = type("Custom", (lib.autograd.Function,), {**members, "run_on": "worker"})
    x, y = leaf(lib, 3000), leaf(lib, 3000)
    error = error_of((custom.apply(x) + y).sum().backward, "read-only")
    assert any("copy it before you change it" in note for note in error.__notes__)
    return error.args


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


KEPT = np.ones(3)
#: What user code gives, and whether the engine has to copy it.
GIVEN = {
    "fresh": (lambda grad: np.full(3, 2.0), False),
    "a view of what is fresh": (lambda grad: np.ones((1, 3)).reshape(3), False),
    "the gradient": (lambda grad: grad.numpy(), False),
    "a view of the gradient": (lambda grad: grad.numpy()[:2], False),
    "a buffer": (lambda grad: KEPT, True),
    "a view of a buffer": (lambda grad: KEPT[1:], True),
    "a read-only view of a buffer": (lambda grad: np.broadcast_to(KEPT, (2, 3)), True),
    "memory that is no array's": (lambda grad: np.frombuffer(bytearray(8)), True),
}


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("case", GIVEN)
def test_only_what_user_code_can_write_is_copied(case: str, is_shared: bool) -> None:
    give, is_copied = GIVEN[case]
    made: list[int] = []

    def backward(ctx: Any, grad: Any) -> Any:
        result = give(grad)
        made.append(address(result))
        return result

    grads = [np.ones(3)]
    others = list(grads) if is_shared else []
    result = run(backward, grads)
    assert (address(result) != made[0]) == is_copied
    assert len(others) == is_shared


def run(backward: Any, grads: list[Any]) -> Any:
    """What ``backward`` makes of ``grads``."""
    function: Any = type("Custom", (mg.Function,), {"backward": staticmethod(backward)})
    ctx = FunctionContext((True,))
    meta = InputMetadata((3,), np.dtype(np.float64))
    ctx._inputs = ctx._outputs = (meta,)
    return run_function_backward(function, ctx, grads, [True])[0]


def by_a_view(grad: Any) -> Any:
    grad.view(-1)[1:].mul_(2)


def by_views_beside_each_other(grad: Any) -> Any:
    flat = grad.view(-1)
    flat[0] = 5.0
    rest = flat[1:]
    rest.mul_(2)
    flat[2:].add_(rest[1:])


def below_a_view(grad: Any) -> Any:
    first = grad[0]
    grad.mul_(2)
    first.add_(1)


def without_history(grad: Any) -> Any:
    grad.view(-1)[:3].detach().mul_(3)
    grad.data.add_(1)


def of_a_transposed_view(grad: Any) -> Any:
    grad.t()[0].mul_(3)
    grad.diagonal().zero_()


def of_an_expanded_part(grad: Any) -> Any:
    grad[None].expand(1, 2, 2)[0].mul_(3)
    grad.unbind(0)[1].sub_(1)


CHANGES = [
    by_a_view,
    by_views_beside_each_other,
    below_a_view,
    without_history,
    of_a_transposed_view,
    of_an_expanded_part,
]


def changed_by(lib: Any, change: Any, run_on: str) -> Any:
    """A Function that changes its gradient; PyTorch's, which shares it, gets a clone."""

    class Custom(lib.autograd.Function):  # type: ignore[misc]
        forward = staticmethod(double)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            grad = grad if lib is mg else grad.clone()
            change(grad)
            return grad

    Custom.run_on = run_on
    return Custom


@paired()
def test_views_of_a_gradient_that_others_have(lib: Any) -> Any:
    seen = []
    for change in CHANGES:
        for run_on in ("client", "worker"):
            custom = changed_by(lib, change, run_on)
            x, y, z = (leaf(lib, 2, 2, seed=seed) for seed in range(3))
            # `+` gives the same gradient to both: it is shared in some places, in others it is not.
            ((custom.apply(x) * 3.0 + y + custom.apply(y)) * 2.0 + custom.apply(z)).sum().backward()
            seen += [x.grad, y.grad, z.grad]
    return seen


def test_a_view_of_a_lent_gradient_is_never_left_behind() -> None:
    def backward(ctx: Any, grad: Any) -> Any:
        first = grad[:1]
        grad.mul_(2)
        return grad * first

    assert run(backward, [np.ones(3)]).tolist() == [4.0] * 3
    grads = [np.ones(3)]
    others = list(grads)
    assert run(backward, grads).tolist() == [4.0] * 3
    assert others[0].tolist() == [1.0] * 3


def test_an_array_of_a_lent_gradient_is_never_left_behind() -> None:
    def backward(ctx: Any, grad: Any) -> Any:
        first = grad.numpy()[:1]
        grad.mul_(2)
        return grad * first

    grads = [np.ones(3)]
    others = list(grads)
    with pytest.raises(RuntimeError, match=r"clone\(\) the tensor"):
        run(backward, grads)
    assert others[0].tolist() == [1.0] * 3


def test_a_small_gradient_that_others_have_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    def backward(ctx: Any, grad: Any) -> Any:
        first = grad.numpy()[:1]
        first += 1
        return grad * 2

    grads = [np.ones(3)]
    others = list(grads)
    assert run(backward, grads).tolist() == [4.0, 2.0, 2.0]
    assert others[0].tolist() == [1.0] * 3
