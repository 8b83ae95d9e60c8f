"""User code in the backward of an item: its random numbers, and what it changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.nn.module_hooks import register_module_forward_hook
from tests.process.test_parallel_map import engine, every_test_is_watched

__all__ = ["engine", "every_test_is_watched"]
pytestmark = pytest.mark.process

LOG: list[int] = []


class Noisy(mg.Function):
    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> mg.Tensor:
        return grad * (2 + np.random.rand() + random.random())


def with_noise(k: int, w: mg.Tensor) -> mg.Tensor:
    y = Noisy.apply(w * k)
    y.register_hook(lambda grad: grad + mg.rand(1))
    return y.sum()


def forks(fn: Callable[..., Any], items: Any, shared: tuple[Any, ...]) -> list[Any]:
    return [mg.wait(one) for one in [mg.fork(fn, item, *shared) for item in items]]


@pytest.mark.parametrize("run", [mg.parallel_map, forks])
def test_random_numbers(engine: mg.Engine, run: Callable[..., Any]) -> None:
    """It was so: they depended on the number of workers."""

    def found() -> tuple[Any, ...]:
        mg.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        w = mg.zeros(1, requires_grad=True)
        mg.stack(run(with_noise, range(1, 7), shared=(w,))).sum().backward()
        return w.grad.item(), mg.rand(1).item(), np.random.rand(), random.random()

    with mg.Engine("local"):
        here = found()
    assert found() == here


class Counts(mg.Function):
    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.numpy() * 1

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> mg.Tensor:
        LOG.append(1)
        return grad * len(LOG)


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def hook(self, grad: mg.Tensor) -> None:
        self.count += 1


COUNTER = Counter()


def with_a_function(x: mg.Tensor) -> Any:
    return Counts.apply(x).sum()


def with_a_hook(x: mg.Tensor) -> Any:
    y = x * 2
    y.register_hook(COUNTER.hook)
    return y.sum()


def with_a_list(x: mg.Tensor) -> Any:
    seen: list[Any] = []
    y = x * 2
    y.register_hook(seen.append)
    return y.sum(), seen


@pytest.mark.parametrize(
    ("fn", "name", "path"),
    [
        (with_a_function, "LOG", r"\.LOG"),
        (with_a_hook, "count", "COUNTER.count"),
        (with_a_list, "", r"its result\[1\]"),
    ],
)
def test_what_it_changes_is_an_error(
    engine: mg.Engine, fn: Callable[..., Any], name: str, path: str
) -> None:
    """It was so: the caller's own stayed as it was, without a word."""

    def run(**options: Any) -> None:
        x = mg.ones(2, requires_grad=True)
        (out,) = mg.parallel_map(fn, [x], **options)
        (out[0] if isinstance(out, tuple) else out).backward()

    with pytest.raises(RuntimeError, match=rf"{path}.* in its backward, which would be lost"):
        run()
    if name:
        run(changes=(name,))
    assert COUNTER.count == 0


def test_hooks_of_all_modules_are_refused(engine: mg.Engine) -> None:
    net = mg.nn.Linear(2, 1)
    handle = register_module_forward_hook(lambda module, args, output: output * 2)
    try:
        with pytest.raises(RuntimeError, match="hooks of all Modules"):
            mg.parallel_map(net, [mg.ones(2)])
    finally:
        handle.remove()
    assert len(mg.parallel_map(net, [mg.ones(2)])) == 1


class Done(Exception):
    def __init__(self, x: mg.Tensor) -> None:
        super().__init__("done")
        self.parts = [x]


def test_a_tensor_in_an_exception_has_no_history(engine: mg.Engine) -> None:
    """It was so: a backward of it ended at a copy, and the caller's leaf had no gradient."""

    def raises(k: int, w: mg.Tensor) -> None:
        raise Done(w * k)

    w = mg.ones(1, requires_grad=True)
    with pytest.raises(Done) as caught:
        mg.parallel_map(raises, [2], shared=(w,))
    (found,) = caught.value.parts
    assert found.tolist() == [2.0]
    with pytest.raises(RuntimeError, match="does not require grad"):
        (found * 2).sum().backward()
