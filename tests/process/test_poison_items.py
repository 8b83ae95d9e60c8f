"""An item that kills its worker each time: an error after two deaths, which names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.errors import WorkerLost
from tests.process.poison import DEATHS, dies

pytestmark = pytest.mark.process


class DiesBackward(mg.Function):
    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, item: int, how: str, directory: Path) -> mg.Tensor:
        ctx.given = item, how, directory
        return x.detach() * 2.0

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        dies(*ctx.given)
        return grad * 2.0, None, None, None


def forward(x: mg.Tensor, item: int, how: str, directory: Path) -> mg.Tensor:
    dies(item, how, directory)
    return (x * 2.0).sum()


def backward(x: mg.Tensor, item: int, how: str, directory: Path) -> mg.Tensor:
    return DiesBackward.apply(x, item, how, directory).sum()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fn", "how"), [(forward, "segfault"), (forward, "exit"), (backward, "abort")]
)
def test_it_is_named_and_the_engine_goes_on(
    fn: Callable[..., Any], how: str, tmp_path: Path
) -> None:
    x = mg.ones(3, requires_grad=True)

    def run(items: list[int], retries: int = 0) -> None:
        shared = (how, tmp_path)
        outs = mg.parallel_map(fn, [x] * len(items), items, shared=shared, retries=retries)
        mg.stack(outs).sum().backward()

    with mg.Engine("process", cpu_workers=2):
        with pytest.raises(WorkerLost, match=rf"{fn.__name__} of item 2\b") as caught:
            run([0, 1, 2, 3], retries=3)  # an attempt is for an error, not for a death
        assert DEATHS[how][1] in str(caught.value)
        assert (tmp_path / "begun").read_text() == "xx"
        assert x.grad is None
        run([0, 1, 3])
        assert x.grad is not None
        assert x.grad.tolist() == [6.0] * 3


@pytest.mark.slow
def test_a_fork_that_kills_its_workers(tmp_path: Path) -> None:
    x = mg.ones(3, requires_grad=True)
    with mg.Engine("process", cpu_workers=2):
        futures = [mg.fork(forward, x, item, "segfault", tmp_path) for item in (2, 0)]
        with pytest.raises(WorkerLost, match=r"^forward: .* killed by SIGSEGV \(2 times\)"):
            mg.wait(futures[0])
        assert mg.wait(futures[1]).item() == 6.0
