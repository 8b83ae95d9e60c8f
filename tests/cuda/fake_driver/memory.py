"""Device memory of the fake CUDA driver: stretches of host memory with CUDA's rules about them.

What ``malloc`` gives lies in a memfd. Another process opens it as ``/proc/PID/fd/FD``, so a handle
of 64 bytes is all that it needs, and nothing is left behind by whoever is killed.
"""

from __future__ import annotations

import bisect
import fcntl
import mmap
import os
import secrets
import struct
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.cuda_driver import IPC_HANDLE_BYTES, CudaError
from mpgrad.shm.segment import Segment

#: A page before the memory, which holds the token that stands in its handle.
_HEADER_BYTES = mmap.PAGESIZE
_HANDLE = struct.Struct("<4sIIIQ16s")
_MAGIC = b"FMEM"

#: Freed memory is filled with this, so that whoever still reads it computes nonsense.
_POISON = 0xDB


class Memory:
    """One stretch of device memory; also the owner of NumPy arrays over it.

    Attributes:
        device: which GPU it lies on.
        address: where it starts; what a pointer to it is.
        nbytes: its length.
        is_live: False once it was freed or closed.
    """

    def __init__(self, device: int, address: int, nbytes: int, backing: Any) -> None:
        self.device, self.address, self.nbytes, self.is_live = device, address, nbytes, True
        self._backing = backing  # keeps the mapping

    def poison(self) -> None:
        """Overwrite it: it was freed."""
        np.asarray(Window(self, self.address, self.nbytes))[:] = _POISON


class Window:
    """Bytes of a Memory as NumPy sees them; keeps the memory mapped and ``owner`` alive."""

    def __init__(self, memory: Memory, address: int, nbytes: int, owner: object = None) -> None:
        self.memory, self.owner = memory, owner
        self.__array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class Allocation(Memory):
    """Memory of ``malloc``, which other processes may open."""

    def __init__(self, device: int, nbytes: int) -> None:
        segment = Segment.create(_HEADER_BYTES + nbytes, "fake-cuda")
        super().__init__(device, segment.address + _HEADER_BYTES, nbytes, segment)
        self._segment, self._token = segment, secrets.token_bytes(16)
        segment.buffer[: len(self._token)] = self._token

    def handle(self) -> bytes:
        """What ``Import`` opens it by."""
        packed = _HANDLE.pack(
            _MAGIC, os.getpid(), self._segment.fd, self.device, self.nbytes, self._token
        )
        return packed.ljust(IPC_HANDLE_BYTES, b"\0")

    def free(self) -> None:
        """Poison it, unless an importer has it open.

        Raises:
            CudaError: one has; CUDA says that this is undefined, and does not notice.
        """
        try:
            fcntl.flock(self._segment.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CudaError(
                "undefined behaviour", "memory freed while another process has it open"
            ) from None
        self.is_live = False
        self.poison()
        self._segment.close()


class Import(Memory):
    """Another process's Allocation, opened here; the kernel closes it with the process."""

    def __init__(self, handle: bytes) -> None:
        magic, pid, fd, device, nbytes, self.token = _HANDLE.unpack(handle[: _HANDLE.size])
        if len(handle) != IPC_HANDLE_BYTES or magic != _MAGIC:
            raise CudaError("cudaErrorInvalidValue", "no handle of memory")
        if pid == os.getpid():
            raise CudaError("cudaErrorDeviceUninitialized", "the exporter's own handle")
        try:
            descriptor = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
            segment = Segment.attach(descriptor, "fake-cuda")
        except (OSError, RuntimeError) as error:
            raise CudaError("cudaErrorInvalidResourceHandle", str(error)) from error
        if bytes(segment.buffer[: len(self.token)]) != self.token:
            raise CudaError("cudaErrorInvalidResourceHandle", "that memory was freed")
        # Held by this open file, not by the process: it goes with the last descriptor.
        fcntl.flock(segment.fd, fcntl.LOCK_SH)
        super().__init__(device, segment.address + _HEADER_BYTES, nbytes, segment)
        self._segment = segment

    def close(self) -> None:
        """Let the exporter free it."""
        self.is_live = False
        self._segment.close()


class PrivateMemory(Memory):
    """Memory of the array library's own pool: no other process can open it."""

    def __init__(self, device: int, nbytes: int) -> None:
        # Aligned as a GPU's, so that alignment never tells the two drivers apart.
        heap = np.empty(nbytes + 256, np.uint8)
        address = -(-heap.ctypes.data // 256) * 256
        super().__init__(device, address, nbytes, heap)


class MemoryMap:
    """Which stretch an address belongs to."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._memories: dict[int, Memory] = {}

    def add(self, memory: Memory) -> None:
        """From now on its addresses are known."""
        bisect.insort(self._starts, memory.address)
        self._memories[memory.address] = memory

    def remove(self, memory: Memory) -> None:
        """Forget it."""
        if self._memories.pop(memory.address, None) is not None:
            del self._starts[bisect.bisect_left(self._starts, memory.address)]

    def find(self, address: int, nbytes: int = 0) -> Memory:
        """The memory that holds these bytes.

        Raises:
            CudaError: they lie in none, or not wholly.
        """
        index = bisect.bisect_right(self._starts, address) - 1
        memory = self._memories[self._starts[index]] if index >= 0 else None
        if memory is None or address + nbytes > memory.address + memory.nbytes:
            raise CudaError(
                "cudaErrorIllegalAddress", f"{nbytes} bytes at {address:#x} are no device memory"
            )
        return memory

    def all(self) -> list[Memory]:
        """Every stretch, by address."""
        return [self._memories[start] for start in self._starts]
