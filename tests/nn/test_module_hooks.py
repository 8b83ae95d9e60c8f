"""Hooks of all Modules, hooks that are always called, and PyTorch's first backward hooks."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest

import mpgrad as mg
from mpgrad import nn
from mpgrad.nn import module_hooks
from tests.torch_outcomes import Of


def _registering(T: Any) -> Any:
    return module_hooks if T is mg else T.nn.modules.module


def _name(module: Any) -> str:
    return type(module).__name__


def of_all(T: Any) -> Any:
    made, seen = _registering(T), []
    net = T.nn.Sequential(T.nn.Tanh(), T.nn.Sigmoid())
    net[0].register_forward_hook(lambda module, args, out: seen.append(["own", _name(module)]))
    handles = [
        made.register_module_forward_pre_hook(
            lambda module, args: seen.append(["pre", _name(module)])
        ),
        made.register_module_forward_hook(
            lambda module, args, kwargs, out: seen.append(["forward", _name(module), len(kwargs)]),
            with_kwargs=True,
        ),
        made.register_module_full_backward_pre_hook(
            lambda module, out: seen.append(["before", _name(module), out[0].tolist()])
        ),
        made.register_module_full_backward_hook(
            lambda module, given, out: (given[0] * 2,) if _name(module) == "Sigmoid" else None
        ),
    ]
    x = T.zeros(2, requires_grad=True)
    net(x).sum().backward()
    for handle in handles:
        handle.remove()
    count = len(seen)
    net[1](x)
    return [seen, x.grad.tolist(), len(seen) == count]


def replaced_for_all(T: Any) -> Any:
    made = _registering(T)
    with (
        made.register_module_forward_pre_hook(lambda module, args: (args[0] + 1,)),
        made.register_module_forward_hook(lambda module, args, out: out * 10),
    ):
        return T.nn.Identity()(T.zeros(2)).tolist()


def always_called(T: Any) -> Any:
    class Fails(T.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            if x.sum() > 0:
                raise ValueError("no")
            return x

    net, seen = Fails(), []
    net.register_forward_hook(lambda m, args, out: seen.append("sometimes"))
    net.register_forward_hook(lambda m, args, out: seen.append(out is None), always_call=True)
    handle = _registering(T).register_module_forward_hook(
        lambda m, args, out: seen.append("all"), always_call=True
    )
    net(T.zeros(1))
    with pytest.raises(ValueError, match="no"):
        net(T.ones(1))
    handle.remove()

    def broken(m: Any, args: Any, out: Any) -> None:
        raise KeyError("broken")

    net.register_forward_hook(broken, always_call=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match="no"):
            net(T.ones(1))
    return [seen, ["silenced" in str(warning.message) for warning in caught]]


def first_backward_hooks(T: Any) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        told = _first_backward_hooks(T)
    return [told, [warning.category.__name__ for warning in caught]]


def _first_backward_hooks(T: Any) -> Any:
    layer, seen = T.nn.Linear(2, 1), []
    T.nn.init.constant_(layer.weight, 2)
    layer.register_backward_hook(lambda m, given, out: seen.append([g.tolist() for g in out]))
    x = T.ones(1, 2, requires_grad=True)
    layer(x).sum().backward()
    scaled = T.nn.Tanh()
    scaled.register_backward_hook(lambda m, given, out: tuple(g * 3 for g in given))
    y = T.zeros(2, requires_grad=True)
    scaled(y).sum().backward()
    with pytest.raises(RuntimeError, match="both regular backward hooks and full backward hooks"):
        layer.register_full_backward_hook(lambda *given: None)
    return [seen, x.grad.tolist(), y.grad.tolist()]


def counted_and_cleared(T: Any) -> Any:
    layer, seen = T.nn.Tanh(), []
    layer.register_forward_hook(lambda *given: seen.append(1))
    layer.register_forward_pre_hook(lambda *given: seen.append(2))
    counts = [len(layer._forward_hooks), len(layer._forward_pre_hooks), len(layer._backward_hooks)]
    layer(T.ones(1))
    layer._forward_hooks.clear()
    layer(T.ones(1))
    layer._forward_pre_hooks = OrderedDict()
    layer(T.ones(1))
    return [counts, seen]


PROGRAMS = (of_all, replaced_for_all, always_called, first_backward_hooks, counted_and_cleared)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_it_does_what_pytorch_does(program: Callable[[Any], Any], of_torch: Of) -> None:
    here = program(mg)
    for oracle, there in of_torch(program):
        assert here == there, oracle


def test_a_compiled_step_sees_hooks_of_all_modules_come_and_go() -> None:
    layer, seen = nn.Linear(2, 2), []

    @mg.compile
    def step(x: mg.Tensor) -> mg.Tensor:
        return layer(x).sum()

    x = mg.ones(1, 2)
    before = [step(x).item() for _ in range(3)]
    with module_hooks.register_module_forward_hook(lambda m, args, out: seen.append(1) or out * 2):
        doubled = step(x).item()
    assert (before, doubled, step(x).item(), seen) == (
        [before[0]] * 3,
        2 * before[0],
        before[0],
        [1],
    )
