"""backward() and grad(): what PyTorch's users rely on, in local mode (tests/process repeats the
parts where a process boundary could matter)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from tests.torch_outcomes import Of


@pytest.fixture(autouse=True)
def local_engine() -> Iterator[None]:
    with mg.Engine(mode="local"):
        yield


def leaf(*values: float) -> mg.Tensor:
    return mg.tensor(list(values), dtype=mg.float64, requires_grad=True)


# ---------------------------------------------------------------------- accumulation


def test_gradients_accumulate_into_the_same_object() -> None:
    x = leaf(1.0, 2.0)
    (x * x).sum().backward()
    first = x.grad
    (3.0 * x).sum().backward()
    assert x.grad is first
    assert first is not None
    assert first.tolist() == [5.0, 7.0]


def test_a_leaf_used_twice_gets_the_sum() -> None:
    x = leaf(2.0)
    (x * x + x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [5.0]


def test_adopted_gradients_do_not_share_memory() -> None:
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    (x + y).sum().backward()  # the rule passes one array on to both
    assert x.grad is not None
    assert y.grad is not None
    x.grad.zero_()
    assert y.grad.tolist() == [1.0, 1.0]


def test_a_seed_is_never_changed() -> None:
    x = leaf(1.0, 2.0)
    seed = mg.tensor([1.0, 10.0], dtype=mg.float64)
    y = x * 1.0
    y.backward(seed, retain_graph=True)
    y.backward(seed)
    assert seed.tolist() == [1.0, 10.0]
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 20.0]


def test_several_roots_run_in_one_pass() -> None:
    x = leaf(1.0, 2.0)
    shared = x * 2.0
    mg.autograd.backward([shared.sum(), (shared * shared).sum()])
    assert x.grad is not None
    assert x.grad.tolist() == [2.0 + 8.0, 2.0 + 16.0]


def test_the_same_root_twice_counts_twice() -> None:
    x = leaf(1.0)
    y = (x * 3.0).sum()
    mg.autograd.backward([y, y])
    assert x.grad is not None
    assert x.grad.tolist() == [6.0]


def test_no_grad_records_nothing() -> None:
    x = leaf(1.0)
    with mg.no_grad():
        y = x * 2.0
    assert not y.requires_grad
    assert y.grad_fn is None


# ---------------------------------------------------------------------- inputs= and grad()


def test_inputs_limits_accumulation() -> None:
    x, w = leaf(1.0, 2.0), leaf(3.0, 4.0)
    (x * w).sum().backward(inputs=[w])
    assert x.grad is None
    assert w.grad is not None
    assert w.grad.tolist() == [1.0, 2.0]


def test_inputs_may_be_inside_the_graph() -> None:
    x = leaf(1.0, 2.0)
    y = x * 3.0
    (y * y).sum().backward(inputs=[y, y])
    assert y.grad is not None
    assert y.grad.tolist() == [6.0, 12.0]
    assert x.grad is None


def test_grad_touches_no_leaf() -> None:
    x = leaf(2.0)
    (result,) = mg.grad((x * x * x).sum(), x)
    assert result is not None
    assert result.tolist() == [12.0]
    assert x.grad is None


def test_grad_of_inputs_on_one_path() -> None:
    x = leaf(2.0)
    y = x * x
    gx, gy = mg.grad((y * y).sum(), [x, y])
    assert gx is not None
    assert gy is not None
    assert gx.tolist() == [32.0]
    assert gy.tolist() == [8.0]


def test_grad_with_respect_to_itself_is_the_seed() -> None:
    x = leaf(2.0)
    (result,) = mg.grad(x, x, mg.tensor([5.0], dtype=mg.float64))
    assert result is not None
    assert result.tolist() == [5.0]


def test_unused_inputs() -> None:
    x, unused = leaf(1.0), leaf(1.0, 2.0)
    y = (x * 2.0).sum()
    with pytest.raises(RuntimeError, match="not have been used in the graph"):
        mg.grad(y, [x, unused], retain_graph=True)
    assert mg.grad(y, [x, unused], allow_unused=True, retain_graph=True)[1] is None
    zeros = mg.grad(y, [x, unused], materialize_grads=True)[1]
    assert zeros is not None
    assert zeros.tolist() == [0.0, 0.0]


def test_grad_frees_only_what_it_ran() -> None:
    x, w = leaf(2.0), leaf(3.0)
    y = x * w
    z = (y * y).sum()
    mg.grad(z, y)  # stops at y: the rule of x * w has not run
    (result,) = mg.grad(y, x)
    assert result is not None
    assert result.tolist() == [3.0]


# ---------------------------------------------------------------------- misuse


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (lambda x: mg.tensor([1.0]).backward(), RuntimeError, "does not require grad"),
        (lambda x: (x * 2).backward(), RuntimeError, "only for scalar outputs"),
        (
            lambda x: (x * 2).backward(mg.ones(3, dtype=mg.float64)),
            RuntimeError,
            "Mismatch in shape",
        ),
        (lambda x: (x * 2).backward(1.0), TypeError, "either Tensors or None"),
        (
            lambda x: mg.autograd.backward([x.sum(), x.sum()], [None]),
            RuntimeError,
            "got 2 tensors and 1 gradients",
        ),
        (lambda x: x.sum().backward(inputs=[]), RuntimeError, "cannot be empty"),
        (lambda x: mg.grad(x.sum(), []), RuntimeError, "cannot be empty"),
        (lambda x: mg.grad(x.sum(), mg.tensor([1.0])), RuntimeError, "does not require grad"),
        (lambda x: mg.autograd.backward("x"), RuntimeError, "neither a Tensor nor"),
        (
            lambda x: mg.grad(x.sum(), x, allow_unused=False, materialize_grads=True),
            ValueError,
            "allow_unused",
        ),
    ],
)
def test_misuse_is_named(wrong: object, error: type[Exception], words: str) -> None:
    x = leaf(1.0, 2.0)
    with pytest.raises(error, match=words):
        wrong(x)  # type: ignore[operator]
    assert x.grad is None


def test_a_graph_is_used_up_unless_retained() -> None:
    x = leaf(2.0)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(RuntimeError, match="a second time"):
        y.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [8.0]


def test_a_saved_tensor_changed_in_place_is_an_error() -> None:
    x, w = leaf(2.0), leaf(3.0)
    y = (x * w).sum()
    with mg.no_grad():
        w.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    assert x.grad is None


def test_the_commit_is_all_or_none() -> None:
    x, w = leaf(2.0), leaf(3.0)
    w.grad = mg.tensor([1.0], dtype=mg.float64)
    w.grad._array.flags.writeable = False
    with pytest.raises(RuntimeError, match="read-only"):
        (x * w).sum().backward()
    assert x.grad is None
    assert w.grad.tolist() == [1.0]


# ---------------------------------------------------------------------- hooks


def test_tensor_hooks_run_in_order_and_may_replace() -> None:
    x = leaf(1.0)
    y = x * 2.0
    seen: list[float] = []

    def double(grad: mg.Tensor) -> mg.Tensor:
        seen.append(grad.item())
        return grad * 2.0

    y.register_hook(double)
    handle = y.register_hook(double)
    y.retain_grad()
    (y * 1.0 + y * 4.0).sum().backward(retain_graph=True)
    assert seen == [5.0, 10.0]  # the sum of both uses, before the rule of x * 2
    assert y.grad is not None
    assert y.grad.tolist() == [20.0]
    assert x.grad is not None
    assert x.grad.tolist() == [40.0]
    handle.remove()
    handle.remove()
    x.grad = None
    y.backward()
    assert x.grad.tolist() == [4.0]


def test_a_hook_runs_for_a_captured_input_too() -> None:
    x = leaf(3.0)
    x.register_hook(lambda grad: grad + 1.0)
    (result,) = mg.grad((x * x).sum(), x)
    assert result is not None
    assert result.tolist() == [7.0]


def test_a_hook_that_changes_the_shape_is_named() -> None:
    x = leaf(1.0, 2.0)
    x.register_hook(lambda grad: grad.sum())
    with pytest.raises(RuntimeError, match="has changed the size"):
        x.sum().backward()
    assert x.grad is None


def test_post_accumulate_hooks_may_clear_the_gradient() -> None:
    x = leaf(1.0, 2.0)
    stepped: list[list[float]] = []

    def step(parameter: mg.Tensor) -> None:
        assert parameter.grad is not None
        stepped.append(parameter.grad.tolist())
        parameter.grad = None

    x.register_post_accumulate_grad_hook(step)
    (x * x).sum().backward()
    assert stepped == [[2.0, 4.0]]
    assert x.grad is None


def test_hooks_need_a_tensor_that_requires_grad() -> None:
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        mg.tensor([1.0]).register_hook(lambda grad: None)
    with pytest.raises(RuntimeError, match="non-leaf"):
        (leaf(1.0) * 2.0).register_post_accumulate_grad_hook(lambda tensor: None)


# ---------------------------------------------------------------------- deep and wide


@pytest.mark.slow
def test_a_chain_of_150_000_nodes_runs_and_dies_without_recursion() -> None:
    x = leaf(1.0)
    y = x
    for _ in range(150_000):
        y = y + 0.0
    y.sum().backward()
    del y
    assert x.grad is not None
    assert x.grad.tolist() == [1.0]


def test_a_leaf_used_many_times() -> None:
    x = leaf(1.0)
    terms = [x * float(k) for k in range(2_000)]
    mg.stack(terms).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [float(sum(range(2_000)))]


def test_gradients_equal_torch_on_a_mixed_graph(of_torch: Of) -> None:
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((4, 3)), rng.standard_normal((3, 5))

    def gradients(lib: Any) -> list[np.ndarray]:
        x, y = (lib.tensor(v, requires_grad=True) for v in (a, b))
        h = lib.tanh(x @ y)
        (h * h.sum(0) + lib.exp(x).sum()).mean().backward()
        return [x.grad.numpy(), y.grad.numpy()]

    for oracle, theirs in of_torch(gradients):
        for mine, other in zip(gradients(mg), theirs, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-12, err_msg=oracle)
