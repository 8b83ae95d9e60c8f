"""small_nodes(): time and memory of one large graph of small nodes, at client and coordinator."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

#: The Nodes of a graph that runs first, so that imports and first uses are not counted.
_WARM_UP_NODES = 1_000


class _Graphs(NamedTuple):
    """How a library records a graph and runs its backward; ``leaf_gradients`` of the last one."""

    record: Callable[[], Any]
    backward: Callable[[Any], object]
    leaf_gradients: Callable[[], list[Any]]


def small_nodes(who: str, shape: str, nodes: int) -> dict[str, Any]:
    """One backward.

    Args:
        who: "process", "local", "torch" or "hips".
        shape: of ``overhead``'s graphs.
        nodes: the number of nodes.

    Returns:
        ``seconds`` of the backward; ``graph_bytes`` of the recording; ``client_bytes`` at the
        peak of the backward, the recorded graph included; ``coordinator_bytes`` likewise (0
        without a coordinator); ``gradient``: the sum of the leaves' gradients.
    """
    with _library(who, shape) as (make, coordinator_pid):
        warm_up = make(_WARM_UP_NODES)
        for _ in range(2):
            warm_up.backward(warm_up.record())
        graphs = make(nodes)
        gc.collect()
        gc.freeze()
        gc.disable()
        own, coordinator = os.getpid(), coordinator_pid()
        pids = [own] if coordinator is None else [own, coordinator]
        before = {pid: _resident(pid) for pid in pids}
        root = graphs.record()
        recorded = _resident(own)
        for pid in pids:
            _forget_peak(pid)
        start = time.perf_counter()
        graphs.backward(root)
        seconds = time.perf_counter() - start
        grown = [_peak(pid) - before[pid] for pid in pids]
        gradient = np.sum([np.asarray(one, np.float64) for one in graphs.leaf_gradients()], axis=0)
    return {
        "seconds": seconds,
        "graph_bytes": recorded - before[own],
        "client_bytes": grown[0],
        "coordinator_bytes": sum(grown[1:]),
        "gradient": gradient.tolist(),
    }


@contextmanager
def _library(
    who: str, shape: str
) -> Iterator[tuple[Callable[[int], _Graphs], Callable[[], int | None]]]:
    """How ``who`` makes graphs of this many nodes, and the coordinator's process id."""
    if who == "hips":
        from benchmarks.peers import hips_autograd

        yield lambda nodes: _of_hips(getattr(hips_autograd, shape)(nodes)), lambda: None
    elif who == "torch":
        import torch

        torch.set_num_threads(1)
        yield lambda nodes: _of_torch_names(torch, shape, nodes), lambda: None
    else:
        import mpgrad as mg

        with mg.Engine(mode=who, cpu_workers=2) as engine:
            yield lambda nodes: _of_torch_names(mg, shape, nodes), lambda: engine.coordinator_pid


def _of_torch_names(library: Any, shape: str, nodes: int) -> _Graphs:
    from benchmarks.workloads.overhead import SHAPES

    program = SHAPES[shape](nodes, library)

    def backward(root: Any) -> None:
        for leaf in program.leaves:
            leaf.grad = None
        root.backward()

    return _Graphs(
        program.forward, backward, lambda: [leaf.grad.numpy() for leaf in program.leaves]
    )


def _of_hips(program: Any) -> _Graphs:
    return _Graphs(program.prepare, program.work, program.gradients)


def _resident(pid: int) -> int:
    return _status(pid, "VmRSS")


def _peak(pid: int) -> int:
    return _status(pid, "VmHWM")


def _status(pid: int, name: str) -> int:
    """A line of ``/proc/PID/status``, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/{pid}/status has no {name}")


def _forget_peak(pid: int) -> None:
    """VmHWM counts from here on (Linux, ``man 5 proc``: clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
