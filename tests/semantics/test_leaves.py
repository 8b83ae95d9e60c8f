"""Group D: how gradients arrive in ``.grad``, and what may be assigned to it."""

from __future__ import annotations

import gc
import importlib
import threading
import warnings
import weakref
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.recording.tensors import accumulate_grad
from tests.semantics.paired import error_of, leaf, paired, row, values


def transposed_leaf(lib: Any) -> Any:
    """A leaf of shape (2, 3) that lies in memory as its transpose does."""
    return lib.tensor(values(3, 2)).permute(1, 0).detach().requires_grad_()


# ---------------------------------------------------------------------- accumulation


@paired("D1")
def test_a_first_grad_is_nobody_elses(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    seed = lib.tensor(values(3, seed=2))
    (x + w).backward(seed)
    x.grad.zero_()
    x.backward(seed)
    x.grad.mul_(2)
    return x.grad, w.grad, seed


@paired("D1", "C2")
def test_a_gradient_that_a_hook_kept_is_not_changed_later(lib: Any) -> Any:
    x = leaf(lib, 3)
    kept: list[Any] = []
    x.register_hook(lambda grad: kept.append(grad))
    y = x * 2
    y.register_hook(lambda grad: kept.append(grad))
    (y * y + y.exp() + y).sum().backward()
    before = [grad.clone() for grad in kept]
    (x * 5).sum().backward()
    x.grad.zero_()
    return before, kept


@paired("D2")
def test_a_grad_keeps_its_identity(lib: Any) -> Any:
    x = leaf(lib, 3)
    (x * x).sum().backward()
    first, view = x.grad, x.grad[1:]
    (x * x * x).sum().backward()
    assigned = lib.zeros(3, dtype=lib.float64)
    w = leaf(lib, 3, seed=1)
    w.grad = assigned
    (w * w).sum().backward()
    return first is x.grad, first, view, w.grad is assigned, assigned


@paired("D3")
def test_with_create_graph_a_grad_is_replaced(lib: Any) -> Any:
    x = leaf(lib, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (x * x * x).sum().backward()
        plain = x.grad
        (x * x * x).sum().backward(create_graph=True)
        recorded = x.grad
        (x * x).sum().backward(create_graph=True)
    again = x.grad
    (curvature,) = lib.autograd.grad(again.sum(), x)
    return plain, plain is recorded, recorded, recorded is again, again, curvature


@paired("D3")
def test_a_recorded_grad_is_added_to_in_place_without_create_graph(lib: Any) -> Any:
    x = leaf(lib, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (x * x).sum().backward(create_graph=True)
    recorded = x.grad
    (x * x).sum().backward()
    return x.grad is recorded, recorded.detach()


@paired("D6")
def test_an_undefined_gradient_leaves_grad_as_it_was(lib: Any) -> Any:
    class Dropped(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, w: Any) -> Any:
            return x * w

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return None, grad

    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    Dropped.apply(x, w).sum().backward()
    first = x.grad
    x.grad = lib.ones(3, dtype=lib.float64)
    Dropped.apply(x, w).sum().backward()
    return first, x.grad, w.grad


@paired("D7")
def test_threads_that_share_a_leaf_lose_nothing(lib: Any) -> Any:
    x = leaf(lib, 50)
    barrier = threading.Barrier(4)

    def train() -> None:
        barrier.wait()
        for _ in range(10):
            (x * 2).sum().backward()

    threads = [threading.Thread(target=train) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return x.grad


# ---------------------------------------------------------------------- who owns AccumulateGrad


def _accumulator(tensor: Any) -> Any:
    return tensor.grad_fn.next_functions[0][0]


@paired("D7")
def test_an_accumulator_that_is_kept_keeps_its_leaf(lib: Any) -> Any:
    x = leaf(lib, 2)
    accumulator = _accumulator(x * 2)
    alive = weakref.ref(x)
    del x
    assert alive() is not None
    return accumulator.variable


@paired("D7")
def test_a_graph_keeps_leaves_that_nobody_else_has(lib: Any) -> Any:
    x, w = leaf(lib, 2), leaf(lib, 2, seed=1)
    y = x + w
    alive = weakref.ref(x)
    del x
    for _ in range(2):
        y.sum().backward()
    return alive().grad, w.grad  # type: ignore[union-attr]


@paired("D7")
def test_hooks_on_an_accumulator_live_as_long_as_graphs_with_it(lib: Any) -> Any:
    x, log = leaf(lib, 2), list[int]()
    y = x + 2
    hook = _accumulator(x * 3).register_prehook(lambda grads: log.append(len(grads)))
    y.sum().backward()
    (x * 3).sum().backward()
    del y
    (x * 4).sum().backward()
    hook.remove()
    return log, x.grad


@paired("D7")
def test_a_tensor_hook_reaches_graphs_of_before(lib: Any) -> Any:
    x = leaf(lib, 2)
    y, z = x + 2, x * 2
    z.sum().backward()
    x.register_hook(lambda grad: grad * 10)
    y.sum().backward()
    (x * 3).sum().backward()
    return x.grad


@row("D7")
def test_leaves_and_accumulators_make_no_cycle() -> None:
    gc.disable()
    try:
        for shows in (False, True):
            x = leaf(mg, 2)
            y = x * 2
            if shows:
                _accumulator(y)
            y.sum().backward()
            alive = weakref.ref(x)
            del x, y
            assert alive() is None
    finally:
        gc.enable()


@row("D7")
def test_a_leaf_keeps_its_accumulator_for_the_next_graph() -> None:
    x = leaf(mg, 2)
    (x * 2).sum().backward()
    [known] = [node for node in gc.get_objects() if _is_accumulator_of(node, x)]
    assert (x * 2).grad_fn.next_edges[0][0] is known


def _is_accumulator_of(node: Any, leaf: Any) -> bool:
    return type(node) is accumulate_grad.AccumulateGrad and node.variable is leaf


@row("D7")
def test_threads_find_one_accumulator() -> None:
    barrier, edges = threading.Barrier(8), []
    x = leaf(mg, 3)

    def find() -> None:
        barrier.wait()
        edges.append(mg.autograd.graph.get_gradient_edge(x))

    threads = [threading.Thread(target=find) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(edge.node) for edge in edges}) == 1


@row("D7")
def test_a_commit_waits_for_another_threads_commit() -> None:
    x = leaf(mg, 3)
    thread = threading.Thread(target=(x * 2).sum().backward, daemon=True)
    with accumulate_grad.grad_lock():
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
        assert x.grad is None
    thread.join()
    assert x.grad is not None


@paired("D8")
def test_a_leaf_that_became_a_result_takes_no_gradient(lib: Any) -> Any:
    x, w, other = leaf(lib, 3), leaf(lib, 3, seed=1), leaf(lib, 3, seed=2)
    early = (x * 2).sum() + other.sum()
    x.requires_grad_(False)
    x.mul_(w)
    moved = error_of(early.backward, "leaf variable has been moved into the graph interior")
    x.sum().backward()
    return moved, x.is_leaf, w.grad


@row("D8")
def test_a_leaf_that_moved_leaves_all_others_alone() -> None:
    # PyTorch adds to those leaves whose turn comes first.
    x, other = leaf(mg, 3), leaf(mg, 3, seed=2)
    early = (x * 2).sum() + other.sum()
    x.requires_grad_(False)
    x.mul_(leaf(mg, 3, seed=1))
    with pytest.raises(RuntimeError, match="moved into the graph interior"):
        early.backward()
    assert other.grad is None


@paired("D9")
def test_a_leaf_that_no_longer_requires_grad_is_skipped(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    seen: list[Any] = []
    x.register_hook(lambda grad: seen.append(grad))
    x.register_post_accumulate_grad_hook(lambda tensor: seen.append(tensor.grad))
    loss = (x * w).sum()
    x.requires_grad_(False)
    loss.backward()
    return x.grad, w.grad, seen


@paired("D10")
def test_hooks_of_a_leaf_outlive_its_graphs(lib: Any) -> Any:
    x = leaf(lib, 3)
    handle = x.register_hook(lambda grad: grad * 10)
    (x * 2).sum().backward()
    (x * 2).sum().backward()
    late = (x * 2).sum()
    handle.remove()
    late.backward()
    return x.grad


@paired("D10")
def test_a_leaf_follows_the_dtype_of_its_new_data(lib: Any) -> Any:
    x = leaf(lib, 3, dtype="float32")
    seen: list[Any] = []
    x.register_hook(lambda grad: seen.append(str(grad.dtype).rpartition(".")[2]))
    (x * 2).sum().backward()
    x.grad = None
    x.data = x.data.to(lib.float64)
    (x * 2).sum().backward()
    return x, x.grad, seen


@paired("D11")
def test_gradients_without_elements_add_up(lib: Any) -> Any:
    x = lib.zeros((0, 3), dtype=lib.float64, requires_grad=True)
    (x * 2).sum().backward()
    first = x.grad
    (x * 2).sum().backward()
    return x.grad, first is x.grad


# ---------------------------------------------------------------------- layout


@paired("D5")
def test_grad_lies_in_memory_as_its_leaf_does(lib: Any) -> Any:
    x = transposed_leaf(lib)
    cube = lib.tensor(values(2, 3, 4)).permute(2, 0, 1).detach().requires_grad_()
    gaps = lib.tensor(values(2, 6))[:, ::2].detach().requires_grad_()
    strides = []
    for tensor in (x, cube, gaps):
        (tensor * tensor).sum().backward()
        strides.append((tensor.stride(), tensor.grad.stride()))
    (x * x).sum().backward()
    return strides, x.grad, cube.grad, gaps.grad, x.grad.stride()


@paired("D5", "D3")
def test_a_recorded_grad_lies_in_memory_as_its_leaf_does(lib: Any) -> Any:
    x = transposed_leaf(lib)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (x * x * x).sum().backward(create_graph=True)
    return x.grad.stride(), x.grad, lib.autograd.grad(x.grad.sum(), x)


@paired("D5", "D2")
def test_large_grads_lie_in_memory_as_their_leaves_do(lib: Any) -> Any:
    x = lib.tensor(values(70, 3, 50)).permute(2, 0, 1).detach().requires_grad_()
    (x * x).sum().backward()
    first = x.grad
    (x * 2).sum().backward()
    return x.grad, first is x.grad, x.grad.stride() == x.stride()


@row("D5")
def test_a_grad_in_another_layout_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # PyTorch too warns once per process, so that the two cannot be compared in one.
    monkeypatch.setattr(accumulate_grad, "_has_warned_of_layout", False)
    x = transposed_leaf(mg)
    x.grad = mg.zeros((2, 3), dtype=mg.float64)
    with pytest.warns(UserWarning, match="do not obey the gradient layout contract"):
        (x * 2).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (x * 2).sum().backward()
    assert x.grad is not None
    assert x.grad.is_contiguous()
    assert x.grad.tolist() == [[4.0] * 3] * 2


@row("D5")
def test_no_warning_where_layouts_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulate_grad, "_has_warned_of_layout", False)
    gaps = mg.tensor(values(2, 6))[:, ::2].detach().requires_grad_()
    one_row = mg.tensor(values(3, 1)).permute(1, 0).detach().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for tensor in (gaps, one_row, transposed_leaf(mg)):
            (tensor * 2).sum().backward()
            (tensor * 2).sum().backward()


# ---------------------------------------------------------------------- .grad as an attribute


@paired("D13")
def test_what_may_be_assigned_to_grad(lib: Any) -> Any:
    x = leaf(lib, 3)
    good = lib.tensor(values(3, seed=1))

    def assign(value: Any) -> Any:
        return error_of(lambda: setattr(x, "grad", value))

    errors = [
        assign(value)
        for value in (3.0, [1.0, 2.0, 3.0], good[:2], good.reshape(1, 3), good.to(lib.float32), x)
    ]
    x.grad = good
    same = x.grad is good
    x.grad = None
    cleared = x.grad
    x.grad = good
    del x.grad
    return errors, same, cleared, x.grad


@paired("D13")
def test_words_of_refused_grads(lib: Any) -> Any:
    x, good = leaf(lib, 3), lib.zeros(3, dtype=lib.float64)
    return (
        error_of(
            lambda: setattr(x, "grad", "1"),
            "assigned grad expected to be a Tensor or None but got grad of type",
        ),
        error_of(
            lambda: setattr(x, "grad", good[:2]),
            "attempting to assign a gradient of size '[2]' to a tensor of size '[3]'",
        ),
        error_of(
            lambda: setattr(x, "grad", good.to(lib.float32)),
            "attempting to assign a gradient with dtype",
        ),
        error_of(lambda: setattr(x, "grad", x), "can't assign Variable as its own grad"),
    )


@paired("D13")
def test_a_tensor_without_history_may_have_a_grad(lib: Any) -> Any:
    x = lib.tensor(values(3))
    x.grad = lib.ones(3, dtype=lib.float64)
    y = leaf(lib, 3) * 2
    y.grad = lib.ones(3, dtype=lib.float64)
    return x.grad, y.grad


@paired("D14")
def test_the_grad_of_a_non_leaf_warns(lib: Any) -> Any:
    y = leaf(lib, 3) * 2
    seen = []
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            grad = y.grad
        seen += [grad, [entry.category.__name__ for entry in caught]]
        text = "attribute of a Tensor that is not a leaf Tensor is being accessed"
        assert all(text in str(entry.message) for entry in caught)
        y.retain_grad()
    return seen


# ---------------------------------------------------------------------- grad_dtype


@paired("D15")
def test_grad_dtype_is_the_dtype_of_gradients(lib: Any) -> Any:
    x = leaf(lib, 3, dtype="float32")
    default = x.grad_dtype
    x.grad_dtype = lib.float64
    seen: list[Any] = []
    x.register_hook(lambda grad: seen.append(grad))
    y = (x * x).sum()
    result = lib.autograd.grad(y, x, retain_graph=True)
    y.backward()
    y = (x * 3).sum()
    y.backward()
    return default, x.grad_dtype, result, x.grad, seen


@paired("D15")
def test_grad_dtype_holds_for_graphs_recorded_before(lib: Any) -> Any:
    x = leaf(lib, 3, dtype="float32")
    y = (x * x).sum()
    x.grad_dtype = lib.float64
    y.backward()
    return x.grad


@paired("D15", "C11")
def test_grad_dtype_holds_for_a_leaf_that_is_a_root(lib: Any) -> Any:
    x = leaf(lib, 1, dtype="float32")
    x.grad_dtype = lib.float64
    x.backward()
    first = x.grad
    x.backward(lib.ones(1))
    return first, x.grad, lib.autograd.grad(x, x, lib.ones(1))


@paired("D15", "D5")
def test_grad_dtype_of_a_leaf_in_another_layout(lib: Any) -> Any:
    x = transposed_leaf(lib)
    x.grad_dtype = lib.float32
    y = x * 2
    (y * y + x).sum().backward()
    return x.grad, x.grad.stride()


@paired("D15")
def test_grad_dtype_none_takes_any_grad(lib: Any) -> Any:
    x = leaf(lib, 3, dtype="float32")
    x.grad_dtype = None
    (x * 2).sum().backward()
    first = x.grad
    x.grad = lib.ones(3, dtype=lib.float16)
    (x * 2).sum().backward()
    return x.grad_dtype, first, x.grad


@paired("D15")
def test_what_grad_dtype_may_be(lib: Any) -> Any:
    x = leaf(lib, 3, dtype="float32")
    y = x * 2
    x.grad = lib.zeros(3)
    words = "there is already a gradient with dtype"
    x.grad_dtype = lib.float32
    errors = [
        error_of(lambda: setattr(x, "grad_dtype", lib.float64), "Cannot set grad_dtype", words),
        error_of(lambda: setattr(y, "grad_dtype", lib.float32), "only be set on leaf tensors"),
        error_of(lambda: y.grad_dtype, "only be accessed on leaf tensors"),
        error_of(lambda: setattr(x, "grad_dtype", 3), "dtype or None, but got int"),
    ]
    x.grad = None
    x.grad_dtype = lib.float64
    errors.append(error_of(lambda: setattr(x, "grad", lib.zeros(3)), "grad_dtype"))
    return errors, x.detach().grad_dtype, lib.tensor([1]).grad_dtype


@row("D15")
def test_a_gradient_is_never_an_integer() -> None:
    # PyTorch lets it be set and fails within the engine.
    x = leaf(mg, 3)
    with pytest.raises(RuntimeError, match="must be a floating or complex dtype, but got int32"):
        x.grad_dtype = mg.int32


# ---------------------------------------------------------------------- retain_grad()


@paired("D16")
def test_retain_grad_sees_what_the_hooks_made(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x * 2
    y.retain_grad()
    y.retain_grad()
    y.register_hook(lambda grad: grad * 10)
    z = (y * y).sum()
    z.backward(retain_graph=True)
    first = y.grad
    z.backward()
    return y.retains_grad, first, y.grad, first is y.grad, x.grad


@paired("D16")
def test_retain_grad_of_leaves_and_constants(lib: Any) -> Any:
    x = leaf(lib, 3)
    x.retain_grad()
    (x * 2).sum().backward()
    words = "can't retain_grad on Tensor that has requires_grad=False"
    return x.retains_grad, x.grad, error_of(lib.zeros(3).retain_grad, words)


@paired("D16")
def test_a_retained_grad_is_a_copy(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x * 1
    z = y + 0
    y.retain_grad()
    z.retain_grad()
    z.sum().backward()
    y.grad.zero_()
    z.grad.mul_(3)
    return x.grad, y.grad, z.grad


@paired("D17")
def test_retain_grad_follows_a_tensor_that_changes_in_place(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x * 2
    y.retain_grad()
    y.mul_(3)
    y.register_hook(lambda grad: grad * 10)
    y.add_(x)
    (y * y).sum().backward()
    return y.retains_grad, y.grad, x.grad


# PyTorch forgets the request, because it takes the view for a leaf until its grad_fn is looked at.
@paired("D17", torch=False)
def test_retain_grad_of_a_view_whose_base_changes(lib: Any) -> Any:
    x, base = leaf(lib, 3), lib.tensor(values(2, 3))
    view = base[0]
    base.mul_(x)
    view.retain_grad()
    (base * base).sum().backward(retain_graph=True)
    apart = view.grad
    (view * 3).sum().backward()
    assert view.retains_grad
    assert apart is None
    assert view.grad.tolist() == [3.0, 3.0, 3.0]
    return view.grad, x.grad


# ---------------------------------------------------------------------- create_graph


@row("D18")
def test_backward_with_create_graph_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # PyTorch too warns once per process, so that the two cannot be compared in one.
    module = importlib.import_module("mpgrad.autograd.backward")
    monkeypatch.setattr(module, "_has_warned_of_cycle", False)
    x = leaf(mg, 3)
    with pytest.warns(UserWarning, match="reference cycle between the parameter and its gradient"):
        (x * x).sum().backward(create_graph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (x * x).sum().backward(create_graph=True)
        mg.grad((x * x).sum(), x, create_graph=True)


@row("R6", "D1")
def test_a_gradient_that_nobody_else_holds_becomes_grad_itself() -> None:
    # Only where the rule runs in this process can the address be the same.
    addresses = []

    class Passed(mg.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: mg.Tensor) -> mg.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: mg.Tensor) -> mg.Tensor:
            addresses.append(grad.data_ptr())
            return grad

    x = leaf(mg, 5)
    with mg.Engine("local"):
        Passed.apply(x).exp().sum().backward()
    assert x.grad is not None
    assert [x.grad.data_ptr()] == addresses
    kept = []
    y = Passed.apply(w := leaf(mg, 5))
    y.register_hook(kept.append)
    with mg.Engine("local"):
        y.exp().sum().backward()
    assert w.grad is not None
    assert w.grad.data_ptr() != kept[0].data_ptr()
    np.testing.assert_array_equal(w.grad.numpy(), kept[0].numpy())
