"""GPU workers on a real GPU (``-m gpu``); ``tests/process/test_gpus.py`` is about the fake."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import device_arrays
from mpgrad.shm import cuda_driver
from mpgrad.testing.random_programs import random_program

pytestmark = pytest.mark.gpu

PROGRAMS = 12


@pytest.fixture(scope="module", autouse=True)
def real_gpu() -> Iterator[None]:
    pytest.importorskip("cupy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPGRAD_CUDA_DRIVER", "cupy")
        for cached in (cuda_driver.driver, cuda_driver.device_count, device_arrays.cuda_namespace):
            cached.cache_clear()
        if cuda_driver.device_count() == 0:
            pytest.skip("no GPU")
        yield
        cuda_driver.driver().set_allocator(None)


def gradients(seed: int) -> list[np.ndarray]:
    program = random_program(seed, ("cpu", "cuda:0", "cuda:0"))
    program.loss.backward()
    return [leaf.grad.detach().cpu().numpy() for leaf in program.leaves]


@pytest.mark.parametrize("gpus", [[0], [0, 0]])
def test_random_programs(gpus: list[int]) -> None:
    with mg.Engine("local"):
        expected = [gradients(seed) for seed in range(PROGRAMS)]
    with mg.Engine("process", cpu_workers=1, gpus=gpus) as engine:
        found = [gradients(seed) for seed in range(PROGRAMS)]
        assert engine.statistics().backwards_process == PROGRAMS
    for left, right in zip(found, expected, strict=True):
        for gradient, wanted in zip(left, right, strict=True):
            np.testing.assert_allclose(gradient, wanted, rtol=1e-4, atol=1e-6)


def test_a_worker_that_is_killed_is_replaced() -> None:
    with mg.Engine("local"):
        (expected, *_) = gradients(1)
    with mg.Engine("process", cpu_workers=1, gpus=[0]) as engine:
        gradients(1)
        os.kill(engine.worker_pids()[1], signal.SIGKILL)
        (found, *_) = gradients(1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
