"""calibrate(): measures the costs of messages, tasks and memory on this machine."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from struct import Struct
from time import perf_counter, sleep, thread_time
from typing import Any

import numpy as np

import mpgrad as mg
from benchmarks.scaling.costs import Costs, MessageCosts, WorkerCosts
from mpgrad.autograd.frozen_graphs.freeze import freeze
from mpgrad.autograd.profiling.task_times import unpack_times
from mpgrad.base.handles import INLINE_LIMIT_BYTES, Block, GradientRef
from mpgrad.engine.graph_submission import GraphSubmission
from mpgrad.engine.preparation import PreparedGraph
from mpgrad.recording.tensors.tensor import gradient_edge
from mpgrad.scheduler.events import NodeTaskDone
from mpgrad.scheduler.instructions import DispatchNodeTask
from mpgrad.scheduler.plan import plan
from mpgrad.shm.arena import client_arena
from mpgrad.shm.segment import Segment
from mpgrad.wire.endpoint import Endpoint
from mpgrad.wire.schema import decode, encode
from mpgrad.wire.transport import TASK, Router
from mpgrad.workers.task import TaskRunner
from mpgrad.workers.worker_memory import WorkerMemory

MB = 1 << 20
#: Measurements of each cost, of which the smallest counts; and rounds of a message's cost.
REPEATS = 5
ROUNDS = 300
#: After this an answer has come.
LYING_S = 0.0005
#: The bytes of the frame that shows how the size of a message affects its time.
LARGE_FRAME = 128 * 1024
PEER = "w0.1"
TOKEN = b"of this measurement"
_stamp = Struct("<d")
_ROOT = Path(__file__).resolve().parents[2]


def calibrate() -> Costs:
    """Each cost is the least of several measurements, see ``recording``; the coordinator's core is
    timed by the simulation itself.
    """
    messages, worker, adding = zip(*[_measured() for _ in range(REPEATS)], strict=True)
    least_message = MessageCosts(*[min(costs) for costs in zip(*messages, strict=True)])
    least_worker = WorkerCosts(*[min(costs) for costs in zip(*worker, strict=True)])
    return Costs(least_message, least_worker, {}, min(adding))


def _measured() -> tuple[MessageCosts, WorkerCosts, float]:
    read, add, touch = _memory_us_per_mb()
    return _message_costs(), WorkerCosts(*_task_us(), read, touch), add


# ----------------------------------------------------------------------- messages


def _message_costs() -> MessageCosts:
    asleep, _, _ = _one_way_us(spins=False)
    wire, wire_per_kb, processor = _one_way_us(spins=True)
    send, receive, poll = processor
    blocks = tuple(Block(1, number << 20, 1 << 20, number) for number in range(65))
    gradients = tuple(bytes(INLINE_LIMIT_BYTES // 2) for _ in range(65))
    small = _codec_us(blocks[:1])[0]
    per_kb, inline_per_kb = _codec_us_per_kb(blocks), _codec_us_per_kb(gradients)
    return MessageCosts(
        wire, wire_per_kb, max(asleep, wire), send, receive, poll, small, per_kb, inline_per_kb
    )


def _one_way_us(*, spins: bool) -> tuple[float, float, tuple[float, float, float]]:
    """From the end of a send to its receiver, and per kilobyte on top; and processor time of
    sending, taking, looking.
    """
    endpoint = Endpoint.create()._replace(token=TOKEN)
    router = endpoint.router()
    command = [sys.executable, "-m", "benchmarks.scaling.calibration", endpoint.name]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen(
        command + ["spin"] * spins, cwd=_ROOT, env=environment, stdin=subprocess.PIPE
    )
    try:
        _answer(router)  # it is there
        # Where the receiver looks before the send has ended, the message took no time.
        delays = [max(_ping(router), 0.0) for _ in range(ROUNDS)]
        per_kb = _wire_us_per_kb(router)
        costs = _processor_us(router)
    finally:
        router.send(TASK, PEER, b"")
        router.flush()
        child.wait()
        router.close()
    return median(delays), per_kb, costs


def _ping(router: Router) -> float:
    router.send(TASK, PEER, b"one")
    router.flush()
    sent = perf_counter()  # one clock for all processes of the machine
    (received,) = _stamp.unpack(_answer(router))
    return (received - sent) * 1e6


def _answer(router: Router) -> bytes:
    """The next frame; what comes of a connection itself is none."""
    while not (arrivals := router.receive(None).arrivals):
        pass
    return arrivals[0].frame


def _wire_us_per_kb(router: Router) -> float:
    """The way of a large frame, from the begin of its send, against that of a small one."""
    took: dict[int, list[float]] = {1: [], LARGE_FRAME: []}
    for _ in range(ROUNDS // 3):
        for nbytes, series in took.items():
            frame = b"x" * nbytes
            start = perf_counter()
            router.send(TASK, PEER, frame)
            router.flush()
            (received,) = _stamp.unpack(_answer(router))
            series.append((received - start) * 1e6)
    more_us = median(took[LARGE_FRAME]) - median(took[1])
    return max(more_us, 0.0) / LARGE_FRAME * 1024


def _processor_us(router: Router) -> tuple[float, float, float]:
    """Per send to one peer, per message taken, per look in vain."""
    sends, takes, looks = [], [], []
    for _ in range(ROUNDS):
        start = thread_time()
        router.send(TASK, PEER, b"x" * 100)
        router.flush()
        sends.append(thread_time() - start)
        # Waiting messages: each sender has its own connection, so that many of them cannot be
        # taken together.
        sleep(LYING_S)
        start = thread_time()
        found = router.receive(None).arrivals
        takes.append(thread_time() - start)
        while not found:
            found = router.receive(None).arrivals
        start = thread_time()
        router.receive(0)
        looks.append(thread_time() - start)
    look_us = median(looks) * 1e6
    return median(sends) * 1e6, max(median(takes) * 1e6 - look_us, 0.0), look_us


def echo(name: str, *, spins: bool) -> None:
    """The other process: replies to each message with its time of arrival."""
    dealer = Endpoint(name, TOKEN).worker(PEER)
    dealer.send([b"here"])
    while True:
        dealer.wait(0 if spins else None)
        received = perf_counter()
        for frame in dealer.receive():
            if not frame:
                dealer.close()
                return
            dealer.send([_stamp.pack(received)])


def _codec_us_per_kb(refs: tuple[GradientRef, ...]) -> float:
    """For each kilobyte that all but the first of ``refs`` take in a message."""
    small, large = _codec_us(refs[:1]), _codec_us(refs)
    return max(large[0] - small[0], 0.0) / (large[1] - small[1]) * 1024


def _codec_us(refs: tuple[GradientRef, ...]) -> tuple[float, int]:
    """Encoding (decoding takes as long within a factor of four; the mean), and the bytes."""
    done = NodeTaskDone(PEER, 1, 1, 1, refs)
    frame = encode(done)
    both = _us(lambda: encode(done)) + _us(lambda: decode(frame))
    return both / 2, len(frame)


def _us(action: Callable[[], Any], count: int = 2000) -> float:
    """Microseconds of processor time per call; the median of nine series."""
    series = []
    for _ in range(9):
        start = thread_time()
        for _ in range(count):
            action()
        series.append((thread_time() - start) / count)
    return median(series) * 1e6


# ----------------------------------------------------------------------- tasks and memory


def _task_us() -> tuple[float, float, float]:
    """The time of a worker's TaskRunner for a task of one small Node, and per further Node: before
    the first one runs, and later.

    The Nodes multiply 16 numbers; the time of each in `local` is subtracted.
    """
    (short_start, short), (long_start, long) = _run_task_us(1), _run_task_us(33)
    x, y = np.ones(16, np.float32), np.ones(16, np.float32)
    rule = _us(lambda: x * y)
    starting = max((long_start - short_start) / 32, 0.0)
    per_node = max((long - short) / 32 - rule - starting, 0.0)
    return max(short - rule, 0.0), starting, per_node


def _run_task_us(nodes: int) -> tuple[float, float]:
    """For a task of this many Nodes: the time until the first one runs, and the whole time."""
    x = mg.ones(16, requires_grad=True)
    y = x
    for _ in range(nodes):
        y = y * 2.0
    seed = np.ones(16, np.float32)
    frozen = freeze([gradient_edge(y)], [seed], keep_graph=True, cost=lambda node: 1.0)
    graph = PreparedGraph(frozen.spec, plan(frozen.spec))
    submission = GraphSubmission(frozen, graph, {})
    ((payload, program),) = submission.programs(range(1))
    submission.is_timed = True
    ((timed_payload, timed_program),) = submission.programs(range(1))
    engine_arena = Segment.create(MB, "calibration")
    runner = TaskRunner(
        WorkerMemory(os.dup(client_arena().segment.fd), os.dup(engine_arena.fd)),
        "the calibration",
        lambda progress: None,
        0,
    )
    blocks = (None,) * len(graph.plan.tasks[0].outputs)
    seeds = ((seed.tobytes(),),)
    dispatch = DispatchNodeTask(PEER, 0, 0, 1, 0, 0, payload, seeds, blocks, program=program)
    timed = dispatch._replace(payload=timed_payload, program=timed_program)
    starts = [_start_us(runner, timed) for _ in range(ROUNDS)]
    cost = _us(lambda: runner.run(dispatch), 200)
    submission.close()
    return median(starts), cost


def _start_us(runner: TaskRunner, dispatch: DispatchNodeTask) -> float:
    """Microseconds until a task's first Node runs."""
    began = perf_counter()
    reply, _ = runner.run(dispatch)
    if not isinstance(reply, NodeTaskDone) or reply.times is None:
        raise RuntimeError(f"the calibration's task failed: {reply!r}")
    return (unpack_times(reply.times).nodes[0] - began) * 1e6


def _memory_us_per_mb() -> tuple[float, float, float]:
    """Reading uncached memory, adding one array to another, and the first touch of pages."""
    cold = np.ones(128 * MB // 4, np.float32)
    start = perf_counter()
    cold.sum()
    read = (perf_counter() - start) / 128
    total, part = np.ones(4 * MB // 4, np.float32), np.ones(4 * MB // 4, np.float32)
    add = _us(lambda: np.add(total, part, out=total), 20) / 4
    fd = os.memfd_create("calibration")
    os.ftruncate(fd, 64 * MB)
    os.posix_fallocate(fd, 0, 64 * MB)
    with mmap.mmap(fd, 64 * MB) as memory:
        array = np.frombuffer(memory, np.uint8)
        passes = []
        for _ in range(2):
            start = perf_counter()
            array[:] = 1
            passes.append(perf_counter() - start)
        del array
    os.close(fd)
    return read * 1e6, add, max(passes[0] - passes[1], 0.0) * 1e6 / 64


if __name__ == "__main__":
    echo(sys.argv[1], spins="spin" in sys.argv[2:])
