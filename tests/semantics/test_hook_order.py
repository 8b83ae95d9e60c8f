"""Group G: the order of hooks in graphs with many of them, and hooks on several tensors at once."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import mpgrad as mg
from tests.semantics.paired import error_of, leaf, paired, row


def edge_node(lib: Any, tensor: Any) -> Any:
    return lib.autograd.graph.get_gradient_edge(tensor).node


def hook_everything(lib: Any, log: list[Any], **tensors: Any) -> None:
    """Hooks of every kind on each tensor and its Node, which write down what is called."""
    for name, tensor in tensors.items():
        node = edge_node(lib, tensor)
        node.register_hook(lambda inputs, outputs, n=name: log.append(f"{n} post"))
        tensor.register_hook(lambda grad, n=name: log.append(f"{n} tensor 1"))
        node.register_prehook(lambda grads, n=name: log.append(f"{n} pre 1"))
        if tensor.is_leaf:
            tensor.register_post_accumulate_grad_hook(lambda p, n=name: log.append(f"{n} acc"))
        else:
            tensor.retain_grad()
        node.register_prehook(lambda grads, n=name: log.append(f"{n} pre 2"))
        tensor.register_hook(lambda grad, n=name: log.append(f"{n} tensor 2"))


def order_at(name: str, *, is_leaf: bool) -> list[str]:
    """What is called at one Node, in PyTorch's order."""
    middle = [f"{name} acc"] if is_leaf else []
    return [
        f"{name} tensor 1", f"{name} tensor 2", f"{name} pre 1", f"{name} pre 2",
        *middle, f"{name} post",
    ]  # fmt: skip


@paired("G7", "B12")
def test_a_chain_of_hooked_nodes(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x.exp()
    z = (y * y).sum()
    log: list[str] = []
    hook_everything(lib, log, x=x, y=y, z=z)
    z.backward()
    assert log == [
        *order_at("z", is_leaf=False), *order_at("y", is_leaf=False), *order_at("x", is_leaf=True),
    ]  # fmt: skip
    return log, x.grad, y.grad, z.grad


@paired("G7", "B12")
def test_branches_run_newest_first(lib: Any) -> Any:
    x = leaf(lib, 3)
    w = leaf(lib, 3, seed=1)
    a, b = x * 2, w * 3
    c = a + b
    d = a * c
    log: list[str] = []
    hook_everything(lib, log, w=w, d=d, a=a, c=c, x=x, b=b)
    (d.exp() + c).sum().backward()
    assert log == [
        *order_at("d", is_leaf=False), *order_at("c", is_leaf=False), *order_at("b", is_leaf=False),
        *order_at("w", is_leaf=True), *order_at("a", is_leaf=False), *order_at("x", is_leaf=True),
    ]  # fmt: skip
    return log, x.grad, w.grad, a.grad, b.grad, c.grad, d.grad


@paired("G7", "B12", "A11")
def test_the_same_with_only_some_inputs(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    a, b = x * 2, w * 3
    d = a * (a + b)
    log: list[str] = []
    hook_everything(lib, log, w=w, d=d, a=a, x=x, b=b)
    d.sum().backward(inputs=[x, b])
    return log, x.grad, w.grad, a.grad, b.grad


@paired("G7", "G2")
def test_the_same_in_grad(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    a, b = x * 2, w * 3
    d = a * (a + b)
    log: list[str] = []
    hook_everything(lib, log, w=w, d=d, a=a, x=x, b=b)
    grads = lib.autograd.grad(d.sum(), (a, x, b))
    return log, grads, x.grad, w.grad, a.grad, b.grad


@paired("G7", "G11")
def test_the_same_with_create_graph(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    a = x * w
    b = a.exp()
    log: list[str] = []
    hook_everything(lib, log, a=a, x=x, b=b, w=w)
    grads = lib.autograd.grad((b * a).sum(), (x, w), create_graph=True)
    first = list(log)
    second = lib.autograd.grad((grads[0] * grads[1]).sum(), (x, w))
    return first, grads, second


@paired("G7", "B17")
def test_a_function_between_operators(lib: Any) -> Any:
    log: list[str] = []

    class Noted(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            log.append("rule")
            return grad * 2

    x = leaf(lib, 3)
    y = Noted.apply(x)
    hook_everything(lib, log, y=y, x=x)
    (y * y + y).sum().backward()
    assert log == [
        "y tensor 1", "y tensor 2", "y pre 1", "y pre 2", "rule", "y post",
        *order_at("x", is_leaf=True),
    ]  # fmt: skip
    return x.grad, y.grad


@paired("G7", "G14")
def test_multi_grad_hooks_run_among_the_tensor_hooks(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    a, b = x * 2, w * 3
    log: list[str] = []
    a.register_hook(lambda grad: log.append("a 1"))
    multi = lib.autograd.graph.register_multi_grad_hook
    multi((a, b), lambda grads: log.append("all"))
    multi((b, a), lambda grad: log.append("any"), mode="any")
    hook_everything(lib, log, x=x, a=a, b=b)
    (a * b).sum().backward()
    return log, x.grad, w.grad


@paired("G7")
def test_retained_gradients_can_be_seen_by_later_hooks(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x.exp()
    z = y * 2
    z.retain_grad()
    y.retain_grad()
    seen: list[Any] = []
    z.register_hook(lambda grad: grad * 3)
    z.grad_fn.register_prehook(lambda grads: seen.append(z.grad.clone()))
    y.register_hook(lambda grad: seen.append(z.grad.clone()))
    x.register_hook(lambda grad: seen.append(y.grad.clone()))
    z.sum().backward(retain_graph=True)
    z.sum().backward()
    assert len(seen) == 6
    return seen, x.grad, y.grad, z.grad


# ---------------------------------------------------------------------- multi-grad hooks


def four_tensors(lib: Any) -> tuple[Any, Any, Any, Any]:
    a, b = leaf(lib, 2), leaf(lib, 2, seed=1)
    return a, b, a * b, a * b


@paired("G14")
def test_a_multi_grad_hook_waits_for_what_the_backward_reaches(lib: Any) -> Any:
    a, b, c, d = four_tensors(lib)
    seen: list[Any] = []
    handle = lib.autograd.graph.register_multi_grad_hook((a, b, c, d), seen.append)
    c.sum().backward(retain_graph=True)
    c.sum().backward(inputs=(a,), retain_graph=True)
    (c.sum() + d.sum()).backward(retain_graph=True)
    lib.autograd.grad(c.sum(), c, retain_graph=True)
    handle.remove()
    handle.remove()
    c.sum().backward()
    patterns = [[grad is not None for grad in grads] for grads in seen]
    assert patterns == [
        [True, True, True, False], [True, False, True, False], [True] * 4,
        [False, False, True, False],
    ]  # fmt: skip
    return seen


@paired("G14")
def test_a_multi_grad_hook_on_a_leaf_does_not_work_in_grad(lib: Any) -> Any:
    a, b, c, d = four_tensors(lib)
    lib.autograd.graph.register_multi_grad_hook((a, b, c, d), lambda grads: None)
    return error_of(lambda: lib.autograd.grad(c.sum(), a), "leaf node", "autograd.grad()")


@paired("G14")
def test_a_multi_grad_hook_counts_each_backward_for_itself(lib: Any) -> Any:
    a, _, c, d = four_tensors(lib)
    seen: list[Any] = []

    def nested(grads: Any) -> None:
        seen.append(("outer" if len(seen) == 0 else "inner", grads))
        if len(seen) == 1:
            e, f = leaf(lib, 2, seed=2), leaf(lib, 2, seed=3)
            with lib.enable_grad():
                g, h = e * f, e + f
                lib.autograd.graph.register_multi_grad_hook((g, h), nested)
                (g * h).sum().backward()

    lib.autograd.graph.register_multi_grad_hook((c, d), nested)
    (c * d).sum().backward()
    assert [name for name, _ in seen] == ["outer", "inner"]
    return seen, a.grad


@paired("G14")
def test_a_multi_grad_hook_after_a_backward_that_failed(lib: Any) -> Any:
    _, _, c, d = four_tensors(lib)
    seen: list[Any] = []

    def fails(grad: Any) -> None:
        raise ValueError("on purpose")

    handle = c.register_hook(fails)
    lib.autograd.graph.register_multi_grad_hook((c, d), seen.append)
    failed = error_of(lambda: (c + d * 2).sum().backward(retain_graph=True), "on purpose")
    handle.remove()
    (c + d * 2).sum().backward()
    assert len(seen) == 1
    return failed, seen


@paired("G14")
def test_what_a_multi_grad_hook_raises(lib: Any) -> Any:
    _, _, c, d = four_tensors(lib)

    def fails(grads: Any) -> None:
        raise ValueError("on purpose")

    lib.autograd.graph.register_multi_grad_hook((c, d), fails)
    return error_of(lambda: (c + d).sum().backward(), "on purpose")


@paired("G15")
def test_mode_any_fires_once_with_the_first_gradient(lib: Any) -> Any:
    a, _, c, d = four_tensors(lib)
    seen: list[Any] = []
    tensors = (a, c, lib.ones(2), d)
    handle = lib.autograd.graph.register_multi_grad_hook(tensors, seen.append, mode="any")
    (c * 2 + d * 3).sum().backward(retain_graph=True)
    (c * 2 + d * 3).sum().backward(retain_graph=True)
    with handle:
        d.sum().backward(retain_graph=True)
    c.sum().backward()
    assert len(seen) == 3
    return seen


@paired("G14", "G15")
def test_what_register_multi_grad_hook_refuses(lib: Any) -> Any:
    c, d = (leaf(lib, 2) * 2 for _ in range(2))
    register = lib.autograd.graph.register_multi_grad_hook
    return (
        error_of(
            lambda: register((c, d), lambda grads: None, mode="some"), "('all', 'any')", "some"
        ),
        error_of(lambda: register((c, lib.ones(2)), lambda grads: None), "gradient function"),
    )


# ---------------------------------------------------------------------- the logger


@row("F10")
@pytest.mark.parametrize("mode", ["local", pytest.param("process", marks=pytest.mark.process)])
def test_the_logger_tells_of_every_node(
    mode: str, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    if mode == "process":
        request.getfixturevalue("process_engine")
    x = leaf(mg, 2, 3)
    y = x * 2
    log: list[str] = []
    y.grad_fn.register_prehook(lambda grads: log.append(str(len(caplog.messages))))
    loss = y.sum()
    expected = [
        f"Executing: {loss.grad_fn} with grad_outputs: [f64[]]",
        f"Executing: {y.grad_fn} with grad_outputs: [f64[2, 3]]",
        f"Executing: {edge_node(mg, x)} with grad_outputs: [f64[2, 3]]",
    ]
    with caplog.at_level(logging.DEBUG, logger="mpgrad.autograd.graph"):
        if mode == "local":
            with mg.Engine("local"):
                loss.backward(retain_graph=True)
        else:
            loss.backward(retain_graph=True)
    assert caplog.messages == expected
    assert log == ["1"]
    loss.backward()
    assert len(caplog.messages) == 3
    assert x.grad is not None
    assert x.grad.tolist() == [[4.0] * 3] * 2
