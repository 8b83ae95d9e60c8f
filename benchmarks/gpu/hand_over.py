"""Hands a tensor of 1 GB to another process: the time until it has it, and the copied bytes."""

from __future__ import annotations

import pickle
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks.gpu.measured import answer, is_small
from mpgrad.arrays.cuda.cuda_driver import driver
from mpgrad.arrays.cuda.device_board import DeviceBoard
from mpgrad.arrays.cuda.device_link import DeviceLink
from mpgrad.arrays.cuda.device_memory import DeviceMemory
from mpgrad.arrays.cuda.device_reader import DeviceReader
from mpgrad.base.handles import CLIENT_DEVICE_ARENA, TensorHandle

ROUNDS = 20


def main() -> None:
    """Hand tensors over and time it; both processes read the same clock."""
    elements = (1 << 16) if is_small() else (1 << 28)
    board, device = DeviceBoard.create(), driver()
    memory = DeviceMemory(device, CLIENT_DEVICE_ARENA, 0)
    device.set_allocator(memory.exporter.allocate)
    link = DeviceLink(device, board, {memory.arena: memory.exporter})
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu.hand_over", "--child", str(board.fd)],
        pass_fds=[board.fd],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    array = device.namespace.ones(elements, "float32")
    took = []
    for number in range(ROUNDS):
        array *= 1.0  # work that the reader's stream has to wait for
        started = time.perf_counter()
        event = memory.begin_submission(link)
        handle = memory.handle(array, link, event)
        pickle.dump(handle, child.stdin)
        child.stdin.flush()
        reply = pickle.load(child.stdout)
        if isinstance(reply, str):
            raise SystemExit(f"CUDA IPC does not work here: {reply}")
        arrived, total = reply
        memory.end_submission(event)
        took.append(arrived - started)
        if total != elements:
            raise SystemExit(f"round {number}: {total} of {elements} ones arrived")
    child.stdin.close()
    child.wait()
    first, usual = took[0], statistics.median(took[1:])
    answer(
        f"{usual * 1e3:.3f} ms ({first * 1e3:.1f} ms the first time, which opens the segment); "
        f"{memory.copied_bytes} bytes copied of {array.nbytes}"
    )


def _child() -> None:
    device = driver()
    reader = DeviceReader(device, DeviceLink(device, DeviceBoard.attach(int(sys.argv[-1])), {}), [])
    while True:
        try:
            handle: TensorHandle = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            _tell(_read(reader, handle))
        except device.errors as error:
            _tell(str(error))


def _read(reader: DeviceReader, handle: TensorHandle) -> tuple[float, float]:
    """When the tensor was there, and the sum of its elements."""
    array: Any = reader.open(handle)
    arrived = time.perf_counter()
    return arrived, float(array.sum(dtype="float64").get())


def _tell(reply: tuple[float, float] | str) -> None:
    pickle.dump(reply, sys.stdout.buffer)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    if "--child" in sys.argv:
        _child()
    else:
        main()
