"""What a call gets and no result depends on: no hook of it runs, as in a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import mpgrad as mg  # noqa: E402
import mpgrad.torch as mt  # noqa: E402
from tests.torch_programs.test_both_passes import engine, every_test_is_watched, serial  # noqa: E402
from tests.torch_programs.test_semantics import forks, one_by_one  # noqa: E402

__all__ = ["engine", "every_test_is_watched"]
pytestmark = [pytest.mark.process, pytest.mark.torch]


def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * 2.0).sum() if w.numel() else w.sum()


@pytest.mark.parametrize("run", [mt.parallel_map, forks, one_by_one])
@pytest.mark.parametrize("is_hooked_before", [True, False])
def test_no_hook_runs(
    engine: mg.Engine, run: Callable[..., Any], *, is_hooked_before: bool
) -> None:
    """It was so: a leaf's hook was called with None, and failed on it."""
    xs = [torch.ones(3, requires_grad=True) for _ in range(3)]
    w = torch.ones(2, requires_grad=True)
    if is_hooked_before:
        w.register_hook(lambda grad: grad * 2.0)
    outs = run(scaled, xs, shared=(w,))
    if not is_hooked_before:
        w.register_hook(lambda grad: grad * 2.0)
    torch.stack(outs).sum().backward()
    assert w.grad is None
    assert [one.grad.tolist() for one in xs] == [[2.0] * 3] * 3


@pytest.mark.parametrize("run", [mt.parallel_map, forks])
def test_a_gradient_of_what_is_not_reached_is_torchs_error(
    engine: mg.Engine, run: Callable[..., Any]
) -> None:
    x, w = torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)
    (out,) = run(scaled, [x], shared=(w,))
    with pytest.raises(RuntimeError, match="appears to not have been used in the graph"):
        torch.autograd.grad(out, [w])


@pytest.mark.parametrize("run", [mt.parallel_map, forks])
@pytest.mark.parametrize("of_leaf", [True, False])
def test_create_graph_runs_hooks_of_the_caller_once(
    engine: mg.Engine, run: Callable[..., Any], of_leaf: bool
) -> None:
    """It was so: they ran for the gradients of each call, and again for their sum."""
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    used, seen = parameter if of_leaf else parameter * 1.5, []
    used.register_hook(lambda grad: seen.append(1) or grad * 2.0)
    found = []
    for way in (serial, run):
        seen.clear()
        outs = way(lambda y, w: (y * w**2).sum(), [torch.ones(3)] * 3, shared=(used,))
        (first,) = torch.autograd.grad(sum(outs), parameter, create_graph=True)
        assert seen == [1]
        (second,) = torch.autograd.grad(first.sum(), parameter, retain_graph=True)
        found.append((first.tolist(), second.tolist()))
    assert found[0] == found[1]
