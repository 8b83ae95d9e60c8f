"""What part of the averaging hides behind a backward that takes as long, at two ranks.

A link between the ranks is slowed until the averaging takes as long as the backward: it carries
one message after the other at some rate, and each arrives ``LATENCY_S`` later. The rules of the
backward wait, as those of an accelerator do, so that the processor is free. Rank 0 answers with the
seconds of each round, as many as the first argument says. In each, three things take their turns:
the backward alone (``no_sync``), the reductions alone, and the backward that averages; each lasts
until both ranks are done. Of one more such backward it says when each bucket left and came back.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mpgrad as mg
import mpgrad.distributed as dist
from mpgrad import nn
from mpgrad.distributed.carrier import zeromq_carrier
from mpgrad.distributed.member_thread import MemberThread
from mpgrad.distributed.operation import Operation, Work
from mpgrad.distributed.process_group import ProcessGroup, group_of
from mpgrad.nn.parallel import DistributedDataParallel

LAYERS, WIDTH, BATCH = 16, 512, 8
#: Seconds that the rule of each layer waits.
RULE_S = 0.08
#: MiB of a bucket: one layer.
BUCKET_MIB = 1.0
LATENCY_S = 0.001
WARM_ROUNDS, FITS = 2, 5


class SlowLink:
    """Holds what this rank sends back until a link of that rate would have carried it.

    Attributes:
        bytes_per_s: the link's rate.
    """

    def __init__(self, thread: MemberThread) -> None:
        self.bytes_per_s = 1e9
        self._thread, self._send = thread, thread.member._send
        self._held: deque[tuple[float, int, Sequence[bytes]]] = deque()
        self._is_free_at, self._filled = 0.0, threading.Semaphore(0)
        thread.member._send = self.send
        threading.Thread(target=self._run, daemon=True).start()

    def send(self, rank: int, frames: Sequence[Any]) -> None:
        """What the member calls instead of the carrier."""
        copied = [bytes(frame) for frame in frames]
        taken_s = sum(map(len, copied)) / self.bytes_per_s
        self._is_free_at = max(self._is_free_at, time.monotonic()) + taken_s
        self._held.append((self._is_free_at + LATENCY_S, rank, copied))
        self._filled.release()

    def _run(self) -> None:
        while self._filled.acquire():
            due, rank, frames = self._held.popleft()
            time.sleep(max(0.0, due - time.monotonic()))
            with contextlib.suppress(RuntimeError):  # the group has ended: who waited has it all
                self._thread.ask(partial(self._send, rank, list(frames)))


class Slow(mg.autograd.Function):
    """A rule that takes time and no processor."""

    run_on = "client"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> mg.Tensor:
        """The input."""
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: mg.Tensor) -> mg.Tensor:
        """The gradient, later."""
        time.sleep(RULE_S)
        return gradient


class Layer(nn.Module):
    """A linear layer, with a wait before its rule."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        """The same shape."""
        return Slow.apply(self.linear(x))


def seconds_of(action: Callable[[], object]) -> float:
    """How long it takes from when both ranks are there until both are done."""
    dist.barrier()
    begun = time.perf_counter()
    action()
    dist.barrier()
    return time.perf_counter() - begun


class Timeline:
    """When the reductions of one action were begun and over, in seconds from its begin."""

    def __init__(self) -> None:
        self.spans: list[list[float]] = []
        self._start, self._begun = ProcessGroup.start, time.perf_counter()

    def __enter__(self) -> Timeline:
        ProcessGroup.start = self._noting  # type: ignore[method-assign, assignment]
        self._begun = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        ProcessGroup.start = self._start  # type: ignore[method-assign]

    def _noting(self, operation: Operation, timeout: Any = None) -> Work:
        span, end = [time.perf_counter() - self._begun], operation.work.end

        def note_end(error: BaseException | None) -> None:
            span.append(time.perf_counter() - self._begun)
            end(error)

        self.spans.append(span)
        operation.work.end = note_end  # type: ignore[method-assign]
        return self._start(group_of(None), operation, timeout)


def reduce_alone() -> None:
    """What the reducer sends in a backward, with nothing else to do."""
    flats = [mg.ones(WIDTH * WIDTH) for _ in range(LAYERS)]
    for work in [dist.all_reduce(flat, async_op=True) for flat in flats]:
        assert work is not None
        work.wait()


def main() -> None:
    """Measure, and print at rank 0."""
    zeromq_carrier.SILENCE_MS_MAX = 120_000
    rounds = int(sys.argv[1])
    mg.set_engine(mg.Engine("local"))
    dist.init_process_group(encrypt=False)
    thread = group_of(None)._thread
    mg.manual_seed(0)
    layers = nn.Sequential(*[Layer() for _ in range(LAYERS)])
    model = DistributedDataParallel(layers, bucket_cap_mb=BUCKET_MIB)
    x = mg.randn(BATCH, WIDTH)

    def alone() -> float:
        with model.no_sync():
            return seconds_of(model(x).square().mean().backward)

    def averaging() -> float:
        return seconds_of(model(x).square().mean().backward)

    for _ in range(WARM_ROUNDS):
        alone(), averaging()
    link = SlowLink(thread)
    sent = 4.0 * WIDTH * WIDTH * LAYERS
    for _ in range(FITS):  # every rank takes the rate of rank 0
        rate = mg.tensor([sent / alone()], dtype=mg.float64)
        dist.broadcast(rate, 0)
        link.bytes_per_s = float(rate.item())
    found = [(alone(), seconds_of(reduce_alone), averaging()) for _ in range(rounds)]
    loss = model(x).square().mean()
    dist.barrier()
    with Timeline() as timeline:
        loss.backward()
    if dist.get_rank() == 0:
        said = {"rounds": found, "buckets": timeline.spans[:LAYERS]}
        print("answer", json.dumps(said), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
