"""An item that kills its worker each time: an error after two deaths, named, with torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import mpgrad as mg  # noqa: E402
import mpgrad.torch as mt  # noqa: E402
from mpgrad.errors import WorkerLost  # noqa: E402
from tests.process.poison import DEATHS, dies  # noqa: E402

pytestmark = [pytest.mark.process, pytest.mark.torch]


class DiesBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, item: int, how: str, directory: Path) -> torch.Tensor:
        ctx.given = item, how, directory
        return x.detach() * 2.0

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        dies(*ctx.given)
        return grad * 2.0, None, None, None


def forward(x: torch.Tensor, item: int, how: str, directory: Path) -> torch.Tensor:
    dies(item, how, directory)
    return (x * 2.0).sum()


def backward(x: torch.Tensor, item: int, how: str, directory: Path) -> torch.Tensor:
    return DiesBackward.apply(x, item, how, directory).sum()


@pytest.mark.slow
@pytest.mark.parametrize(("fn", "how"), [(forward, "segfault"), (backward, "exit")])
def test_it_is_named_and_the_engine_goes_on(
    fn: Callable[..., Any], how: str, tmp_path: Path
) -> None:
    x = torch.ones(3, requires_grad=True)

    def run(items: list[int], retries: int = 0) -> None:
        shared = (how, tmp_path)
        outs = mt.parallel_map(fn, [x] * len(items), items, shared=shared, retries=retries)
        torch.stack(outs).sum().backward()

    with mg.Engine("process", cpu_workers=2):
        with pytest.raises(WorkerLost, match=rf"{fn.__name__} of item 2\b") as caught:
            run([0, 1, 2, 3], retries=3)  # an attempt is for an error, not for a death
        assert DEATHS[how][1] in str(caught.value)
        assert (tmp_path / "begun").read_text() == "xx"
        assert x.grad is None
        run([0, 1, 3])
        assert x.grad is not None
        assert x.grad.tolist() == [6.0] * 3
