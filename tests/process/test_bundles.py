"""Tasks that hold several branches: their errors come in the order of the serial engine."""

from __future__ import annotations

from typing import Any

import pytest

import mpgrad as mg

pytestmark = pytest.mark.process


class Raises(mg.Function):
    """Raises what it is given, on a worker."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, text: str) -> mg.Tensor:
        ctx.text = text
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        if ctx.text:
            raise ValueError(ctx.text)
        return grad * 2.0, None


class RaisesHere(Raises):
    run_on = "client"


def backward(x: mg.Tensor, behind_first: str, in_second: str) -> None:
    second = Raises.apply(x, in_second)
    first = Raises.apply(RaisesHere.apply(x, behind_first), "")
    (first + second).sum().backward()


@pytest.mark.parametrize("mode", ["local", "process"])
def test_what_left_a_task_before_its_error_is_not_lost(mode: str) -> None:
    """One task holds both branches and fails in the second; behind the first there is an earlier
    error."""
    with mg.Engine(mode, cpu_workers=1):
        x = mg.ones(3, requires_grad=True)
        for _ in range(3):  # until the Functions are known to be cheap
            backward(x, "", "")
        x.grad = None
        with pytest.raises(ValueError, match="behind the first branch"):
            backward(x, "behind the first branch", "in the second branch")
        assert x.grad is None
