"""The client's memory on each GPU: where its tensors are born, once an engine has GPU workers.

Such tensors are handed over where they lie. Those that were made before, in the array library's own
pool, cannot be exported and are copied at each hand-over.
"""

from __future__ import annotations

import threading
from typing import Any

from mpgrad.handles import CLIENT_DEVICE_ARENA, WORKER_DEVICE_ARENA
from mpgrad.shm.cuda_driver import driver
from mpgrad.shm.device_board import DeviceBoard
from mpgrad.shm.device_memory import DeviceMemory, DeviceReader

#: Any thread may make arrays, or let the last view of one die while another one makes some.
_lock = threading.RLock()
_memories: dict[int, DeviceMemory] = {}


def device_memory(device: int) -> DeviceMemory:
    """What this process exports of a GPU."""
    with _lock:
        found = _memories.get(device)
        if found is None:
            arena = CLIENT_DEVICE_ARENA + device
            if arena >= WORKER_DEVICE_ARENA:
                raise ValueError(f"GPU {device}: there are numbers for fewer")
            found = _memories[device] = DeviceMemory(driver(), arena, device)
        return found


def use_pool() -> None:
    """From now on new device arrays of this process lie in memory that others can open."""
    driver().set_allocator(_allocate)


def bytes_on(device: int) -> tuple[int, int]:
    """Bytes of a GPU that arrays born in such memory use, and that it has taken from the GPU."""
    with _lock:
        if device not in _memories:
            return 0, 0
        exporter = _memories[device].exporter
        return exporter.used_bytes, exporter.held_bytes


def _allocate(nbytes: int) -> tuple[int, Any]:
    with _lock:
        return device_memory(driver().current_device()).exporter.allocate(nbytes)


class ClientDevices:
    """The client's side of device memory in one engine; any of its threads may use it.

    Args:
        board: of the engine.
        gpus: those that have workers.
    """

    def __init__(self, board: DeviceBoard, gpus: tuple[int, ...]) -> None:
        self.board, self.gpus = board, gpus
        own = [device_memory(device) for device in dict.fromkeys(gpus)]
        self.reader = DeviceReader(driver(), board, own, is_bound=False)
        self.lock = _lock

    def memory(self, device: int) -> DeviceMemory:
        """What this process exports of a GPU."""
        return device_memory(device)
