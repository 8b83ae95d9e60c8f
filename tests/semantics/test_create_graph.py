"""Derivatives of derivatives: ``create_graph=True`` gives the same graph and bits in both modes."""

from __future__ import annotations

from typing import Any

import pytest

import mpgrad as mg
from mpgrad.autograd.frozen_graphs import costs
from mpgrad.scheduler.cost_model import CostModel
from tests.semantics.paired import error_of, leaf, paired, row


def _network(lib: Any) -> tuple[Any, Any, Any]:
    x, w, v = leaf(lib, 4, 3), leaf(lib, 3, 5, seed=1), leaf(lib, 5, 2, seed=2)
    return x, [w, v], lib.tanh(x @ w) @ v


@paired("E6")
def test_gradient_penalty(lib: Any) -> Any:
    x, weights, y = _network(lib)
    (gx,) = lib.autograd.grad(y.sum(), x, create_graph=True)
    penalty = ((gx * gx).sum(1).sqrt() - 1) ** 2
    (y.sum() + penalty.sum()).backward()
    return gx, penalty, x.grad, [w.grad for w in weights]


@paired("E6")
def test_hessian_vector_products(lib: Any) -> Any:
    x, weights, y = _network(lib)
    grads = lib.autograd.grad((y * y).sum(), weights, create_graph=True)
    vectors = [leaf(lib, *w.shape, seed=7).detach() for w in weights]
    product = sum((g * v).sum() for g, v in zip(grads, vectors, strict=True))
    return lib.autograd.grad(product, [*weights, x])


@paired("E6")
def test_fourth_derivative(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = (x.exp() * x * x.sin()).sum()
    found = [y]
    for _ in range(4):
        (y,) = lib.autograd.grad(y.sum(), x, create_graph=True)
        found.append(y)
    return found


@paired("E6", "A25")
def test_the_graph_stays_unless_it_is_given_up(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = (x.exp() * x).sum()
    (first,) = lib.autograd.grad(y, x, create_graph=True)
    (again,) = lib.autograd.grad(y, x, create_graph=True, retain_graph=False)
    freed = error_of(lambda: lib.autograd.grad(y, x), "backward through the graph a second time")
    return first, again, freed


@paired("E6")
def test_a_gradient_that_depends_on_nothing_is_constant(lib: Any) -> Any:
    x = leaf(lib, 3)
    (g,) = lib.autograd.grad((x * 2).sum(), x, create_graph=True)
    return g, g.requires_grad, g.grad_fn is None


@paired("E6", "G1")
def test_hooks_hear_only_of_gradients_that_depend_on_them(lib: Any) -> Any:
    x, w, seen = leaf(lib, 3), leaf(lib, 3, seed=1), []
    w.register_hook(seen.append)
    y = w * 2
    z = y.sum() * x  # saves both factors; the gradient for y needs only x
    (gy,) = lib.autograd.grad(z.sum(), y, create_graph=True)
    (gy * gy).sum().backward()
    return gy, x.grad, w.grad, seen


@paired("E6", "A22")
def test_seeds_keep_their_history(lib: Any) -> Any:
    x, seed = leaf(lib, 3), leaf(lib, 3, seed=5)
    y = x * x
    (g,) = lib.autograd.grad(y, x, seed * 2, create_graph=True)
    return lib.autograd.grad(g.sum(), [x, seed])


@paired("E6", "C3")
def test_sums_of_gradients_are_differentiable(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x.exp() + x.sin() * x + x * x * x
    (g,) = lib.autograd.grad(y.sum(), x, create_graph=True)
    return g, lib.autograd.grad(g.sum(), x)


@paired("E6", "A23")
def test_an_input_used_twice_by_one_operator(lib: Any) -> Any:
    x = leaf(lib, 3)
    (g,) = lib.autograd.grad((x * x).sum(), x, create_graph=True)
    # Here torch knows that h is constant; a mirror may require grad all the same.
    (h,) = lib.autograd.grad(g.sum(), x, create_graph=True)
    return g, h.detach()


@paired("D3", "D2")
@pytest.mark.filterwarnings("ignore:Using backward")
def test_grad_becomes_a_new_tensor(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = (x * x * x).sum()
    y.backward(create_graph=True)
    first, values = x.grad, x.grad.detach().clone()
    y.backward(create_graph=True)
    same_object = x.grad is first
    (second,) = lib.autograd.grad(x.grad.sum(), x)
    unchanged = bool((first.detach() == values).all())
    return first, x.grad, same_object, unchanged, second


@paired("E6")
def test_wide_operators(lib: Any) -> Any:
    x, w, b = leaf(lib, 2, 3, 6, 6), leaf(lib, 4, 3, 3, 3, seed=1), leaf(lib, 4, seed=2)
    y = lib.nn.functional.conv2d(x, w, b, padding=1).relu()
    y = lib.nn.functional.max_pool2d(y, 2).flatten(1)
    loss = lib.nn.functional.cross_entropy(y, lib.tensor([1, 3]))
    grads = lib.autograd.grad(loss, [x, w, b], create_graph=True)
    return grads, lib.autograd.grad(sum((g * g).sum() for g in grads), [x, w, b])


@paired("E6", "H20")
def test_a_function_is_recorded_under_create_graph(lib: Any) -> Any:
    modes = []

    class Cube(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (x,) = ctx.saved_tensors
            modes.append(lib.is_grad_enabled())
            return grad * 3 * x * x

    x = leaf(lib, 3)
    (g,) = lib.autograd.grad(Cube.apply(x.sin()).sum(), x, create_graph=True)
    (h,) = lib.autograd.grad(g.sum(), x, create_graph=True)
    (plain,) = lib.autograd.grad(Cube.apply(x).sum(), x)
    return g, h, lib.autograd.grad(h.sum(), x), plain, modes[0], modes[-1]


@row("E6")
@pytest.mark.process
def test_both_modes_make_the_same_graph(process_engine: mg.Engine) -> None:
    def names(node: Any) -> list[Any]:
        seen: dict[Any, int] = {}
        found, pending = [], [node]
        while pending:
            node = pending.pop()
            if node is None or node in seen:
                continue
            seen[node] = len(seen)
            found.append(
                (node.name(), [(f.name() if f else None, n) for f, n in node.next_functions])
            )
            pending += [function for function, _ in node.next_functions]
        return found

    def graph() -> list[Any]:
        x, _, y = _network(mg)
        (g,) = mg.grad((y.exp() * y).sum(), x, create_graph=True)
        return names(g.grad_fn)

    in_process = graph()
    with mg.Engine("local"):
        assert graph() == in_process
    assert len(in_process) > 10


@row("E6")
@pytest.mark.process
def test_workers_run_derivatives_of_derivatives(process_engine: mg.Engine) -> None:
    def tasks() -> int:
        counts = process_engine.statistics().tasks
        return sum(count for name, count in counts.items() if name.startswith("worker"))

    x, _, y = _network(mg)
    before = tasks()
    (g,) = mg.grad((y * y).sum(), x, create_graph=True)
    first = tasks()
    g.sum().backward()
    assert before < first < tasks()


@pytest.mark.process
@pytest.mark.ipc
def test_gradients_in_workers_memory_are_not_copied_for_the_next_backward(
    process_engine: mg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Which Nodes share a task decides what is copied: not what other tests have taught.
    monkeypatch.setattr(costs, "model", CostModel())
    # Small enough that no exp() of their products overflows.
    x = (mg.randn(300, 300) / 16.0).requires_grad_()
    (g,) = mg.grad((x @ x).exp().sum(), x, create_graph=True)
    before = process_engine.statistics()
    g.sum().backward()
    after = process_engine.statistics()
    assert after.handed_bytes - before.handed_bytes > 3 * x.nbytes
    # Three results that a rule differentiated itself are copied where they are published.
    assert after.copied_bytes - before.copied_bytes < 3.5 * x.nbytes
