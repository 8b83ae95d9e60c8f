"""Two ranks that measure what rank 0 reads from stdin: hops of arrays, and backwards over both.

A line is ``hop BYTES TIMES`` or ``backward CROSSINGS MODE TIMES``; the answer is the mean in
milliseconds, after one that does not count.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable

import mpgrad as mg
import mpgrad.distributed as dist
import mpgrad.distributed.autograd as dist_autograd
import mpgrad.distributed.rpc as rpc
from mpgrad.distributed.carrier import zeromq_carrier

RANK = int(os.environ["RANK"])
weight = mg.ones(1, requires_grad=True)
tensors: dict[int, mg.Tensor] = {}


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


def hop_ms(tensor: mg.Tensor) -> float:
    """One way: half of there and back, by ``send`` and ``recv``."""
    begun = time.perf_counter()
    if RANK == 0:
        dist.send(tensor, 1)
        dist.recv(tensor, 1)
    else:
        dist.recv(tensor, 0)
        dist.send(tensor, 0)
    return 5e2 * (time.perf_counter() - begun)


def hops_ms(size: int, times: int) -> float:
    """Several, on both ranks."""
    if size not in tensors:
        tensors[size] = mg.ones(size // 8, dtype=mg.float64)
    return mean(lambda: hop_ms(tensors[size]), times)


def mean(measure: Callable[[], float], times: int) -> float:
    """The mean after one that does not count."""
    measure()
    return statistics.fmean(measure() for _ in range(times))


def answer(words: list[str]) -> float:
    """Measure it."""
    if words[0] == "backward":
        return mean(lambda: backward_ms(int(words[1]), words[2]), int(words[3]))
    size, times = map(int, words[1:])
    dist.send(mg.tensor([size, times]), 1)
    return hops_ms(size, times)


def main() -> None:
    """Until rank 0 reads the end of its stdin."""
    zeromq_carrier.SILENCE_MS_MAX = 120_000
    mg.set_engine(mg.Engine("local"))
    dist.init_process_group(encrypt="plain" not in sys.argv)
    rpc.init_rpc(f"rank{RANK}")
    if RANK == 0:
        print("ready", flush=True)
        for line in sys.stdin:
            print("answer", answer(line.split()), flush=True)
        dist.send(mg.tensor([0, 0]), 1)
    else:
        order = mg.tensor([0, 0])
        while dist.recv(order, 0) == 0 and order[1].item():
            hops_ms(*order.tolist())
    rpc.shutdown()


if __name__ == "__main__":
    main()
