"""What crossing two ranks costs: ``mpgrad run --nproc-per-node 2 host_hops.py [N] [plain]``.

Rank 0 prints the least of N in milliseconds; what is compared takes turns. ``plain``: nothing is
encrypted. With RAY_ADDRESS, calls with the same bytes of an actor on another node of that cluster
take their turns, too.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import mpgrad as mg
import mpgrad.distributed as dist
import mpgrad.distributed.autograd as dist_autograd
import mpgrad.distributed.rpc as rpc
from mpgrad.wire import zeromq

#: Steps before the first one that counts: marks and tables are like earlier ones by then.
WARM_STEPS = 5
SIZES = {"8 B": 8, "64 KiB": 2**16, "1 MiB": 2**20, "16 MiB": 2**24}

if "RAY_ADDRESS" in os.environ:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

RANK = int(os.environ.get("RANK", 0))
weight = mg.ones(1, requires_grad=True)


def twice(x: mg.Tensor) -> mg.Tensor:
    """What a call does on rank 1."""
    return x * weight + x


def backward_ms(crossings: int, mode: str) -> float:
    """One backward of a graph that crosses so often, without its forward."""
    with dist_autograd.context() as context_id:
        x = weight * 2.0
        for _ in range(crossings // 2):
            x = rpc.rpc_sync("rank1", twice, (x,)) * weight
        loss = x.sum()
        begun = time.perf_counter()
        dist_autograd.backward(context_id, [loss], mode=mode)
        return 1e3 * (time.perf_counter() - begun)


def least(measures: Mapping[str, Callable[[], float]], times: int) -> dict[str, float]:
    """The least of each, in turns."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(WARM_STEPS + times):
        for name, measure in measures.items():
            found[name].append(measure())
    return {name: min(values[WARM_STEPS:]) for name, values in found.items()}


def hop_ms(tensor: mg.Tensor) -> float:
    """One way: half of there and back, by ``send`` and ``recv``."""
    dist.barrier()
    begun = time.perf_counter()
    if RANK == 0:
        dist.send(tensor, 1)
        dist.recv(tensor, 1)
    else:
        dist.recv(tensor, 0)
        dist.send(tensor, 0)
    return 5e2 * (time.perf_counter() - begun)


def ray_hop_ms(call: Any, array: Any) -> float:
    """The same by a call of an actor, which gives back what it gets."""
    dist.barrier()
    begun = time.perf_counter()
    if RANK == 0:
        ray.get(call.remote(array))
    return 5e2 * (time.perf_counter() - begun)


def ray_hops(arrays: Mapping[str, Any]) -> dict[str, Callable[[], float]]:
    """Hops of the arrays through Ray, if there is a cluster."""
    if "RAY_ADDRESS" not in os.environ:
        return {}
    call = None
    if RANK == 0:
        ray.init(log_to_driver=False)
        here = ray.get_runtime_context().get_node_id()
        [there, *_] = [node["NodeID"] for node in ray.nodes() if node["NodeID"] != here]
        place = NodeAffinitySchedulingStrategy(there, soft=False)
        call = ray.remote(_Echo).options(scheduling_strategy=place).remote().back
        ray.get(call.remote(0))
    return {f"{name} by Ray": partial(ray_hop_ms, call, a) for name, a in arrays.items()}


class _Echo:
    def back(self, value: Any) -> Any:
        return value


def main() -> None:
    """Measure, and print at rank 0."""
    zeromq.SILENCE_MS_MAX = 120_000
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    mg.set_engine(mg.Engine("local"))
    dist.init_process_group(encrypt="plain" not in sys.argv)
    rpc.init_rpc(f"rank{RANK}")
    tensors = {name: mg.ones(size // 8, dtype=mg.float64) for name, size in SIZES.items()}
    lanes = {name: partial(hop_ms, tensor) for name, tensor in tensors.items()}
    hops = least({**lanes, **ray_hops({n: t.numpy() for n, t in tensors.items()})}, times)
    if RANK == 0:
        for name, ms in hops.items():
            print(f"hop of {name}: {ms:.3f} ms")
        for crossings in (2, 8):
            modes = {m: partial(backward_ms, crossings, m) for m in ("smart", "fast")}
            found = least(modes, times)
            ratio = found["smart"] / found["fast"]
            said = ", ".join(f"{mode} {ms:.2f} ms" for mode, ms in found.items())
            print(f"backward of {crossings} crossings: {said}, {ratio:.2f} times")
    rpc.shutdown()


if __name__ == "__main__":
    main()
