"""``func.functional_call`` does what PyTorch's does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mpgrad as mg
from tests.torch_outcomes import Of


def _error(function: Callable[[], Any]) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - both libraries' are compared
        function()
    return f"{type(caught.value).__name__}: {caught.value}".replace("mpgrad.", "torch.")


def _tied(T: Any) -> Any:
    class Tied(T.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.l1 = T.nn.Linear(1, 1)
            self.tied_bias = self.l1.bias
            self.buffer = T.nn.Buffer(T.ones(1))
            self.plain = T.ones(1)

        def forward(self, x: Any, *, more: float = 0) -> Any:
            return self.l1(x) + self.tied_bias + self.buffer * self.plain + more

    module = Tied()
    for parameter in module.parameters():
        T.nn.init.constant_(parameter, 3)
    return module


def ties(T: Any) -> Any:
    module, call = _tied(T), T.func.functional_call
    x, bias = T.ones(1, 1), T.tensor([5.0])
    told = [
        call(module, {"l1.bias": bias}, x).tolist(),
        call(module, {"l1.bias": bias}, x, tie_weights=False).tolist(),
        call(module, {"l1.bias": bias, "tied_bias": bias}, x, {"more": 1}).tolist(),
        _error(lambda: call(module, {"l1.bias": bias, "tied_bias": T.tensor([6.0])}, x)),
    ]
    return [*told, module(x).tolist(), list(module.state_dict())]


def names(T: Any) -> Any:
    module, call, x = _tied(T), T.func.functional_call, T.ones(1, 1)
    one, two = T.tensor([1.0]), T.tensor([2.0])
    told = [
        call(module, {"plain": two}, x).tolist(),
        call(module, {"extra": two}, x).tolist(),
        call(module, ({"buffer": one}, {"plain": two}), x).tolist(),
        call(module, (), x).tolist(),
        hasattr(module, "extra"),
        module.plain.tolist(),
    ]
    return [
        told,
        _error(lambda: call(module, ({"buffer": one}, {"buffer": two}), x)),
        _error(lambda: call(module, {"buffer": one}, x, strict=True)),
        _error(lambda: call(module, {**dict(module.state_dict()), "extra": one}, x, strict=True)),
        _error(lambda: call(module, {"buffer": 3}, x)),
        _error(lambda: call(module, 3, x)),
        module(x).tolist(),
    ]


def what_the_call_assigns(T: Any) -> Any:
    class Counting(T.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.seen = T.nn.Buffer(T.tensor([0.0]))
            self.kept = T.nn.Buffer(T.tensor([0.0]))

        def forward(self, x: Any) -> Any:
            self.seen = self.seen + 1
            self.kept.add_(1)
            return x + self.seen

    module, given = Counting(), {"seen": T.tensor([2.0]), "kept": T.tensor([5.0])}
    first = T.func.functional_call(module, given, T.ones(1)).tolist()
    return [
        first,
        {k: v.tolist() for k, v in given.items()},
        module.seen.tolist(),
        module.kept.tolist(),
    ]


def a_circle(T: Any) -> Any:
    module = T.nn.Sequential(T.nn.Linear(1, 1))
    module[0].back = module
    given = {"0.back.0.weight": T.tensor([[2.0]]), "0.bias": T.tensor([1.0])}

    class Called(T.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.m = module

        def forward(self, x: Any) -> Any:
            return T.nn.functional.linear(x, self.m[0].weight, self.m[0].bias)

    call = T.func.functional_call
    return call(
        Called(), {f"m.{k}": v for k, v in given.items()}, T.ones(1, 1), tie_weights=False
    ).tolist()


def a_failing_call(T: Any) -> Any:
    module = _tied(T)
    with pytest.raises(RuntimeError):
        T.func.functional_call(
            module, {"l1.weight": T.ones(3, 3), "extra": T.ones(1)}, T.ones(1, 1)
        )
    return [module.l1.weight.tolist(), hasattr(module, "extra")]


PROGRAMS = (ties, names, what_the_call_assigns, a_circle, a_failing_call)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_it_does_what_pytorch_does(program: Callable[[Any], Any], of_torch: Of) -> None:
    here = program(mg)
    for oracle, there in of_torch(program):
        assert here == there, oracle
