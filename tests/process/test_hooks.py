"""Hooks and Functions of the client: in the calling process, on its thread, in the serial order."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpgrad as mg

pytestmark = pytest.mark.process

#: What a Function reads: a mutable global keeps it in the client.
CALLS: list[str] = []
PIDS: list[int] = []
SCALE = 3.0


class Records(mg.Function):
    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, name: str) -> Any:
        ctx.name = name
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        CALLS.append(ctx.name)
        return grad * 2, None


class Appends(mg.Function):
    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        PIDS.append(os.getpid())
        return grad * 2


class Scales(mg.Function):
    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.numpy() * SCALE

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * SCALE


def model(where: list[tuple[str, int, int]]) -> tuple[list[mg.Tensor], mg.Tensor]:
    """A small network whose hooks note their name, process and thread."""

    def note(name: str) -> Callable[[mg.Tensor], None]:
        def hook(_: mg.Tensor) -> None:
            where.append((name, os.getpid(), threading.get_ident()))

        return hook

    rng = np.random.default_rng(1)
    x = mg.tensor(rng.normal(size=(64, 32)))
    weights = [mg.tensor(rng.normal(size=(32, 32)), requires_grad=True) for _ in range(3)]
    hidden = x
    for number, weight in enumerate(weights):
        weight.register_hook(note(f"weight {number}"))
        hidden = mg.tanh(hidden @ weight)
        hidden.register_hook(note(f"hidden {number}"))
        hidden = Records.apply(hidden, f"function {number}")
    return weights, (hidden * hidden).mean()


def run_model() -> tuple[list[tuple[str, int, int]], list[str], list[bytes]]:
    where: list[tuple[str, int, int]] = []
    CALLS.clear()
    weights, loss = model(where)
    loss.backward()
    return where, list(CALLS), [weight.grad.numpy().tobytes() for weight in weights]


def test_a_network_with_hooks_and_local_functions(engine: mg.Engine) -> None:
    with mg.Engine("local"):
        serial, serial_calls, gradients = run_model()
    where, calls, ours = run_model()
    names = [name for name, *_ in where]
    assert names == [name for name, *_ in serial]
    assert sorted(names) == [f"{what} {n}" for what in ("hidden", "weight") for n in range(3)]
    assert calls == serial_calls == ["function 2", "function 1", "function 0"]
    assert {(pid, thread) for _, pid, thread in where} == {(os.getpid(), threading.get_ident())}
    assert ours == gradients
    assert engine.statistics().tasks["client"] > 0


def test_hooks_replace_gradients_in_the_order_of_registration(engine: mg.Engine) -> None:
    x = mg.tensor([1.0, 2.0], requires_grad=True)
    y = x * 3
    y.register_hook(lambda grad: grad + 1)
    y.register_hook(lambda grad: grad * 10)
    y.sum().backward()
    assert x.grad.tolist() == [60.0, 60.0]


def test_a_hook_may_keep_and_change_what_it_gets(engine: mg.Engine) -> None:
    kept: list[mg.Tensor] = []
    x = mg.ones(200, 200, requires_grad=True)
    y = x * 3

    def hook(grad: mg.Tensor) -> None:
        kept.append(grad)

    y.register_hook(hook)
    y.exp().sum().backward()
    before = kept[0].numpy().copy()
    (x * 5).sum().backward()
    assert np.array_equal(kept[0].numpy(), before)
    kept[0].zero_()
    assert x.grad.numpy().min() > 5


def test_a_hook_that_raises_leaves_grad_alone(engine: mg.Engine) -> None:
    def hook(_: mg.Tensor) -> None:
        raise KeyError("mine")

    x = mg.tensor([1.0], requires_grad=True)
    y = mg.tensor([1.0], requires_grad=True)
    x.register_hook(hook)
    with pytest.raises(KeyError, match="mine"):
        (x.exp() * y.exp()).sum().backward()
    assert (x.grad, y.grad) == (None, None)


def test_retain_grad(engine: mg.Engine) -> None:
    x = mg.ones(150, 150, requires_grad=True)
    y = x * 2
    y.retain_grad()
    (y * y).sum().backward()
    assert np.array_equal(y.grad.numpy(), np.full((150, 150), 4.0))
    assert np.array_equal(x.grad.numpy(), np.full((150, 150), 8.0))
    y.grad.zero_()
    assert x.grad.numpy().min() == 8.0


def test_post_accumulate_hooks_see_the_sum(engine: mg.Engine) -> None:
    seen: list[Any] = []
    x = mg.tensor([1.0, 2.0], requires_grad=True)
    x.register_post_accumulate_grad_hook(lambda tensor: seen.append(tensor.grad.tolist()))
    (x * x).sum().backward()
    (x * x).sum().backward()
    assert seen == [[2.0, 4.0], [4.0, 8.0]]


def test_an_optimizer_step_inside_backward(engine: mg.Engine) -> None:
    x = mg.ones(100, 100, requires_grad=True)

    def step(tensor: mg.Tensor) -> None:
        with mg.no_grad():
            tensor.sub_(tensor.grad, alpha=0.5)
        tensor.grad = None

    x.register_post_accumulate_grad_hook(step)
    (x * 1.0).sum().backward()
    assert x.grad is None
    assert np.array_equal(x.detach().numpy(), np.full((100, 100), 0.5))


def test_one_notice_for_a_function_that_stays_here(engine: mg.Engine) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            Appends.apply(mg.tensor([1.0], requires_grad=True)).sum().backward()
    assert [os.getpid()] * 3 == PIDS
    said = [str(one.message) for one in caught if "Appends" in str(one.message)]
    assert len(said) == 1
    assert "reads `os.getpid`" in said[0]
    assert "run_on" in said[0]


def test_a_changed_constant_is_shipped_again(
    engine: mg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gradient() -> float:
        x = mg.tensor([1.0], requires_grad=True)
        Scales.apply(x).sum().backward()
        return x.grad.item()

    before = engine.statistics().tasks.get("client", 0)
    assert gradient() == 3.0
    monkeypatch.setitem(Scales.backward.__globals__, "SCALE", 7.0)
    assert gradient() == 7.0
    assert engine.statistics().tasks.get("client", 0) == before


def test_a_hook_may_run_a_backward_of_its_own() -> None:
    inner: list[float] = []

    def hook(_: mg.Tensor) -> None:
        y = mg.tensor([2.0], requires_grad=True)
        with mg.enable_grad():  # hooks run with recording off, as in PyTorch
            (y * y).sum().backward()
        inner.append(y.grad.item())

    x = mg.tensor([1.0], requires_grad=True)
    z = x * 3
    z.register_hook(hook)
    with mg.Engine("process", cpu_workers=1):
        z.sum().backward()
    assert (inner, x.grad.item()) == ([4.0], 3.0)


def test_from_numpy_keeps_aliasing_its_array(engine: mg.Engine) -> None:
    array = np.ones((100, 100), np.float32)
    x = mg.from_numpy(array).requires_grad_()
    (x * x).sum().backward()
    array[0, 0] = 5.0
    assert x.detach().numpy()[0, 0] == 5.0
    x.grad = None
    (x * x).sum().backward()
    assert x.grad.numpy()[0, 0] == 10.0


def test_grad_stays_readable_after_the_engine_closed() -> None:
    x = mg.ones(100, 100, requires_grad=True)
    with mg.Engine("process", cpu_workers=1):
        (x * 3).sum().backward()
    assert np.array_equal(x.grad.numpy(), np.full((100, 100), 3.0))
    x.grad.zero_()
    assert x.grad.sum().item() == 0.0
