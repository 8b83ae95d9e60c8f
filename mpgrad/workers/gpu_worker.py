"""The worker of a GPU: bound to its device, its compute stream and its pool.

It differs from a CPU worker in where gradients lie. Gradients on the GPU are published where they
are. Those of other processes are copied to its own memory on a separate stream, after the event
that their maker recorded. A reply waits for no kernel and no copy; a stream is synchronised only if
a value is needed on the host.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, NoReturn

import numpy as np

from mpgrad.arrays.cpu.matmul_precision import PRECISIONS, matmul
from mpgrad.arrays.cuda.cuda_driver import driver
from mpgrad.arrays.cuda.device_arrays import CUDA
from mpgrad.arrays.cuda.device_board import DeviceBoard
from mpgrad.arrays.cuda.device_link import DeviceLink
from mpgrad.arrays.cuda.device_memory import DeviceMemory
from mpgrad.arrays.cuda.device_reader import DeviceReader
from mpgrad.arrays.cuda.device_roster import ExporterLost
from mpgrad.base.handles import CLIENT_DEVICE_ARENA, Block
from mpgrad.scheduler.instructions import DispatchNodeTask
from mpgrad.wire.programs import InlineArray, PackedArray
from mpgrad.wire.setup import WorkerSetup
from mpgrad.workers.publication import Publication, Report
from mpgrad.workers.worker_memory import WorkerMemory

#: The exit status of a worker with a broken CUDA context, in which every later call would fail.
EXIT_CUDA_LOST = 70


class CudaWorkerMemory(WorkerMemory):
    """Both arenas, and the memory of all GPUs of the engine.

    Args:
        setup: names the GPU and the number of the memory that this process exports.

    Raises:
        RuntimeError: there is no such GPU here.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        super().__init__(setup.client_arena_fd, setup.engine_arena_fd)
        self._driver = driver()
        # Current for the life of the process: no code here may use another GPU.
        self._current = contextlib.ExitStack()
        self._current.enter_context(self._driver.device(setup.device))
        self._current.enter_context(self._driver.stream())
        board = DeviceBoard.attach(setup.device_board_fd)
        self.device_memory = memory = DeviceMemory(self._driver, setup.device_arena, setup.device)
        self._driver.set_allocator(memory.exporter.allocate)
        self.link = DeviceLink(self._driver, board, {memory.arena: memory.exporter}, setup.slot)
        self._reader = DeviceReader(self._driver, self.link, [memory])
        #: Errors of a dead exporter's memory, or of a broken GPU.
        self._lost: tuple[type[Exception], ...] = (ExporterLost, *self._driver.errors)
        #: The number of results that had left this GPU when the task began.
        self._marks = 0
        CUDA.in_use = True

    def begin(self) -> None:
        """Before a task: read the messages of other processes, and the client's settings."""
        self.link.look()
        precision = PRECISIONS[self.link.board.precision]
        if precision != matmul.chosen:
            matmul.choose(precision)
        self._marks = self.device_memory.marks

    def open_gradient(self, ref: Block | bytes, shape: tuple[int, ...], dtype: Any) -> Any:
        """As for a CPU worker; a gradient on a GPU becomes an array on this one."""
        if isinstance(ref, Block) and ref.arena >= CLIENT_DEVICE_ARENA:
            try:
                return self._reader.copy(ref, shape, dtype)
            except self._lost as error:
                _die(error)
        return super().open_gradient(ref, shape, dtype)

    def open_packed(self, packed: PackedArray) -> Any:
        """As for a CPU worker; an array on the GPU is read where it is."""
        if not isinstance(packed, InlineArray) and packed.handle.arena >= CLIENT_DEVICE_ARENA:
            try:
                return self._reader.open(packed.handle)
            except self._lost as error:
                _die(error)
        return super().open_packed(packed)

    def publish(self, array: Any) -> Block:
        """A reference to a gradient on the GPU."""
        return self.device_memory.publish(array, self.link)

    def address_of_input(self, block: Block) -> int:
        """As for a CPU worker; a block on a GPU has no address on the host."""
        return -1 if block.arena >= CLIENT_DEVICE_ARENA else super().address_of_input(block)

    def settle(self) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
        """As for a CPU worker; also release other processes' memory after the reads."""
        try:
            self._reader.finish_reads(self.device_memory.arena)
            if self.device_memory.marks == self._marks:
                # Nothing of it leaves that others wait for: without this they could not know.
                self._driver.current_stream().synchronize()
        except self._lost as error:
            _die(error)
        return super().settle()

    def release(self, blocks: tuple[Block, ...]) -> None:
        """Release blocks without a holder; other GPUs may still be reading some of them."""
        found = [kept for block in blocks for kept in self.device_memory.release(block)]
        self.link.leave(found)
        self.link.reclaim()


class CudaPublication(Publication):
    """Gradients on the GPU leave unchanged; the others leave as from a CPU worker."""

    def __init__(
        self, memory: CudaWorkerMemory, dispatch: DispatchNodeTask, report: Report
    ) -> None:
        super().__init__(memory, dispatch, report)
        self._device = memory
        memory.begin()

    def emit(self, output: int, array: Any) -> None:
        if array is None or isinstance(array, np.ndarray):
            super().emit(output, array)
        elif output not in self._dispatch.published:
            self._unreported.append(output)
            self._refs[output] = self._device.publish(array)

    def publish(self) -> None:
        self._device.device_memory.mark()
        super().publish()

    def outputs(self) -> tuple[Any, ...]:
        self._device.device_memory.mark()
        self.copied_bytes += self._device.device_memory.copied_bytes
        self._device.device_memory.copied_bytes = 0
        return super().outputs()


def _die(error: Exception) -> NoReturn:
    """End this process: an exporter has died, and with it memory of this CUDA context.

    CUDA keeps such an error forever, so every later reply of this worker would be that error. The
    coordinator starts another worker, and the task runs again if its inputs still exist.
    """
    text = f"mpgrad: a GPU worker (pid {os.getpid()}) ends: {error}"
    print(text, file=sys.__stderr__, flush=True)
    os._exit(EXIT_CUDA_LOST)
