"""Gradients of ``process`` equal those of ``local`` bit for bit, whatever the number of workers."""

from __future__ import annotations

import hashlib
import warnings
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import mpgrad as mg
from mpgrad.autograd.frozen_graphs import costs
from mpgrad.engine import preparation
from mpgrad.scheduler import chunks
from mpgrad.scheduler.cost_model import CostModel
from mpgrad.scheduler.plan import plan
from tests.random_programs import random_program

pytestmark = pytest.mark.process

PROGRAMS = 200
#: Every which program also calls grad().
WITH_GRAD = 4


def fingerprints(seed: int) -> list[str]:
    """Of every ``.grad`` after backward(); sometimes also of grad() of a tensor in the middle."""
    program = random_program(seed)
    found = []
    if seed % WITH_GRAD == 0:
        found += mg.grad(program.loss, program.inner, retain_graph=True)
    program.inner.retain_grad()
    program.loss.backward()
    found += [tensor.grad for tensor in [program.inner, *program.leaves]]
    return [fingerprint(tensor.numpy()) for tensor in found]


def fingerprint(array: np.ndarray[Any, Any]) -> str:
    assert np.isfinite(array).all()
    return f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"


@pytest.fixture(scope="module")
def serial() -> list[list[str]]:
    """What every program's gradients are, computed in this process."""
    with mg.Engine("local"):
        return [fingerprints(seed) for seed in range(PROGRAMS)]


def differing(seeds: range, serial: list[list[str]]) -> list[tuple[int, list[str]]]:
    """The programs with other bits, each with its warnings."""
    found = []
    for seed in seeds:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            bits = fingerprints(seed)
        if bits != serial[seed]:
            found.append((seed, [str(warning.message) for warning in told]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_random_programs(
    workers: int, serial: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The number of tasks depends on costs: not on those that other tests have taught.
    monkeypatch.setattr(costs, "model", CostModel())
    with mg.Engine("process", cpu_workers=workers) as engine:
        assert differing(range(PROGRAMS), serial) == []
        statistics = engine.statistics()
        executed = PROGRAMS + PROGRAMS // WITH_GRAD
        assert (statistics.backwards_process, statistics.backwards_local) == (executed, 0)
        assert sum(statistics.tasks.values()) > 2 * executed


@pytest.mark.slow
def test_every_node_a_task(serial: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    # What is fused with what must not show in the bits; here nothing is, and all workers share.
    monkeypatch.setattr(preparation, "plan", partial(plan, fuse=False))
    with mg.Engine("process", cpu_workers=2) as engine:
        assert differing(range(0, PROGRAMS, 4), serial) == []
        assert {"worker 0", "worker 1"} <= set(engine.statistics().tasks)


def test_a_graph_that_is_submitted_in_pieces(
    serial: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "SMALL_GRAPH", 0)
    monkeypatch.setattr(chunks, "TASKS_PER_MESSAGE", 3)
    with mg.Engine("process", cpu_workers=2):
        assert differing(range(0, PROGRAMS, 10), serial) == []


class Notes(mg.Function):
    """Doubles in the client; its backward notes how many threads BLAS has."""

    run_on = "client"
    threads: ClassVar[list[int]] = []

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        Notes.threads += blas_threads()
        return grad * 2


def blas_threads() -> list[int]:
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


@pytest.mark.parametrize("mode", ["local", "process"])
def test_user_code_in_the_client_has_the_workers_blas_threads(mode: str) -> None:
    """39 of 48 products differed in their bits between ``local`` and ``process``."""
    x = mg.ones(10, requires_grad=True)
    with threadpool_limits(2, "blas"), mg.Engine(mode, cpu_workers=1):
        Notes.threads.clear()
        y = Notes.apply(x.exp())
        y.register_hook(lambda grad: Notes.threads.extend(blas_threads()))
        y.sum().backward()
        assert len(Notes.threads) >= 2
        assert set(Notes.threads) == {1}
        assert set(blas_threads()) == {2}


def test_a_seed_and_an_unused_leaf() -> None:
    def gradients() -> list[Any]:
        x = mg.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        unused = mg.tensor([1.0], requires_grad=True)
        y = x.exp()
        y.backward(mg.tensor([[0.1, 0.2], [0.3, 0.4]]))
        return [x.grad.tolist(), unused.grad]

    with mg.Engine("local"):
        expected = gradients()
    with mg.Engine("process", cpu_workers=1):
        assert gradients() == expected
    assert expected[1] is None


def test_a_seed_that_is_a_leaf_s_gradient_as_it_is() -> None:
    # The seed's block is passed through: .grad must be a tensor of its own all the same.
    x = mg.zeros(100, 200, requires_grad=True)
    seed = mg.ones(100, 200)
    with mg.Engine("process", cpu_workers=1):
        x.backward(seed)
        seed.zero_()
        assert x.grad.sum().item() == 20_000.0
        x.backward(mg.ones(100, 200))
        assert x.grad.sum().item() == 40_000.0
