"""The client's memory on each GPU, where its tensors lie if an engine has GPU workers.

Such tensors are submitted where they lie. Tensors made earlier, in the array library's own pool,
cannot be exported and are copied at each submission.
"""

from __future__ import annotations

import threading
import warnings
from typing import Any

from mpgrad.arrays.cuda.cuda_driver import driver
from mpgrad.arrays.cuda.device_board import DeviceBoard
from mpgrad.arrays.cuda.device_link import DeviceLink
from mpgrad.arrays.cuda.device_memory import DeviceMemory
from mpgrad.arrays.cuda.device_reader import DeviceReader
from mpgrad.base.handles import CLIENT_DEVICE_ARENA, WORKER_DEVICE_ARENA, Block

#: Any thread may make arrays, or release the last view of one while another thread makes some.
_lock = threading.RLock()
_memories: dict[int, DeviceMemory] = {}
#: The running engines.
_links: list[DeviceLink] = []


def device_memory(device: int) -> DeviceMemory:
    """The memory that this process exports on a GPU."""
    with _lock:
        found = _memories.get(device)
        if found is None:
            arena = CLIENT_DEVICE_ARENA + device
            if arena >= WORKER_DEVICE_ARENA:
                raise ValueError(f"GPU {device}: there are numbers for fewer")
            found = _memories[device] = DeviceMemory(driver(), arena, device)
        return found


def use_pool() -> None:
    """From now on put new device arrays of this process into memory that others can open."""
    driver().set_allocator(_allocate)


def bytes_on(device: int) -> tuple[int, int]:
    """Bytes of a GPU used by arrays in such memory, and bytes taken from the GPU for it."""
    with _lock:
        if device not in _memories:
            return 0, 0
        exporter = _memories[device].exporter
        return exporter.used_bytes, exporter.held_bytes


def give_back() -> None:
    """Return idle segments to the GPUs, and ask the workers of all engines to do the same."""
    with _lock:
        for link in _links:
            link.board.note_shortage()
            link.give_back()
        if not _links:
            for device, memory in _memories.items():
                with driver().device(device):
                    memory.exporter.retire_idle()


def _allocate(nbytes: int) -> tuple[int, Any]:
    with _lock:
        return device_memory(driver().current_device()).exporter.allocate(nbytes)


class ClientDevices:
    """The client's side of device memory in one engine; any of its threads may use it.

    Args:
        board: of the engine.
        gpus: the GPUs with workers.
    """

    def __init__(self, board: DeviceBoard, gpus: tuple[int, ...]) -> None:
        self.board, self.lock = board, _lock
        self._has_warned, self._host_bytes = False, 0
        with _lock:
            own = [device_memory(device) for device in sorted(set(gpus))]
            exporters = {memory.arena: memory.exporter for memory in own}
            self.link = DeviceLink(driver(), board, exporters, is_bound=False)
            self.reader = DeviceReader(driver(), self.link, own)
            _links.append(self.link)

    def memory(self, device: int) -> DeviceMemory:
        """The memory that this process exports on a GPU."""
        return device_memory(device)

    def wait_for(self, block: Block) -> None:
        """Block this thread until a worker's GPU has written ``block``.

        Raises:
            ExporterLost: the worker is dead.
        """
        with _lock:
            event = self.reader.event_of(block)
        if event is not None:
            self.link.roster.wait_here(block.arena, event)

    def take_host_bytes(self) -> int:
        """Bytes copied through the host, in all processes, since the last call."""
        with _lock:
            before, self._host_bytes = self._host_bytes, self.link.host_bytes()
            return self._host_bytes - before

    def look(self) -> None:
        """Read the news of other processes; warn once if two of them cannot share memory."""
        with _lock:
            self.link.look()
            self.link.reclaim()
            failures = [] if self._has_warned else self.link.failures()
        if failures:
            self._has_warned = True
            warnings.warn(
                "CUDA IPC does not work between some processes, so tensors on GPUs are copied "
                "through pinned host memory, which is slower. "
                f"The first of {len(failures)}: {failures[0]}",
                RuntimeWarning,
                stacklevel=2,
            )

    def close(self) -> None:
        """Release everything, after the other processes have died."""
        with _lock:
            _links.remove(self.link)
            self.link.close()
