"""Workers of GPUs: the bits of ``local``, whoever runs what, and what dies with such a worker.

On the fake driver, whose copies run as late as CUDA allows: a wait too few shows as wrong bytes.
"""

from __future__ import annotations

import gc
import hashlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.arrays.cuda import client_devices, cuda_driver, device_arrays
from mpgrad.errors import WorkerLost
from tests.cuda.fake_driver import TWO_GPUS
from tests.random_programs import random_program

pytestmark = pytest.mark.process

PROGRAMS = 14
WAYS = {
    "one GPU": ([0], ("cpu", "cuda:0")),
    "two workers on one GPU": ([0, 0], ("cpu", "cuda:0", "cuda:0")),
    "two GPUs": ([0, 1], ("cpu", "cuda:0", "cuda:1")),
}


def forget_driver() -> None:
    if cuda_driver.driver.cache_info().currsize and cuda_driver.driver().name == "fake":
        cuda_driver.driver().close()
    for cached in (cuda_driver.driver, cuda_driver.device_count, device_arrays.cuda_namespace):
        cached.cache_clear()
    client_devices._memories.clear()
    gc.collect()


@contextmanager
def gpus_of(driver: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPGRAD_CUDA_DRIVER", driver)
        cuda_driver.driver.cache_clear()
        forget_driver()
        yield
        forget_driver()
        device_arrays.CUDA.in_use = False


@pytest.fixture(scope="module", autouse=True)
def gpus_in_use(module_leaves_nothing: None) -> Iterator[None]:
    with gpus_of(TWO_GPUS):
        yield


@pytest.fixture(autouse=True)
def leaves_nothing(gpus_in_use: None) -> None:
    """This process keeps its memory on the GPUs for the next test: the module is checked."""


@pytest.fixture(scope="module")
def engine(gpus_in_use: None) -> Iterator[mg.Engine]:
    with mg.Engine("process", cpu_workers=1, gpus=[0, 0]) as engine:
        yield engine


def fingerprint(tensor: mg.Tensor) -> str:
    array = tensor.detach().cpu().numpy()
    assert np.isfinite(array).all()
    return f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"


def fingerprints(seed: int, devices: tuple[str, ...]) -> list[str]:
    program = random_program(seed, devices)
    program.inner.retain_grad()
    program.loss.backward()
    return [fingerprint(tensor.grad) for tensor in (program.inner, *program.leaves)]


@pytest.mark.row("N2")
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_random_programs(way: str) -> None:
    gpus, devices = WAYS[way]
    with mg.Engine("local"):
        expected = [fingerprints(seed, devices) for seed in range(PROGRAMS)]
    with mg.Engine("process", cpu_workers=1, gpus=gpus) as engine:
        found = [fingerprints(seed, devices) for seed in range(PROGRAMS)]
        statistics = engine.statistics()
    differing = [seed for seed in range(PROGRAMS) if found[seed] != expected[seed]]
    assert differing == []
    assert (statistics.backwards_process, statistics.backwards_local) == (PROGRAMS, 0)
    # Those of GPUs come behind those of the CPU: all of them had work.
    assert set(statistics.tasks) >= {f"worker {slot}" for slot in range(1 + len(gpus))}


def weights(engine: mg.Engine | None = None, n: int = 48) -> tuple[mg.Tensor, mg.Tensor]:
    values = np.random.default_rng(3).normal(size=(2, n, n)).astype(np.float32)
    return (
        mg.tensor(values[0], device="cuda", requires_grad=True),
        mg.tensor(values[1], device="cuda"),
    )


def loss_of(weight: mg.Tensor, x: mg.Tensor) -> mg.Tensor:
    branches = [mg.tanh((x * (0.5 + n)) @ weight) for n in range(4)]
    return (branches[0] * branches[1] + branches[2] * branches[3]).mean().cpu()


def gradient() -> bytes:
    weight, x = weights()
    loss_of(weight, x).backward()
    assert weight.grad.device == weight.device
    return weight.grad.cpu().numpy().tobytes()


@pytest.fixture(scope="module")
def undisturbed(gpus_in_use: None) -> bytes:
    with mg.Engine("local"):
        return gradient()


def losses() -> list[float]:
    weight, x = weights()
    found = []
    for _ in range(6):
        weight.grad = None
        loss = loss_of(weight, x)
        loss.backward()
        with mg.no_grad():
            weight -= weight.grad * 0.1
        found.append(loss.item())
    return found


def test_the_same_graph_on_other_devices() -> None:
    """Nothing but the device tells them apart: no edge, no size."""
    with mg.Engine("process", cpu_workers=1, gpus=[0, 1]) as engine:
        for slot, device in enumerate(["cpu", "cuda:0", "cuda:1"]):
            x = mg.ones(4, device=device, requires_grad=True)
            (x * 2).sin().backward(mg.ones(4, device=device))
            assert x.grad.device == x.device
            assert engine.statistics().tasks[f"worker {slot}"] == 1


@pytest.mark.row("N4")
def test_a_training_loop(engine: mg.Engine) -> None:
    found = losses()
    with mg.Engine("local"):
        assert losses() == found


@pytest.mark.row("N4")
def test_the_caller_may_be_at_work_on_a_stream_of_its_own(engine: mg.Engine) -> None:
    with cuda_driver.driver().stream():
        found = losses()
    with mg.Engine("local"):
        assert losses() == found


@pytest.mark.ipc
def test_nothing_is_copied_that_was_made_with_the_engine(engine: mg.Engine) -> None:
    weight, x = weights(n=128)
    before = engine.statistics().copied_bytes
    loss_of(weight, x).backward()
    # Programs and such, but not one array.
    assert engine.statistics().copied_bytes - before < weight.numel() * 4


def test_what_was_made_before_is_copied_and_counted(engine: mg.Engine) -> None:
    cuda_driver.driver().set_allocator(None)
    weight, _ = weights()
    client_devices.use_pool()
    before = engine.statistics().copied_bytes
    (weight * weight).sum().cpu().backward()
    assert engine.statistics().copied_bytes - before >= weight.numel() * 4
    assert np.array_equal(weight.grad.cpu().numpy(), 2 * weight.detach().cpu().numpy())


def test_hooks_get_arrays_of_the_gpu(engine: mg.Engine) -> None:
    seen = []

    def double(grad: mg.Tensor) -> mg.Tensor:
        seen.append(str(grad.device))
        return grad * 2

    weight, x = weights()
    hidden = x @ weight
    hidden.register_hook(double)
    mg.tanh(hidden).sum().cpu().backward()
    plain, x = weights()
    mg.tanh(x @ plain).sum().cpu().backward()
    assert seen == ["cuda:0"]
    assert np.array_equal(weight.grad.cpu().numpy(), 2 * plain.grad.cpu().numpy())


class Cubed(mg.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x * x


def test_a_custom_function_runs_on_the_gpu_worker(engine: mg.Engine) -> None:
    weight, _ = weights()
    Cubed.apply(weight).sum().cpu().backward()
    expected, _ = weights()
    (expected * expected * expected).sum().cpu().backward()
    np.testing.assert_allclose(
        weight.grad.cpu().numpy(), expected.grad.cpu().numpy(), rtol=1e-5, atol=1e-6
    )


def test_the_precision_of_products_reaches_the_worker(engine: mg.Engine) -> None:
    class Telling(mg.Function):
        run_on = "worker"

        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return grad * ["highest", "high", "medium"].index(mg.get_float32_matmul_precision())

    def told() -> float:
        weight, _ = weights()
        Telling.apply(weight).sum().cpu().backward()
        return float(weight.grad.mean().item())

    assert told() == 0
    try:
        mg.set_float32_matmul_precision("medium")
        assert told() == 2
        mg.backends.cuda.matmul.allow_tf32 = True
        assert told() == 1
    finally:
        mg.set_float32_matmul_precision("highest")
    assert told() == 0


def test_second_derivatives(engine: mg.Engine) -> None:
    def second() -> bytes:
        weight, x = weights()
        (first,) = mg.grad(loss_of(weight, x), weight, create_graph=True)
        (first * first).sum().cpu().backward()
        return weight.grad.cpu().numpy().tobytes()

    found = second()
    with mg.Engine("local"):
        assert second() == found


def test_an_error_of_a_rule_is_the_callers(engine: mg.Engine) -> None:
    class Failing(mg.Function):
        run_on = "worker"

        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            raise ValueError("planted on a GPU")

    weight, x = weights()
    with pytest.raises(ValueError, match="planted on a GPU"):
        Failing.apply(x @ weight).sum().cpu().backward()
    assert weight.grad is None


def test_the_death_of_a_gpu_worker_is_an_error_and_the_next_backward_works(
    undisturbed: bytes,
) -> None:
    with mg.Engine("process", cpu_workers=1, gpus=[0]) as engine:
        assert gradient() == undisturbed
        weight, x = weights()
        hidden = x @ weight

        def kill(grad: mg.Tensor) -> None:
            # What this hook gets was made by the only GPU worker, and is still held there.
            os.kill(engine.worker_pids()[1], signal.SIGKILL)

        hidden.register_hook(kill)
        loss = (mg.tanh(hidden) * mg.sin(hidden)).sum() + mg.exp(mg.tanh(weight)).sum()
        with pytest.raises(WorkerLost, match=r"worker 1|GPU"):
            loss.cpu().backward()
        assert weight.grad is None
        assert gradient() == undisturbed


def test_a_gpu_worker_that_dies_between_backwards_is_replaced(undisturbed: bytes) -> None:
    with mg.Engine("process", cpu_workers=1, gpus=[0, 0]) as engine:
        assert gradient() == undisturbed
        os.kill(engine.worker_pids()[1], signal.SIGKILL)
        assert gradient() == undisturbed


def test_gradients_outlive_the_engine(undisturbed: bytes) -> None:
    with mg.Engine("process", cpu_workers=1, gpus=[0]):
        weight, x = weights()
        loss_of(weight, x).backward()
    assert weight.grad.cpu().numpy().tobytes() == undisturbed


def test_without_gpu_workers_such_graphs_run_here() -> None:
    with mg.Engine("process", cpu_workers=1, gpus="none") as engine:
        weight, x = weights()
        loss = loss_of(weight, x)
        assert "no worker" in engine.explain(loss).reason
        loss.backward()
        assert engine.statistics().backwards_local == 1


def test_arrays_without_elements(engine: mg.Engine) -> None:
    weight, _ = weights()
    nothing = weight[:0]
    (mg.exp(nothing).sum() + (nothing * nothing).sum() + weight.sum()).cpu().backward()
    assert weight.grad.cpu().numpy().tolist() == np.ones((48, 48)).tolist()


def test_memory_of_the_engine_is_counted(engine: mg.Engine) -> None:
    before = mg.cuda.memory_allocated()
    kept = mg.zeros(1 << 18, device="cuda")
    assert mg.cuda.memory_allocated() - before == kept.numel() * 4
    assert mg.cuda.memory_reserved() >= mg.cuda.memory_allocated()


def test_an_engine_allocates_nothing_of_the_users() -> None:
    gc.collect()  # what earlier tests raised still holds some
    before = mg.cuda.memory_allocated()
    with mg.Engine("process", cpu_workers=1, gpus="all"):
        assert mg.cuda.memory_allocated() == before
    assert mg.cuda.memory_allocated() == before


def test_idle_memory_is_given_back() -> None:
    with mg.Engine("process", cpu_workers=1, gpus=[0]) as engine:
        weight, x = weights(n=700)
        loss_of(weight, x).backward()
        del weight, x
        before = mg.cuda.memory_reserved()
        mg.cuda.empty_cache()
        # The worker has some of it open, and closes it when it hears of it; so do we, one later.
        gradient()
        gradient()
        assert mg.cuda.memory_reserved() < before
        assert engine.statistics().backwards_process == 3


@pytest.mark.parametrize("gpus", [[99], [-1], ["0"], "some"])
def test_gpus_that_are_none_are_refused(gpus: object) -> None:
    with pytest.raises(ValueError, match="gpus="):
        mg.Engine("process", gpus=gpus)
