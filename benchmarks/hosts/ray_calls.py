"""A Ray cluster of two nodes on this machine, and calls of an actor on the other one."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

#: The program that holds the cluster.
NODES = Path(__file__).resolve().parents[2] / "tests" / "ray" / "two_nodes.py"
END_S = 60.0


class TwoNodes:
    """A cluster.

    Args:
        process: that holds it.

    Attributes:
        address: of its head.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def kill_second(self) -> float:
        """Kill the raylet of the node that is not the head; the time before, of ``monotonic()``."""
        print(file=self._process.stdin, flush=True)
        return float(self._line())


@contextmanager
def two_nodes(nodes: int = 2) -> Iterator[TwoNodes]:
    """Until the end of the block; or more nodes than two."""
    # Ray's sockets lie below it, whose paths may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray") as directory:
        os.environ.update(RAY_TMPDIR=directory, RAY_USAGE_STATS_ENABLED="0")
        process = subprocess.Popen(
            [sys.executable, str(NODES), str(nodes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            yield TwoNodes(process)
            process.communicate("", timeout=END_S)
        finally:
            process.kill()


class _Echo:
    def take(self, value: Any) -> None:
        """Nothing comes back."""

    def back(self, value: Any) -> Any:
        return value


class RayCalls:
    """Calls with arrays of an actor on another node than this process's.

    Args:
        address: of the cluster.
    """

    def __init__(self, address: str) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ray.init(address, log_to_driver=False, logging_level="ERROR")
        self._ray, here = ray, ray.get_runtime_context().get_node_id()
        [there, *_] = [node["NodeID"] for node in ray.nodes() if node["NodeID"] != here]
        place = NodeAffinitySchedulingStrategy(there, soft=False)
        self._actor = ray.remote(_Echo).options(scheduling_strategy=place).remote()
        self._arrays: dict[int, Any] = {}

    def call_ms(self, size: int, times: int) -> float:
        """Of a call that takes an array and gives nothing back; the mean, as of the ranks."""
        return self._mean(self._actor.take, size, times)

    def half_ms(self, size: int, times: int) -> float:
        """Half of one that gives the array back."""
        return self._mean(self._actor.back, size, times) / 2

    def _mean(self, method: Any, size: int, times: int) -> float:
        array = self._arrays.setdefault(size, np.ones(size // 8))
        found = []
        for _ in range(times + 1):
            begun = time.perf_counter()
            self._ray.get(method.remote(array))
            found.append(1e3 * (time.perf_counter() - begun))
        return statistics.fmean(found[1:])

    def close(self) -> None:
        """Leave the cluster."""
        self._ray.shutdown()
