"""ProcessPoolExecutor, joblib and Ray on ``both_passes``. Runs in a PeerProcess.

A program without autograd for such items computes their sensitivities with their values: each task
gets its array, and sends both back. The gradient of the sum is then made here.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from benchmarks.gil_work import Array, branch_input, spin
from benchmarks.peers.process import Program
from benchmarks.peers.task_systems import WORKERS, _start_ray

#: Runs a function over the arguments of each task.
Run = Callable[[Callable[..., Any], list[tuple[Any, ...]]], list[Any]]


def item(x: Array, loops: int) -> tuple[Array, Array]:
    """The value of an item, and its derivative."""
    value = x * np.float32(spin(loops))
    return value, x * np.float32(spin(loops))


def nothing(number: int) -> None:
    """A task that does nothing."""


def process_pool(items: int, loops: int, elements: int) -> Program:
    """concurrent.futures: one task for each item."""
    run, close = _pool()
    return _program(run, close, items, loops, elements)


def process_pool_nothing(count: int) -> Program:
    """concurrent.futures: tasks that do nothing."""
    run, close = _pool()
    return _nothings(run, close, count)


def joblib(items: int, loops: int, elements: int) -> Program:
    """joblib with its loky processes, which stay; it maps large arrays from files."""
    run, close = _joblib()
    return _program(run, close, items, loops, elements)


def joblib_nothing(count: int) -> Program:
    """joblib: tasks that do nothing."""
    run, close = _joblib()
    return _nothings(run, close, count)


def ray(items: int, loops: int, elements: int) -> Program:
    """Two actors, which take turns."""
    run, close = _ray()
    return _program(run, close, items, loops, elements)


def ray_nothing(count: int) -> Program:
    """Two actors: calls that do nothing."""
    run, close = _ray()
    return _nothings(run, close, count)


def _pool() -> tuple[Run, Callable[[], object]]:
    pool = ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn"))

    def run(function: Callable[..., Any], tasks: list[tuple[Any, ...]]) -> list[Any]:
        return [one.result() for one in [pool.submit(function, *task) for task in tasks]]

    return run, pool.shutdown


def _joblib() -> tuple[Run, Callable[[], object]]:
    from joblib import Parallel, delayed

    parallel = Parallel(WORKERS, batch_size=1)
    parallel.__enter__()

    def run(function: Callable[..., Any], tasks: list[tuple[Any, ...]]) -> list[Any]:
        found: list[Any] = parallel([delayed(function)(*task) for task in tasks])
        return found

    return run, lambda: parallel.__exit__(None, None, None)


class _Actor:
    def run(self, function: Callable[..., Any], *task: Any) -> Any:
        """A call of ``function``."""
        return function(*task)


def _ray() -> tuple[Run, Callable[[], object]]:
    import ray

    _start_ray()
    actors = [ray.remote(num_cpus=1)(_Actor).remote() for _ in range(WORKERS)]

    def run(function: Callable[..., Any], tasks: list[tuple[Any, ...]]) -> list[Any]:
        calls = [actors[at % WORKERS].run.remote(function, *task) for at, task in enumerate(tasks)]
        found: list[Any] = ray.get(calls)
        return found

    return run, lambda: [ray.kill(actor) for actor in actors]


def _program(
    run: Run, close: Callable[[], object], items: int, loops: int, elements: int
) -> Program:
    tasks = [(branch_input(number, elements), loops) for number in range(items)]
    found: list[Array] = []

    def work(_: None) -> None:
        results = run(item, tasks)
        total = sum([value.sum() for value, _ in results])
        assert np.isfinite(total)
        found[:] = [slope for _, slope in results]  # times the gradient of the sum, which is 1

    return Program(work, lambda: found, close=close)


def _nothings(run: Run, close: Callable[[], object], count: int) -> Program:
    tasks = [(number,) for number in range(count)]
    return Program(lambda _: run(nothing, tasks), list, close=close)
