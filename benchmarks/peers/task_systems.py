"""ProcessPoolExecutor, joblib, Ray and Dask on ``gil_branches``. Runs in a PeerProcess.

They compute no gradients themselves: they run the branches' backward functions and return the
results. Each gets its best conditions, which an autograd engine cannot have: two tasks with half of
the branches each, and workers that already have the saved arrays.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from benchmarks.gil_work import Array, branch_input, spin
from benchmarks.peers.process import Program

WORKERS = 2
_held_input = cache(branch_input)


def half(number: int, branches: int, loops: int, elements: int) -> list[Array]:
    """The gradients of half ``number`` of the branches; the arrays are made at the first call."""
    size = branches // WORKERS
    mine = range(number * size, (number + 1) * size)
    return [_held_input(branch, elements) * np.float32(spin(loops)) for branch in mine]


def process_pool(*work: int) -> Program:
    """concurrent.futures; the gradients come back pickled."""
    pool = ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn"))

    def run() -> list[list[Array]]:
        futures = [pool.submit(half, number, *work) for number in range(WORKERS)]
        return [future.result() for future in futures]

    return _program(run, pool.shutdown)


def joblib(*work: int) -> Program:
    """joblib with its loky processes, which stay; the gradients come back pickled."""
    from joblib import Parallel, delayed

    parallel = Parallel(WORKERS, batch_size=1)
    parallel.__enter__()
    return _program(
        lambda: parallel([delayed(half)(number, *work) for number in range(WORKERS)]),
        lambda: parallel.__exit__(None, None, None),
    )


def ray(*work: int) -> Program:
    """Two actors; the gradients lie in Ray's shared memory, and are not copied."""
    import ray

    _start_ray()
    actors = [ray.remote(num_cpus=1)(_Half).remote(number) for number in range(WORKERS)]
    return _program(
        lambda: ray.get([actor.run.remote(*work) for actor in actors]),
        lambda: [ray.kill(actor) for actor in actors],
    )


def dask(*work: int) -> Program:
    """Two Dask actors, one per worker process: they are called without the scheduler."""
    client = _dask_client()
    addresses = list(client.scheduler_info()["workers"])
    actors = [
        client.submit(_Half, number, workers=[address], actor=True, pure=False).result()
        for number, address in enumerate(addresses)
    ]
    return _program(lambda: [future.result() for future in [a.run(*work) for a in actors]])


class _Half:
    """Half of the branches as an actor."""

    def __init__(self, number: int) -> None:
        self._number = number

    def run(self, branches: int, loops: int, elements: int) -> list[Array]:
        """See :func:`half`."""
        return half(self._number, branches, loops, elements)


def _program(
    run: Callable[[], list[list[Array]]], close: Callable[[], object] = lambda: None
) -> Program:
    found: list[Array] = []

    def work(_: None) -> None:
        found[:] = [gradient for gradients in run() for gradient in gradients]

    return Program(work, lambda: found, close=close)


@cache
def _start_ray() -> None:
    """A new cluster, whose files are removed at its end."""
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    folder = tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True)
    ray.init(
        num_cpus=WORKERS,
        object_store_memory=1 << 30,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=folder.name,
    )
    # Last in, first out: the cluster has ended when the folder goes.
    atexit.register(folder.cleanup)
    atexit.register(ray.shutdown)


@cache
def _dask_client() -> Any:
    """A new cluster: two processes with one thread each."""
    from distributed import Client

    client = Client(
        n_workers=WORKERS, threads_per_worker=1, dashboard_address=None, silence_logs="ERROR"
    )
    atexit.register(client.close)
    return client
