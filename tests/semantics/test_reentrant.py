"""Group M: a backward inside a backward: nesting, order, failure and depth."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from tests.semantics.paired import error_of, leaf, paired, row


@paired("M1")
def test_a_hook_runs_a_backward_of_its_own(lib: Any) -> Any:
    x, z = leaf(lib, 3), leaf(lib, 4, seed=1)
    y = x * x

    def hook(grad: Any) -> Any:
        with lib.enable_grad():
            (z * z * z).sum().backward()
        return grad * z.grad.sum()

    y.register_hook(hook)
    (y * 2).sum().backward()
    return x.grad, z.grad


@paired("M1")
def test_an_inner_backward_is_seen_at_once(lib: Any) -> Any:
    x, z = leaf(lib, 3), leaf(lib, 2, seed=1)
    seen: list[Any] = []

    def hook(_: Any) -> None:
        before = z.grad
        with lib.enable_grad():
            (z * 3).sum().backward()
        seen.append((before, z.grad.clone()))

    y = x * 2
    y.register_hook(hook)
    y.sum().backward()
    return seen, z.grad


@paired("M1")
def test_grad_inside_a_function(lib: Any) -> Any:
    class Differentiates(lib.autograd.Function):  # type: ignore[name-defined, misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return (x * x * x).detach()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (x,) = ctx.saved_tensors
            with lib.enable_grad():
                again = x.detach().requires_grad_()
                (found,) = lib.autograd.grad((again * again * again).sum(), again)
            return grad * found

    x = leaf(lib, 5)
    (Differentiates.apply(x) * 2).sum().backward()
    return x.grad


@paired("M1")
def test_the_inner_backward_adds_to_a_leaf_of_the_outer_one(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x * x

    def hook(_: Any) -> None:
        with lib.enable_grad():
            (x * 10).sum().backward()

    y.register_hook(hook)
    y.sum().backward()
    return x.grad


@paired("M4")
def test_an_inner_error_reaches_the_caller_as_it_is(lib: Any) -> Any:
    class Mine(Exception):
        def __init__(self, code: int, *, why: str) -> None:
            super().__init__(f"{code} {why}")
            self.code, self.why = code, why

    def inner_hook(_: Any) -> None:
        raise Mine(3, why="because")

    def hook(_: Any) -> None:
        with lib.enable_grad():
            z = leaf(lib, 2) * 2
        z.register_hook(inner_hook)
        with lib.enable_grad():
            total = z.sum()
        total.backward()

    x = leaf(lib, 3)
    y = x * 2
    y.register_hook(hook)
    error = error_of(lambda: y.sum().backward(), "3 because")
    assert isinstance(error, Mine)
    (x * 3).sum().backward()
    return error.code, error.why, x.grad


@paired("M4")
def test_an_inner_error_may_be_caught(lib: Any) -> Any:
    x, z = leaf(lib, 3), leaf(lib, 2, seed=1)
    caught: list[BaseException] = []

    def hook(grad: Any) -> Any:
        with lib.enable_grad():
            w = (z * z).exp().sum()
            w.backward()
            caught.append(error_of(w.backward, "a second time"))
        return grad * 2

    y = x * 3
    y.register_hook(hook)
    y.sum().backward()
    return x.grad, z.grad, caught


class Deep:
    """torch's own test of deep reentrancy, for either library."""

    def __init__(self, lib: Any) -> None:
        class DeepReentrant(lib.autograd.Function):  # type: ignore[name-defined, misc]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                with lib.enable_grad():
                    ctx.x = x.detach().requires_grad_() - 1
                return ctx.x.detach()

            @staticmethod
            def backward(ctx: Any, grad: Any) -> Any:
                if ctx.x.item() < 0:
                    return grad
                with lib.enable_grad():
                    DeepReentrant.apply(ctx.x).sum().backward()
                return grad

        self.apply = DeepReentrant.apply

    def dive(self, lib: Any, depth: int) -> Any:
        x = lib.tensor(float(depth), requires_grad=True)
        self.apply(x).sum().backward()
        return x.grad


@paired("M2")
def test_two_thousand_deep(lib: Any) -> Any:
    deep = Deep(lib)
    return deep.dive(lib, 2000), deep.dive(lib, 200)


@row("M2", "M11")
def test_what_a_thread_knows_goes_along() -> None:
    """Below the depth at which helper threads take over everything is as above."""
    modes: list[tuple[bool, str]] = []

    def dive(depth: int) -> None:
        x = mg.tensor([2.0], requires_grad=True)
        y = x * 3

        def hook(_: mg.Tensor) -> None:
            with np.errstate(over="raise"), mg.enable_grad():
                modes.append((mg.is_grad_enabled(), np.geterr()["over"]))
                if depth:
                    dive(depth - 1)

        y.register_hook(hook)
        y.sum().backward()

    with mg.Engine("local"), np.errstate(over="ignore"):
        dive(50)
        assert mg.is_grad_enabled()
        assert np.geterr()["over"] == "ignore"
    assert modes == [(True, "raise")] * 51


@row("M2")
def test_helper_threads_are_used_again() -> None:
    def helpers() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "mpgrad-backward"}

    deep = Deep(mg)
    with mg.Engine("local"):
        deep.dive(mg, 100)
        before = helpers()
        assert before
        deep.dive(mg, 100)
        assert helpers() <= before  # those of other tests may end meanwhile


# torch 2.13 turns an error that crosses its helper threads into a SystemError.
@paired("M4", torch=False)
def test_an_error_from_far_down(lib: Any) -> Any:
    class Found(LookupError):
        pass

    def dive(depth: int) -> None:
        with lib.enable_grad():
            y = leaf(lib, 2) * 3

        def hook(_: Any) -> None:
            if not depth:
                raise Found("at the bottom")
            dive(depth - 1)

        y.register_hook(hook)
        with lib.enable_grad():
            total = y.sum()
        total.backward()

    return error_of(lambda: dive(100), "at the bottom")


# mpgrad only: torch leaves what was added before the failure.
@paired("M4", "L1", torch=False)
def test_a_failure_undoes_what_inner_backwards_added(lib: Any) -> Any:
    x, z, w = leaf(lib, 3), leaf(lib, 2, seed=1), leaf(lib, 2, seed=2)
    (z * 5).sum().backward()
    old, values = z.grad, z.grad.clone()

    def hook(_: Any) -> None:
        with lib.enable_grad():
            (z * w).sum().backward()
            (z * w).sum().backward()

    def fails(_: Any) -> None:
        raise ValueError("later")

    u = x * 2
    y = u * 3
    y.register_hook(hook)
    u.register_hook(fails)
    error_of(lambda: y.sum().backward(), "later")
    assert z.grad is old
    assert (z.grad - values).abs().sum().item() == 0
    assert w.grad is None
    return z.grad, w.grad, x.grad


@paired("M4", torch=False)  # as above
def test_only_the_inner_backward_is_undone_if_its_error_is_caught(lib: Any) -> Any:
    x, z, w = leaf(lib, 3), leaf(lib, 2, seed=1), leaf(lib, 2, seed=2)

    def innermost(_: Any) -> None:
        with lib.enable_grad():
            (w * 3).sum().backward()

    def fails(_: Any) -> None:
        raise ValueError("inner")

    def hook(_: Any) -> None:
        with lib.enable_grad():
            (z * 2).sum().backward()
            u = z * 5
            u.register_hook(fails)
            v = u * 7
            v.register_hook(innermost)
            error_of(v.sum().backward, "inner")

    y = x * 2
    y.register_hook(hook)
    y.sum().backward()
    assert w.grad is None
    return x.grad, z.grad


@paired("M17")
def test_a_hook_starts_threads_that_run_backwards(lib: Any) -> Any:
    x = leaf(lib, 3)
    others = [leaf(lib, 2, seed=seed) for seed in range(4)]

    def work(z: Any) -> None:
        with lib.enable_grad():
            (z * z).sum().backward()

    def hook(_: Any) -> None:
        threads = [threading.Thread(target=work, args=(z,)) for z in others]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    y = x * 2
    y.register_hook(hook)
    y.sum().backward()
    return x.grad, [z.grad for z in others]


@row("M4")
@pytest.mark.parametrize("mode", ["local", pytest.param("process", marks=pytest.mark.process)])
def test_a_failure_undoes_a_post_accumulate_hooks_gradient(
    mode: str, request: pytest.FixtureRequest
) -> None:
    if mode == "process":
        request.getfixturevalue("process_engine")
    x, y = leaf(mg, 3), leaf(mg, 3, seed=1)
    (x * 2).sum().backward()
    old = x.grad

    def fails(_: mg.Tensor) -> None:
        raise ValueError("later")

    x.register_post_accumulate_grad_hook(lambda _: None)
    middle = y * 1
    middle.register_hook(fails)
    error_of(lambda: (middle.exp() + x * 5).sum().backward(), "later")
    assert x.grad is old
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
