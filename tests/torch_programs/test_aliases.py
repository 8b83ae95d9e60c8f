"""Promises of calls in a PyTorch program: what shares memory, which leaves count; wherever calls
run."""

from __future__ import annotations

import copy
import functools
import http
import io
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import mpgrad as mg  # noqa: E402
import mpgrad.torch as mt  # noqa: E402
from tests.torch_programs.test_both_passes import (  # noqa: E402
    bits,
    engine,
    every_test_is_watched,
    leaves,
    same_in_both,
)

__all__ = ["engine", "every_test_is_watched"]
pytestmark = [pytest.mark.process, pytest.mark.torch]


# ---------------------------------------------------------------------- results that share memory


def views(x: Any, y: Any) -> tuple[Any, ...]:
    return x.t(), y[0], y.detach(), x.data


def pairs(x: Any, y: Any) -> tuple[Any, ...]:
    z = x * y
    return z, z.t(), z.data[1:]


def _add(x: Any) -> None:
    x += 1


def _set(x: Any) -> None:
    x[0] = 1


#: Every way to change a tensor in place that is written differently.
CHANGES: dict[str, Callable[[Any], Any]] = {
    "method": lambda x: x.add_(1),
    "operator": _add,
    "item": _set,
    "view": lambda x: x[:1].mul_(2),
    "alias": lambda x: x.detach().zero_(),
    "out": lambda x: torch.add(x, 1, out=x),
    "function": torch.relu_,
    "inplace": lambda x: torch.nn.functional.relu(x, inplace=True),
    "foreach": lambda x: torch._foreach_add_([x], 1),
    "init": torch.nn.init.zeros_,
    "data": lambda x: x.data.fill_(3),
}


@pytest.mark.parametrize("fn", [views, pairs])
@pytest.mark.parametrize("size", [2, 300], ids=["small", "in the arena"])
def test_a_result_that_shares_memory_is_not_changed_in_place(
    engine: mg.Engine, fn: Any, size: int
) -> None:
    """In a loop the change would be seen in the argument or the other result, here in none."""
    x, y = (one.detach() for one in leaves(0, (size, size), (size, size)))
    (outs,) = mt.parallel_map(fn, [x], [y])
    assert bits(*outs) == bits(*fn(x, y))
    for out in outs:
        assert isinstance(out, torch.Tensor)
        for change in CHANGES.values():
            with pytest.raises(RuntimeError, match=r"clone\(\)"):
                change(out)
        assert not out.numpy().flags.writeable
        assert type(out.clone().add_(1)) is torch.Tensor
    assert bits(*outs) == bits(*fn(x, y))


@pytest.mark.parametrize("change", CHANGES)
def test_such_a_result_with_a_history_is_not_changed_in_place(
    engine: mg.Engine, change: str
) -> None:
    x, y = leaves(1, (3, 3), (3, 3))
    (outs,) = mt.parallel_map(pairs, [x], [y])
    for out in outs:
        with torch.no_grad(), pytest.raises(RuntimeError, match=r"clone\(\)"):
            CHANGES[change](out)
    assert bits(*outs) == bits(*pairs(x, y))


def test_such_a_result_is_differentiated(engine: mg.Engine) -> None:
    def program(run: Any) -> list[Any]:
        x, y = leaves(1, (3, 3), (3, 3))
        ((a, b, c),) = run(pairs, [x], [y])
        b.register_hook(lambda grad: grad * 2)
        (a + b.t() + b + c.sum()).sum().backward()
        return bits(x.grad, y.grad, c)

    same_in_both(program)


def test_such_a_result_is_a_tensor_like_others(engine: mg.Engine) -> None:
    x = torch.arange(9.0).view(3, 3)
    (out,) = mt.parallel_map(lambda x: x.t(), [x])
    assert mt.parallel_map(lambda y: (type(y) is torch.Tensor, y.sum().item()), [out]) == [
        (True, 36.0)
    ]
    for made in (copy.deepcopy(out), torch.stack([out, out])[0], torch.empty(3, 3).copy_(out)):
        assert type(made) is torch.Tensor
        assert bits(made) == bits(x.t())
    file = io.BytesIO()
    torch.save(out, file)
    file.seek(0)
    assert type(torch.load(file)) is torch.Tensor
    layer = torch.nn.Linear(3, 3)
    layer.weight = torch.nn.Parameter(out.clone())
    layer(out).sum().backward()
    assert layer.weight.grad is not None
    gradient = torch.func.grad(lambda y: (y * y).sum())(out)
    assert bits(gradient) == bits(2 * x.t())


def test_other_results_may_be_changed(engine: mg.Engine) -> None:
    (x,) = leaves(2, (4, 4))

    def makes(y: Any) -> Any:
        one, two = (y.detach() * 2).chunk(2)  # the same memory, but not the same elements
        return y * 2, (y * 3).t(), one, two

    ((first, second, one, two),) = mt.parallel_map(makes, [x])
    for out in (first, second, one, two):
        out.add_(1)
    (first.sum() + second.sum()).backward()
    assert bits(x.grad) == bits(torch.full((4, 4), 5.0))


def test_a_model_that_comes_back_with_its_state(engine: mg.Engine) -> None:
    """The state shares the parameters' memory."""

    def trained(seed: int) -> Any:
        torch.manual_seed(seed)
        model = torch.nn.Linear(2, 2)
        return model, model.state_dict()

    ((model, state),) = mt.parallel_map(trained, [1])
    assert list(dict(model.named_parameters())) == ["weight", "bias"]
    assert bits(*state.values()) == bits(*model.parameters())
    model(torch.ones(2)).sum().backward()
    with pytest.raises(RuntimeError, match=r"clone\(\)"):
        torch.optim.SGD(model.parameters(), 0.1).step()


# ---------------------------------------------------------------------- leaves that are no inputs


def test_a_leaf_that_does_not_travel_is_an_error(engine: mg.Engine) -> None:
    """An installed module holds it; where it exists, it is older than the call."""
    http.leaf = torch.ones(3, requires_grad=True)  # type: ignore[attr-defined]

    def leaf() -> Any:
        if not hasattr(http, "leaf"):  # a worker's first item makes it
            http.leaf = torch.ones(3, requires_grad=True)
        return http.leaf

    try:
        (x,) = leaves(3, (3,))
        with pytest.raises(RuntimeError, match=r"gradient would be lost.*shared"):
            mt.parallel_map(lambda y: (y * leaf()).sum(), [x] * 16)
        out = mt.parallel_map(lambda y: (y * leaf().detach()).sum(), [x])[0]
        out.backward()
        assert bits(x.grad) == bits(torch.ones(3))
    finally:
        del http.leaf  # type: ignore[attr-defined]


class Keeps(torch.autograd.Function):
    """Its ctx holds what the call has made."""

    @staticmethod
    def forward(ctx: Any, x: Any, layer: Any) -> Any:
        ctx.layer = layer
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * 2, None


def test_a_leaf_that_the_call_makes_is_none(engine: mg.Engine) -> None:
    """Also one that its graph, a cycle or a cache of the function's own holds."""
    from torch.utils.checkpoint import checkpoint

    @functools.lru_cache
    def weight() -> Any:
        return torch.ones(3, requires_grad=True)

    def trains(y: Any) -> Any:
        layer, late = torch.nn.Linear(3, 1), torch.ones(1).requires_grad_()
        cycle: list[Any] = [layer]
        cycle.append(cycle)
        out = Keeps.apply(layer(y), layer) * late
        return checkpoint(lambda z: z * layer.weight.sum(), out, use_reentrant=False).sum()

    for fn in (trains, lambda y: (weight() * y).sum()):
        (x,) = leaves(4, (3,))
        for _ in range(2):
            mt.parallel_map(fn, [x])[0].backward()
        assert x.grad is not None


def test_a_buffer_changes_once_though_leaves_are_sought(engine: mg.Engine) -> None:
    """To know whether a leaf is older than the call it runs a second time, on copies."""

    def program(run: Any) -> list[Any]:
        norm = torch.nn.BatchNorm1d(3)

        def trains(x: Any) -> Any:
            layer = torch.nn.Linear(3, 3)
            with torch.no_grad():
                layer.weight.fill_(0.5)
                layer.bias.zero_()
            return Keeps.apply(norm(layer(x)), layer).sum()

        (out,) = run(trains, leaves(5, (4, 3)))
        out.backward()
        return bits(*norm.buffers(), *[p.grad for p in norm.parameters()])

    same_in_both(program)


def test_elements_that_only_change_places_are_a_change(engine: mg.Engine) -> None:
    def sorts(x: Any) -> Any:
        x.numpy().sort()
        return x.sum()

    x = torch.tensor([2.0, 1.0, 3.0, 4.0], dtype=torch.float64)
    with pytest.raises(RuntimeError, match="in place"):
        mt.parallel_map(sorts, [x])
    assert x.tolist() == [2.0, 1.0, 3.0, 4.0]
