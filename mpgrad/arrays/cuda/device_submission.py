"""DeviceSubmission: the client's device memory that one GraphTask's GPU workers read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpgrad.arrays.cpu.matmul_precision import PRECISIONS, matmul
from mpgrad.arrays.cuda.cuda_driver import driver
from mpgrad.arrays.cuda.device_arrays import device_of, on
from mpgrad.arrays.cuda.device_memory import NO_EVENT, DeviceMemory
from mpgrad.arrays.cuda.device_roster import ExporterLost
from mpgrad.base.device import Device
from mpgrad.base.handles import CLIENT_DEVICE_ARENA, WORKER_DEVICE_ARENA, Block, TensorHandle
from mpgrad.errors import WorkerLost

if TYPE_CHECKING:
    from mpgrad.arrays.cuda.client_devices import ClientDevices


class DeviceSubmission:
    """Keeps everything submitted alive until ``close``, or longer after a failure.

    Args:
        devices: of the engine.
    """

    def __init__(self, devices: ClientDevices) -> None:
        self._devices, self._link = devices, devices.link
        self._kept: list[Any] = []
        self._published: list[Block] = []
        #: By GPU: the event after all earlier work of this thread; and all such events.
        self._events: dict[int, int] = {}
        self._begun: list[tuple[DeviceMemory, int]] = []
        self.copied_bytes = 0
        devices.look()
        devices.board.precision = PRECISIONS.index(matmul.chosen)

    def handle(self, array: Any) -> TensorHandle:
        """A reference to a saved array, or to a copy if it cannot be exported."""
        with self._devices.lock, on(device_of(array)):
            memory = self._memory(array)
            if array.nbytes and not self._link.is_shared(memory.arena):
                return self._on_host(memory, array)
            event = self._event(memory) if array.nbytes else NO_EVENT
            found = memory.handle(array, self._link, event)
            if found is None:
                array = array.copy(order="K")  # in exported memory, with these strides if possible
                self.copied_bytes += array.nbytes
                # The copy runs after the event that earlier readers wait for: later ones get a new
                # one.
                del self._events[memory.device]
                found = memory.handle(array, self._link, self._event(memory))
            if found is None:
                raise RuntimeError("a new array does not lie in the memory that is exported")
        self._kept.append(array)
        return found

    def _on_host(self, memory: DeviceMemory, array: Any) -> TensorHandle:
        found, copy = memory.handle_on_host(array, self._link)
        self._kept.append(copy)
        self._count(memory)
        return found

    def publish(self, array: Any) -> Block:
        """A C-contiguous gradient that flows into the graph from here."""
        with self._devices.lock, on(device_of(array)):
            memory = self._memory(array)
            block = memory.publish(array, self._link)
            memory.mark()
            self._count(memory)
        self._published.append(block)
        return block

    def _count(self, memory: DeviceMemory) -> None:
        self.copied_bytes += memory.copied_bytes
        memory.copied_bytes = 0

    def take_host_bytes(self) -> int:
        """Bytes copied through the host, in all processes, since the last call."""
        return self._devices.take_host_bytes()

    def copy(self, block: Block, shape: tuple[int, ...], dtype: Any, device: Device) -> Any:
        """The client's own copy of a gradient on ``device``; the current stream waits for it.

        Raises:
            WorkerLost: its worker died.
        """
        try:
            if block.arena >= WORKER_DEVICE_ARENA:
                self._devices.wait_for(block)
            with self._devices.lock, on(device):
                copy = self._devices.reader.copy(block, shape, dtype)
                self._devices.reader.finish_reads(self._memory(copy).arena)
                return copy.copy() if block.arena < WORKER_DEVICE_ARENA else copy
        except (ExporterLost, *driver().errors) as error:  # type: ignore[misc]
            raise WorkerLost(f"a GPU worker died, and a gradient with it ({error})") from error

    def close(self, *, is_complete: bool) -> None:
        """Release the arrays: no new reader will be told of them.

        Args:
            is_complete: there are results, so all reads have finished. After a failure a GPU may
                still be reading.
        """
        with self._devices.lock:
            for memory, event in self._begun:
                memory.end_submission(event)
            for block in self._published:
                memory = self._devices.memory(block.arena - CLIENT_DEVICE_ARENA)
                self._kept.extend(memory.release(block))
            if self._kept:
                self._link.leave(list(self._kept), is_read=is_complete)
        self._events.clear()
        self._begun.clear()
        self._published.clear()
        self._kept.clear()

    def _memory(self, array: Any) -> DeviceMemory:
        return self._devices.memory(int(array.device.id))

    def _event(self, memory: DeviceMemory) -> int:
        if memory.device not in self._events:
            self._events[memory.device] = event = memory.begin_submission(self._link)
            self._begun.append((memory, event))
        return self._events[memory.device]
