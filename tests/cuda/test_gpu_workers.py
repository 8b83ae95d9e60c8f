"""GPU workers on a real GPU (``-m gpu``): the tests of ``tests/process/test_gpus.py`` once more.

Without its check of what is left: a process keeps its CUDA context, and that its descriptors.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.arrays.cuda import cuda_driver
from tests.process.test_gpus import (  # noqa: F401
    engine,
    gpus_of,
    test_a_custom_function_runs_on_the_gpu_worker,
    test_a_gpu_worker_that_dies_between_backwards_is_replaced,
    test_a_training_loop,
    test_an_engine_allocates_nothing_of_the_users,
    test_an_error_of_a_rule_is_the_callers,
    test_arrays_without_elements,
    test_gpus_that_are_none_are_refused,
    test_gradients_outlive_the_engine,
    test_hooks_get_arrays_of_the_gpu,
    test_idle_memory_is_given_back,
    test_memory_of_the_engine_is_counted,
    test_nothing_is_copied_that_was_made_with_the_engine,
    test_second_derivatives,
    test_the_caller_may_be_at_work_on_a_stream_of_its_own,
    test_the_death_of_a_gpu_worker_is_an_error_and_the_next_backward_works,
    test_the_precision_of_products_reaches_the_worker,
    test_what_was_made_before_is_copied_and_counted,
    test_without_gpu_workers_such_graphs_run_here,
    undisturbed,
)
from tests.random_programs import random_program

pytestmark = pytest.mark.gpu

PROGRAMS = 12


@pytest.fixture(scope="module", autouse=True)
def gpus_in_use() -> Iterator[None]:
    pytest.importorskip("cupy")
    with gpus_of("cupy"):
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
    with mg.Engine("process", cpu_workers=1, gpus=gpus) as here:
        found = [gradients(seed) for seed in range(PROGRAMS)]
        assert here.statistics().backwards_process == PROGRAMS
    for left, right in zip(found, expected, strict=True):
        for gradient, wanted in zip(left, right, strict=True):
            np.testing.assert_allclose(gradient, wanted, rtol=1e-4, atol=1e-6)
