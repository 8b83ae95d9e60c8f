"""Group M: ``queue_callback``: when callbacks run, in which order, and what their failure does."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import mpgrad as mg
from tests.semantics.paired import error_of, leaf, paired, row


def queue(lib: Any, callback: Any) -> None:
    lib.autograd.Variable._execution_engine.queue_callback(callback)


def run_with(lib: Any, *callbacks: Any) -> Any:
    """A backward whose hook queues ``callbacks``; the leaf's gradient."""
    x = leaf(lib, 3)
    y = x * 2

    def hook(_: Any) -> None:
        for callback in callbacks:
            queue(lib, callback)

    y.register_hook(hook)
    y.sum().backward()
    return x.grad


@paired("M9")
def test_callbacks_run_in_the_order_in_which_they_were_queued(lib: Any) -> Any:
    seen: list[int] = []
    grad = run_with(lib, *(lambda n=n: seen.append(n) for n in range(5)))
    return grad, seen


@paired("M9")
def test_a_callback_sees_every_grad(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    y = x * w
    seen: list[Any] = []

    def look() -> None:
        seen.append((x.grad.clone(), w.grad.clone(), lib.is_grad_enabled()))

    def hook(_: Any) -> None:
        assert x.grad is None
        queue(lib, look)

    y.register_hook(hook)
    (y * 3).sum().backward()
    return seen


@paired("M9")
def test_a_callback_may_change_grad(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x * x

    def halve() -> None:
        x.grad.mul_(0.5)

    def hook(_: Any) -> None:
        queue(lib, halve)

    y.register_hook(hook)
    y.sum().backward()
    return x.grad


@paired("M9")
def test_outside_of_a_backward_there_is_nothing_to_wait_for(lib: Any) -> Any:
    words = "Final callbacks can only be installed during backward pass"
    before = error_of(lambda: queue(lib, print), words)
    run_with(lib, lambda: None)
    return before, error_of(lambda: queue(lib, print), words)


@paired("M9")
def test_another_thread_is_outside_of_it(lib: Any) -> Any:
    found: list[BaseException] = []

    def hook(_: Any) -> None:
        thread = threading.Thread(
            target=lambda: found.append(error_of(lambda: queue(lib, print), "during backward"))
        )
        thread.start()
        thread.join()

    y = leaf(lib, 2) * 2
    y.register_hook(hook)
    y.sum().backward()
    return found


@paired("M9")
def test_a_callback_queues_another(lib: Any) -> Any:
    seen: list[str] = []

    def first() -> None:
        seen.append("first")
        queue(lib, lambda: seen.append("third"))

    run_with(lib, first, lambda: seen.append("second"))
    return seen


@paired("M9")
def test_a_callbacks_error_is_the_callers_and_ends_the_others(lib: Any) -> Any:
    seen: list[str] = []

    def fails() -> None:
        raise LookupError("in a callback")

    error = error_of(
        lambda: run_with(lib, lambda: seen.append("before"), fails, lambda: seen.append("after")),
        "in a callback",
    )
    return error, seen, run_with(lib, lambda: seen.append("next"))


# mpgrad only: torch keeps the gradients, mpgrad a failed backward's promise.
@paired("M9", torch=False)
def test_a_callbacks_error_leaves_grad_as_it_was(lib: Any) -> Any:
    x, w = leaf(lib, 3), leaf(lib, 3, seed=1)
    (x * 5).sum().backward()
    before, values = x.grad, x.grad.clone()
    y = x * w

    def fails() -> None:
        assert w.grad is not None
        raise LookupError("in a callback")

    def hook(_: Any) -> None:
        queue(lib, fails)

    y.register_hook(hook)
    error = error_of(lambda: y.sum().backward(), "in a callback")
    assert x.grad is before
    assert (x.grad - values).abs().sum().item() == 0.0
    return error, x.grad, w.grad


@paired("M9")
def test_a_failed_backward_calls_none(lib: Any) -> Any:
    seen: list[str] = []

    def hook(_: Any) -> None:
        queue(lib, lambda: seen.append("called"))

    def fails(_: Any) -> None:
        raise ValueError("in a hook")

    x = leaf(lib, 3)
    y = x * 2
    z = y * 3
    z.register_hook(hook)
    y.register_hook(fails)
    return error_of(lambda: z.sum().backward(), "in a hook"), seen


@paired("M10")
def test_a_callback_belongs_to_the_innermost_backward(lib: Any) -> Any:
    seen: list[str] = []
    x, z = leaf(lib, 3), leaf(lib, 2)

    def inner_hook(_: Any) -> None:
        queue(lib, lambda: seen.append(f"inner, z has a gradient: {z.grad is not None}"))

    def hook(_: Any) -> None:
        queue(lib, lambda: seen.append("outer, queued before"))
        with lib.enable_grad():
            w = z * 3
            w.register_hook(inner_hook)
            w.sum().backward()
        seen.append("inner has ended")
        queue(lib, lambda: seen.append("outer, queued after"))

    y = x * 2
    y.register_hook(hook)
    y.sum().backward()
    return seen


@paired("M9", "M10")
def test_a_callback_runs_a_backward_with_callbacks(lib: Any) -> Any:
    seen: list[str] = []
    z = leaf(lib, 2)

    def inner_hook(_: Any) -> None:
        queue(lib, lambda: seen.append("inner"))

    def callback() -> None:
        with lib.enable_grad():
            w = z * 3
            w.register_hook(inner_hook)
            w.sum().backward()
        seen.append("outer")

    grad = run_with(lib, callback)
    return grad, z.grad, seen


@paired("M9")
def test_grad_calls_them_too(lib: Any) -> Any:
    seen: list[bool] = []
    x = leaf(lib, 3)

    def derive(*, create_graph: bool) -> Any:
        y = x * x

        def hook(_: Any) -> None:
            queue(lib, lambda: seen.append(lib.is_grad_enabled()))

        y.register_hook(hook)
        (grad,) = lib.autograd.grad(y.sum(), x, create_graph=create_graph)
        return grad.detach()

    return derive(create_graph=False), derive(create_graph=True), seen, x.grad


@paired("M9")
def test_a_function_queues_a_callback(lib: Any) -> Any:
    seen: list[Any] = []

    class Queues(lib.autograd.Function):  # type: ignore[name-defined, misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.detach() * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            queue(lib, lambda: seen.append(x.grad.clone()))
            return grad * 2

    x = leaf(lib, 3)
    Queues.apply(x).sum().backward()
    return seen


@paired("M9")
def test_a_post_accumulate_hook_queues_a_callback(lib: Any) -> Any:
    seen: list[Any] = []
    x = leaf(lib, 3)
    x.register_post_accumulate_grad_hook(lambda t: queue(lib, lambda: seen.append(t.grad.clone())))
    (x * 3).sum().backward()
    return seen


@row("M9")
@pytest.mark.parametrize("mode", ["local", pytest.param("process", marks=pytest.mark.process)])
def test_callbacks_run_on_the_calling_thread(mode: str, request: pytest.FixtureRequest) -> None:
    if mode == "process":
        request.getfixturevalue("process_engine")
    seen: list[int] = []
    y = leaf(mg, 3) * 2
    y.register_hook(lambda _: mg.autograd.graph.queue_callback(lambda: seen.append(here())))
    y.sum().backward()
    assert seen == [here()]


def here() -> int:
    return threading.get_ident()


# The old name, which code that queues callbacks comes from.
@paired("M9")
def test_variable(lib: Any) -> Any:
    x = leaf(lib, 3)
    variable = lib.autograd.Variable
    plain, fresh = variable(x * 2), variable(x, requires_grad=True)
    return (
        isinstance(x, variable),
        isinstance(3, variable),
        plain,
        fresh,
        fresh.is_leaf,
        error_of(lambda: variable(3.0), "has to be a tensor"),
    )
