"""Group B: which Nodes run, how often, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

import mpgrad as mg
from tests.semantics.paired import error_of, leaf, paired, row


def noted(lib: Any, log: list[str]) -> Any:
    """A Function that writes down its name when its backward runs."""

    class Noted(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, name: str) -> Any:
            ctx.name = name
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            log.append(ctx.name)
            return grad * 2, None

    return Noted


@paired("B1", "B10")
def test_two_graphs_at_once_do_not_mix(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    y, z = x * w, (x + w).exp()

    def other(grad: Any) -> None:
        with lib.enable_grad():
            z.sum().backward(retain_graph=True)

    y.register_hook(other)
    grads = lib.autograd.grad(y.sum(), (x, w), retain_graph=True)
    inner = x.grad.clone(), w.grad.clone()
    y.sum().backward()
    return grads, inner, x.grad, w.grad


@paired("B2", "B8")
def test_both_edges_of_one_consumer_are_waited_for(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x * 2
    seen: list[Any] = []
    y.register_hook(seen.append)
    product = y * y
    (product + product * y).sum().backward()
    assert len(seen) == 1
    return seen, x.grad


@paired("B2", "B17")
def test_a_node_with_many_consumers_runs_once(lib: Any) -> Any:
    log: list[str] = []
    x = leaf(lib, 3)
    shared = noted(lib, log).apply(x, "shared")
    branches = [noted(lib, log).apply(shared, str(number)) for number in range(4)]
    total = branches[0]
    for number, branch in enumerate(branches[1:]):
        total = total + branch * shared * number
    total.sum().backward()
    assert log == ["3", "2", "1", "0", "shared"]
    return log, x.grad


@paired("B3", "B4")
def test_what_leads_to_no_input_does_not_run(lib: Any) -> Any:
    log: list[str] = []
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    function = noted(lib, log)
    early = function.apply(x, "early")
    middle = function.apply(early, "middle")
    side = function.apply(w, "side")
    late = function.apply(middle * side, "late")
    late.sum().backward(inputs=[side], retain_graph=True)
    only_side = list(log)
    log.clear()
    grads = lib.autograd.grad(late.sum(), (middle, early), retain_graph=True)
    both = list(log)
    log.clear()
    late.sum().backward()
    assert only_side == ["late", "side"]
    assert both == ["late", "middle"]
    assert log == ["late", "side", "middle", "early"]
    return grads, side.grad, x.grad, w.grad


@paired("B4", "B6")
def test_inputs_behind_each_other(lib: Any) -> Any:
    x = leaf(lib, 3)
    a = x * 2
    b = a.exp()
    c = b * a
    grads = lib.autograd.grad(c.sum(), (x, a, b, c), retain_graph=True)
    c.sum().backward(inputs=[x, a, b])
    return grads, x.grad, a.grad, b.grad


@paired("B7", "A10")
def test_several_roots_in_one_pass(lib: Any) -> Any:
    log: list[str] = []
    x = leaf(lib, 3)
    shared = noted(lib, log).apply(x, "shared")
    first, second = (shared * 2).sum(), (shared * shared).sum()
    lib.autograd.backward([first, second, shared], [None, None, lib.ones(3, dtype=lib.float64)])
    assert log == ["shared"]
    return x.grad


@paired("B7")
def test_a_root_behind_another_root(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x * 2
    z = y.exp()
    order: list[str] = []
    y.register_hook(lambda grad: order.append("y"))
    z.register_hook(lambda grad: order.append("z"))
    lib.autograd.backward([y.sum(), z.sum(), x.sum()])
    assert order == ["z", "y"]
    return x.grad


@paired("B8", "B13")
def test_undefined_contributions_count_as_arrived(lib: Any) -> Any:
    class Nothing(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return None

    log: list[str] = []
    x = leaf(lib, 3)
    y = noted(lib, log).apply(x, "y")
    nothing = Nothing.apply(y)
    (nothing.sum() + (y * 3).sum()).backward(retain_graph=True)
    first = x.grad.clone()
    z = noted(lib, log).apply(leaf(lib, 3, seed=1), "behind nothing")
    Nothing.apply(z).sum().backward()
    assert log == ["y", "behind nothing"]
    return first, x.grad


@row("B9")
@pytest.mark.parametrize("mode", ["local", pytest.param("process", marks=pytest.mark.process)])
def test_a_graph_with_a_cycle_is_an_error(mode: str, request: pytest.FixtureRequest) -> None:
    # No program can record one, so one is made by hand.
    if mode == "process":
        request.getfixturevalue("process_engine")
    x = leaf(mg, 2)
    y = x * 2
    z = y.exp()
    assert y.grad_fn is not None
    assert z.grad_fn is not None
    before = y.grad_fn.next_edges
    y.grad_fn.next_edges = ((z.grad_fn, 0), None)
    with (
        mg.Engine("local") if mode == "local" else mg.enable_grad(),
        pytest.raises(RuntimeError, match="could not compute gradients for some functions"),
    ):
        z.sum().backward()
    y.grad_fn.next_edges = before
    z.sum().backward()
    assert x.grad is not None


@paired("B11")
def test_an_inner_backward_finishes_before_the_outer_goes_on(lib: Any) -> Any:
    log: list[str] = []
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    function = noted(lib, log)
    inner = function.apply(function.apply(w, "inner 2"), "inner 1")
    inner_loss = inner.sum()
    y = function.apply(function.apply(x, "outer 2"), "outer 1")
    waiting = function.apply(x, "newest")

    def nested(grad: Any) -> None:
        log.append("begin")
        inner_loss.backward()
        log.append("end")

    waiting.register_hook(nested)
    (y + waiting).sum().backward()
    assert log == ["begin", "inner 1", "inner 2", "end", "newest", "outer 1", "outer 2"]
    return x.grad, w.grad


@paired("B12")
def test_leaves_accumulate_as_soon_as_they_can(lib: Any) -> Any:
    order: list[str] = []
    x, w, v = leaf(lib, 2), leaf(lib, 2, seed=1), leaf(lib, 2, seed=2)
    y = x * w
    z = y * v
    for name, tensor in {"x": x, "w": w, "v": v, "y": y, "z": z}.items():
        tensor.register_hook(lambda grad, n=name: order.append(n))
    z.sum().backward()
    assert order == ["z", "v", "y", "x", "w"]
    return order, x.grad, w.grad, v.grad


@paired("B12")
def test_the_node_recorded_last_runs_first(lib: Any) -> Any:
    order: list[str] = []
    x = leaf(lib, 2)
    branches = []
    for number in range(5):
        branch = x * number
        branch.register_hook(lambda grad, n=number: order.append(f"first {n}"))
        branches.append(branch)
    longer = []
    for number in (3, 0, 4):
        step = branches[number].exp()
        step.register_hook(lambda grad, n=number: order.append(f"second {n}"))
        longer.append(step)
    total = branches[1] + longer[2] + branches[2] + longer[0] + longer[1]
    total.sum().backward()
    assert order == [
        "second 4", "second 0", "second 3",
        "first 4", "first 3", "first 2", "first 1", "first 0",
    ]  # fmt: skip
    return order, x.grad


@paired("B14", "E8")
def test_a_deep_chain_with_hooks_at_its_ends(lib: Any) -> Any:
    x = leaf(lib, 1)
    order: list[str] = []
    y = x
    for number in range(3_000):
        y = y + 0.001
        if number in (0, 2_999):
            y.register_hook(lambda grad, n=number: order.append(str(n)))
    y.sum().backward()
    assert order == ["2999", "0"]
    return x.grad


@row("B14")
@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["local", pytest.param("process", marks=pytest.mark.process)])
def test_a_chain_of_150_000(mode: str, request: pytest.FixtureRequest) -> None:
    if mode == "process":
        request.getfixturevalue("process_engine")
    x = leaf(mg, 1)
    y = x
    for _ in range(150_000):
        y = y * 1.0
    with mg.Engine("local") if mode == "local" else mg.enable_grad():
        y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0]
    del y


# PyTorch's Python Functions do not know which edges were cut off: needs_input_grad stays as in
# forward. Ours is the finer answer, which lets a rule leave out what nobody wants.
@paired("B15", torch=False)
def test_needs_input_grad_knows_the_inputs(lib: Any) -> Any:
    asked: list[Any] = []

    class Product(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            ctx.save_for_backward(a, b)
            return a * b

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            asked.append(ctx.needs_input_grad)
            a, b = ctx.saved_tensors
            return grad * b, grad * a

    x, w = leaf(lib, 2), leaf(lib, 2, seed=1)
    y = Product.apply(x, w)
    y.sum().backward(retain_graph=True)
    grads = lib.autograd.grad(y.sum(), x, retain_graph=True)
    y.sum().backward(inputs=[w])
    assert asked == [(True, True), (True, False), (False, True)]
    return asked, grads, x.grad, w.grad


@paired("B15", "G4")
def test_an_operator_computes_only_what_is_asked_for(lib: Any) -> Any:
    x, w = leaf(lib, 2), leaf(lib, 2, seed=1)
    y = x * w
    seen: list[Any] = []
    y.grad_fn.register_hook(lambda inputs, _: seen.append(inputs))
    grads = lib.autograd.grad(y.sum(), w, retain_graph=True)
    y.sum().backward(inputs=[x])
    assert [[grad is not None for grad in inputs] for inputs in seen] == [
        [False, True],
        [True, False],
    ]
    return seen, grads, x.grad


@paired("B16")
def test_in_place_on_a_view_with_inputs(lib: Any) -> Any:
    x, w = leaf(lib, 4), leaf(lib, 2, seed=1)
    base = x * 3
    view = base[:2]
    before = base.exp()
    view.mul_(w)
    view.add_(1.0)
    loss = (base * base).sum() + before.sum() * 0
    grads = [
        lib.autograd.grad(loss, wanted, retain_graph=True) for wanted in (x, w, base, (base, x, w))
    ]
    loss.backward(inputs=[w], retain_graph=True)
    only_w = x.grad, w.grad.clone()
    loss.backward()
    return grads, only_w, x.grad, w.grad


@paired("B18")
def test_what_is_left_of_a_failed_graph_never_runs(lib: Any) -> Any:
    log: list[str] = []
    function = noted(lib, log)
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)

    def fails(grad: Any) -> None:
        raise ValueError("on purpose")

    inner = function.apply(function.apply(w, "never"), "fails next")
    inner_loss = inner.sum()
    handle = inner.grad_fn.next_functions[0][0].register_prehook(fails)

    def nested(grad: Any) -> None:
        with pytest.raises(ValueError, match="on purpose"):
            inner_loss.backward(retain_graph=True)

    y = function.apply(x, "outer")
    y.register_hook(nested)
    y.sum().backward()
    before = list(log), w.grad
    handle.remove()
    inner_loss.backward()
    assert before == (["fails next", "outer"], None)
    return x.grad, w.grad, log


@paired("B10")
def test_everything_is_done_when_backward_returns(lib: Any) -> Any:
    leaves = [leaf(lib, 2, seed=number) for number in range(20)]
    done: list[int] = []
    for number, tensor in enumerate(leaves):
        tensor.register_post_accumulate_grad_hook(lambda p, n=number: done.append(n))
    total = sum((tensor * tensor).sum() for tensor in leaves)
    total.backward()
    assert sorted(done) == list(range(20))
    again = error_of(lambda: total.backward(), "second time")
    return [tensor.grad for tensor in leaves], again
