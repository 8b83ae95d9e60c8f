"""What workers copy: results are born where they are published."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import nn
from mpgrad.arrays.cpu.cpu_backend import CpuBackend
from mpgrad.autograd.frozen_graphs import costs
from mpgrad.autograd.frozen_graphs import freeze as freezing
from mpgrad.engine.session_pool import IDLE_BACKWARDS
from mpgrad.errors import CoordinatorLost
from mpgrad.recording.graph.registry import OPERATORS
from mpgrad.recording.tensors import storage
from mpgrad.scheduler.cost_model import CostModel
from mpgrad.shm.arena import client_arena
from tests.leftovers import is_alive, wait_until

pytestmark = pytest.mark.process


class Drawn(CostModel):
    """What a busy machine may have measured: each kind of Node takes anything around what it does;
    nothing is learned, so that a seed has its plan."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed

    def get(self, key: Any) -> float | None:
        usual_us = 8000.0 if "matmul" in str(key) else 200.0
        return usual_us * 4 ** random.Random(f"{self._seed} {key}").uniform(-1.5, 1.5)

    def observe(self, key: Any, microseconds: Any, guess: float | None = None) -> None:
        pass


class Same(Drawn):
    """All is so cheap that it is one task."""

    def __init__(self) -> None:
        super().__init__(0)

    def get(self, key: Any) -> float | None:
        return 1.0


#: Seeds; in some of these plans a sum passes on what it got from its own task.
PLANS = range(12)


def plan_by(model: CostModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are planned by these costs from now on."""
    monkeypatch.setattr(costs, "model", model)
    for kept in ("_memory", "_guards"):  # a plan from before would serve
        monkeypatch.setattr(freezing, kept, type(getattr(freezing, kept))())


class Residual(nn.Module):
    """Two convolutions and a sum, whose gradient flows two ways."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Any) -> Any:
        """Same shape."""
        inner = self.norm(self.second(mg.relu(self.first(x))))
        return mg.relu(inner + x)


def draw(*shape: int) -> mg.Tensor:
    return mg.tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def copied_share(engine: mg.Engine, model: Any, x: mg.Tensor, expected: Any) -> float:
    """Bytes that a backward copied, as a share of the bytes that it handed over."""
    before = engine.statistics()
    loss = nn.functional.mse_loss(model(x), expected)
    loss.backward()
    after = engine.statistics()
    assert after.backwards_process == before.backwards_process + 1
    handed = after.handed_bytes - before.handed_bytes
    return (after.copied_bytes - before.copied_bytes) / handed


def test_next_to_nothing_is_copied_for_a_chain_of_layers(engine: mg.Engine) -> None:
    layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.Tanh())]
    x = draw(128, 256)
    assert copied_share(engine, nn.Sequential(*layers), x, x) < 0.01


def test_a_gradient_that_flows_two_ways_is_copied_once(engine: mg.Engine) -> None:
    model = nn.Sequential(Residual(16), Residual(16))
    x = draw(8, 16, 24, 24)
    twice = 2 * x.detach().numpy().nbytes
    before = engine.statistics().copied_bytes
    copied_share(engine, model, x, x)
    assert engine.statistics().copied_bytes - before <= twice + 4096


def test_results_lie_in_the_arena_while_there_are_workers_and_large_ones_always(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(storage, "_readers", set())  # those of other tests
    small, large = mg.ones(100, 100), mg.ones(300, 300)

    def is_shared(x: mg.Tensor) -> bool:
        return client_arena().locate(mg.exp(x)._array) is not None

    assert is_shared(large)
    assert not is_shared(small)
    with mg.Engine("process", cpu_workers=1) as engine:
        assert is_shared(small)

        def kill(_: mg.Tensor) -> None:  # in the backward: one that begins later starts another
            os.kill(pid := engine.coordinator_pid or 0, signal.SIGKILL)
            assert wait_until(lambda: not is_alive(pid))

        hidden = mg.exp(mg.ones(100, 100, requires_grad=True))
        hidden.register_hook(kill)
        with pytest.raises(CoordinatorLost):
            hidden.sum().backward()
        loss = mg.exp(mg.ones(100, 100, requires_grad=True)).sum()
        loss.backward()
        assert is_shared(small)
    assert not is_shared(small)


def test_results_lie_on_the_heap_while_all_backwards_run_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Workers that nothing goes to made a step of small products 18 % slower."""
    monkeypatch.setattr(storage, "_readers", set())
    small, x = mg.ones(100, 100), mg.ones(8, requires_grad=True)

    def is_shared() -> bool:
        return client_arena().locate(mg.exp(small)._array) is not None

    with mg.Engine("auto", cpu_workers=2) as engine:
        sessions = engine.execution_for_calls().sessions
        sessions.start()
        assert is_shared()
        for _ in range(IDLE_BACKWARDS):
            x.sum().backward()
        assert not is_shared()
        with sessions.session():  # as for whatever runs in workers
            assert is_shared()
    assert not is_shared()


def biased(x: mg.Tensor, weights: list[mg.Tensor], bias: mg.Tensor) -> mg.Tensor:
    """Layers whose gradient passes through a sum on its way to a product that shares it."""
    for weight in weights:
        x = mg.relu(x @ weight + bias)
    return x.mean()


@pytest.mark.parametrize("bias_shape", [(1024,), (256, 1024)], ids=["row", "matrix"])
def test_what_a_sum_passes_on_is_not_copied(
    bias_shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the graph is cut into tasks: a busy machine measures other costs."""
    x, leaves = draw(256, 1024), [(draw(1024, 1024) / 32).detach() for _ in range(3)]
    leaves.append(draw(*bias_shape))
    for leaf in leaves:
        leaf.requires_grad = True

    def gradients() -> list[bytes]:
        for leaf in leaves:
            leaf.grad = None
        biased(x, leaves[:-1], leaves[-1]).backward()
        return [leaf.grad.numpy().tobytes() for leaf in leaves if leaf.grad is not None]

    with mg.Engine("local"):
        expected = gradients()
    tasks = set()
    with mg.Engine("process", cpu_workers=2) as engine:
        for seed in PLANS:
            plan_by(Drawn(seed), monkeypatch)
            before = engine.statistics()
            assert gradients() == expected, seed
            after = engine.statistics()
            tasks.add(sum(after.tasks.values()) - sum(before.tasks.values()))
            if len(bias_shape) == 1:
                assert after.copied_bytes - before.copied_bytes <= 4096, seed
    assert len(tasks) >= 3  # plans of different sizes


class Triples(mg.Function):
    """Its backward changes the gradient in place."""

    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.numpy() * 3

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad.mul_(3.0)


@pytest.mark.parametrize("way", ["a view", "a sum", "a result"])
def test_what_has_left_a_task_is_nobodys_to_change(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Function in the same task gets the gradient that another output is, or a view of it."""

    def gradients() -> list[Any]:
        x, other = (mg.ones(100, 100, requires_grad=True) for _ in range(2))
        inner = Triples.apply(x)
        inner = inner.reshape(-1) if way == "a view" else inner + other
        wanted = {"a view": [inner], "a sum": [other], "a result": [inner, other]}[way]
        found = mg.grad((inner * 5.0).sum(), [x, *wanted])
        return [gradient.flatten()[0].item() for gradient in found]

    plan_by(Same(), monkeypatch)
    with mg.Engine("process", cpu_workers=1) as engine:
        assert gradients() == [15.0] + [5.0] * (2 if way == "a result" else 1)
        assert sum(engine.statistics().tasks.values()) == 1


def test_sums_pass_on_the_very_gradient() -> None:
    grad = np.ones((3, 4), np.float32)
    for name in [name for name, known in OPERATORS.items() if known.passes_on]:
        shapes = {"a_shape": grad.shape, "b_shape": grad.shape}
        given = OPERATORS[name].backward(CpuBackend(np.empty), [grad], shapes, (True, True))
        assert all(gradient is grad for gradient in given)
