"""Programs of users who write types: mypy checks this file as strictly as it can.

Nothing here is run. ``assert_type`` says what type checkers must find.
"""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np

import mpgrad as mg
from mpgrad.autograd.function import FunctionContext, once_differentiable


class Simulate(mg.Function):
    """README's."""

    @staticmethod
    def forward(ctx: FunctionContext, x: mg.Tensor, steps: int) -> mg.Tensor:
        ctx.steps = steps
        ctx.save_for_backward(x)
        return x.detach() * 2.0

    @staticmethod
    def backward(ctx: FunctionContext, grad: mg.Tensor) -> tuple[mg.Tensor, None]:
        (x,) = ctx.saved_tensors
        decay = 1.0
        for _ in range(ctx.steps):
            decay = decay * 0.999999 + 1e-7
        return grad * 2.0 * decay * x.sign(), None


class InTwoParts(mg.Function):
    """With ``setup_context``, several outputs, and arrays."""

    run_on = "worker"

    @staticmethod
    def forward(x: mg.Tensor, y: mg.Tensor) -> tuple[mg.Tensor, np.ndarray[Any, Any]]:
        return x * y, x.numpy() + y.numpy()

    @staticmethod
    def setup_context(
        ctx: FunctionContext, inputs: tuple[mg.Tensor, mg.Tensor], output: Any
    ) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: FunctionContext, product: mg.Tensor, total: mg.Tensor
    ) -> tuple[mg.Tensor, mg.Tensor]:
        x, y = ctx.saved_tensors
        return product * y + total, product * x + total


@mg.no_grad()
def called(x: mg.Tensor) -> mg.Tensor:
    return x * 2


@mg.no_grad
def bare(x: mg.Tensor, times: int) -> mg.Tensor:
    return x * times


@mg.inference_mode()
def inferred(x: mg.Tensor) -> int:
    return x.numel()


@mg.enable_grad()
def enabled(x: mg.Tensor) -> mg.Tensor:
    return x


@mg.set_grad_enabled(False)
def switched(x: mg.Tensor) -> mg.Tensor:
    return x


@mg.profiler.record_function("mine")
def recorded(x: mg.Tensor) -> mg.Tensor:
    return x


def uses(x: mg.Tensor) -> float:
    """What the decorated functions are to a checker."""
    assert_type(called(x), mg.Tensor)
    assert_type(bare(x, 3), mg.Tensor)
    assert_type(inferred(x), int)
    assert_type(enabled(x), mg.Tensor)
    assert_type(switched(x), mg.Tensor)
    assert_type(recorded(x), mg.Tensor)
    with mg.no_grad(), mg.inference_mode(False), mg.set_grad_enabled(True):
        y: mg.Tensor = Simulate.apply(x, 3)
    with mg.Engine(mode="process") as engine:
        y.sum().backward()
        assert_type(engine, mg.Engine)
    with mg.profiler.profile() as prof:
        assert_type(prof, mg.profiler.profile)
    return float(y.sum().item())


def slope(x: mg.Tensor) -> mg.Tensor:
    """A gradient penalty: None is possible only where it was asked for."""
    (unused,) = mg.grad(x.sum(), x, allow_unused=True)
    assert_type(unused, mg.Tensor | None)
    (found,) = mg.grad(x.sum(), x, create_graph=True)
    return (found**2).sum()
