"""DeviceHandover: what one GraphTask's GPU workers read of the client's device memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpgrad.autograd.nodes.node import InputMetadata
from mpgrad.device_arrays import device_of, on
from mpgrad.errors import WorkerLost
from mpgrad.handles import CLIENT_DEVICE_ARENA, WORKER_DEVICE_ARENA, Block, TensorHandle
from mpgrad.shm.cuda_driver import CudaError, driver

if TYPE_CHECKING:
    from mpgrad.shm.client_devices import ClientDevices
    from mpgrad.shm.device_memory import DeviceMemory


class DeviceHandover:
    """Everything handed over stays alive until ``close``.

    Args:
        devices: of the engine.
    """

    def __init__(self, devices: ClientDevices) -> None:
        self._devices = devices
        self._kept: list[Any] = []
        self._published: list[Block] = []
        #: By GPU the event that follows all that this thread had asked of it.
        self._events: dict[int, int] = {}
        self.copied_bytes = 0

    def handle(self, array: Any) -> TensorHandle:
        """A reference to what forward saved, or to a copy if it cannot be exported."""
        with self._devices.lock, on(device_of(array)):
            memory = self._memory(array)
            event = self._event(memory)
            found = memory.handle(array, self._devices.board, event)
            if found is None:
                array = _copied(memory, array)
                self.copied_bytes += array.nbytes
                # The copy comes after the event that the others wait for.
                driver().current_stream().synchronize()
                found = memory.handle(array, self._devices.board, event)
            if found is None:
                raise RuntimeError("a new array does not lie in the memory that is exported")
        self._kept.append(array)
        return found

    def publish(self, array: Any) -> Block:
        """A C-contiguous gradient that flows into the graph from here."""
        with self._devices.lock, on(device_of(array)):
            memory = self._memory(array)
            block = memory.publish(array, self._devices.board)
            memory.mark()
        self._published.append(block)
        return block

    def copy(self, block: Block, meta: InputMetadata) -> Any:
        """The client's own copy of a gradient on a GPU.

        Raises:
            WorkerLost: its worker is dead.
        """
        try:
            with self._devices.lock, on(meta.device):
                copy = self._devices.reader.copy(block, meta.shape, meta.dtype)
                self._devices.reader.finish_reads()
                return copy.copy() if block.arena < WORKER_DEVICE_ARENA else copy
        except CudaError as error:
            raise WorkerLost(f"a GPU worker died, and a gradient with it ({error})") from error

    def close(self) -> None:
        """Nobody reads any more."""
        with self._devices.lock:
            for device, event in self._events.items():
                self._devices.memory(device).end_handover(event)
            for block in self._published:
                self._devices.memory(block.arena - CLIENT_DEVICE_ARENA).release(block)
        self._events.clear()
        self._published.clear()
        self._kept.clear()

    def _memory(self, array: Any) -> DeviceMemory:
        return self._devices.memory(int(array.device.id))

    def _event(self, memory: DeviceMemory) -> int:
        if memory.device not in self._events:
            self._events[memory.device] = memory.begin_handover(self._devices.board)
        return self._events[memory.device]


def _copied(memory: DeviceMemory, array: Any) -> Any:
    """A copy in exported memory, whose strides are those of ``array`` where they can be."""
    return array.copy(order="K")
