"""A CUDA driver without a GPU: host memory, NumPy's functions, and CUDA's rules, enforced.

What CUDA leaves undefined is an
error here: opening one's own handle or one handle twice, freeing memory that others have open,
closing memory that something still reads. Copies run as late as the rules allow, so a wait that
somebody forgot shows as wrong bytes. Kernels (array functions) run at once, after what is in
their stream: a missing wait for a kernel's result alone is not found here.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.cuda_driver import (
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    CudaError,
    DeviceProperties,
)
from tests.cuda.fake_driver.arrays import over
from tests.cuda.fake_driver.memory import (
    Allocation,
    Import,
    Memory,
    MemoryMap,
    PrivateMemory,
    Window,
)
from tests.cuda.fake_driver.namespace import ArrayNamespace, SpecialFunctions
from tests.cuda.fake_driver.streams import (
    DefaultStream,
    EventCounters,
    EventService,
    FakeEvent,
    FakeStream,
    OpenedEvent,
    Operation,
)

#: Bytes of a fake GPU's memory.
TOTAL_BYTES = 4 << 30


class FakeCudaDriver:
    """See ``shm.cuda_driver.CudaDriver``.

    Args:
        devices: how many GPUs there are.
        total_bytes: memory of each.
        has_peer_access: whether they can read each other's memory.
        can_share: whether handles can be made; False as in a container that forbids it.
        can_open: whether those of other processes can be opened; False as where they see each
            other under other process ids.
    """

    name = "fake"
    errors = (CudaError,)

    def __init__(
        self,
        devices: int = 1,
        *,
        total_bytes: int = TOTAL_BYTES,
        has_peer_access: bool = True,
        can_share: bool = True,
        can_open: bool = True,
    ) -> None:
        self._devices, self._total_bytes = devices, total_bytes
        self._has_peer_access, self._can_share = has_peer_access, can_share
        self._can_open = can_open
        self._pid = os.getpid()
        self._memories = MemoryMap()
        self._imports: dict[bytes, Import] = {}
        self._registered: dict[int, int] = {}
        #: (device, peer) for each that may read another's memory directly.
        self.reachable: set[tuple[int, int]] = set()
        # By thread: the current device, and the current stream of each device.
        self._current: dict[int, int] = {}
        self._streams: dict[tuple[int, int], FakeStream | DefaultStream] = {}
        self._made = [FakeStream(self, device) for device in range(devices)]
        self._default_stream = DefaultStream(self, tuple(self._made))
        self._allocator: Callable[[int], tuple[int, Any]] | None = None
        self.namespace: Any = ArrayNamespace(self)
        self.special: Any = SpecialFunctions(self)

    # ------------------------------------------------------------------------------- devices

    def device_count(self) -> int:
        return self._devices

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        self._check_device(index)
        thread, before = threading.get_ident(), self.current_device()
        self._current[thread] = index
        try:
            yield
        finally:
            self._current[thread] = before

    def use_device(self, index: int) -> None:
        """``cudaSetDevice``."""
        self._check_device(index)
        self._current[threading.get_ident()] = index

    def current_device(self) -> int:
        if os.getpid() != self._pid:
            raise CudaError("cudaErrorInitializationError", "CUDA does not survive a fork")
        return self._current.get(threading.get_ident(), 0)

    def properties(self, index: int) -> DeviceProperties:
        self._check_device(index)
        return DeviceProperties("fake GPU", self._total_bytes, (9, 0), self._can_share)

    def memory_info(self, index: int) -> tuple[int, int]:
        self._check_device(index)
        used = sum(
            memory.nbytes
            for memory in self._memories.all()
            if memory.device == index and not isinstance(memory, Import)
        )
        return self._total_bytes - used, self._total_bytes

    def synchronize(self) -> None:
        device = self.current_device()
        for stream in self._made:
            if stream.device == device:
                stream.synchronize()

    def can_access_peer(self, index: int, peer: int) -> bool:
        self._check_device(index)
        self._check_device(peer)
        return index == peer or self._has_peer_access

    def enable_peer_access(self, peer: int) -> None:
        if not self.can_access_peer(self.current_device(), peer):
            raise CudaError("cudaErrorPeerAccessUnsupported")
        self.reachable.add((self.current_device(), peer))

    # -------------------------------------------------------------------------------- memory

    def malloc(self, nbytes: int) -> int:
        device = self.current_device()
        if nbytes > self.memory_info(device)[0]:
            raise CudaError("cudaErrorMemoryAllocation", "out of memory")
        memory = Allocation(device, nbytes)
        self._memories.add(memory)
        return memory.address

    def free(self, pointer: int) -> None:
        memory = self._memories.find(pointer)
        if not isinstance(memory, Allocation) or memory.address != pointer:
            raise CudaError("cudaErrorInvalidValue", "not what malloc gave")
        with self.device(memory.device):
            self.synchronize()  # as cudaFree does
        memory.free()
        self._memories.remove(memory)

    def allocate(self, nbytes: int) -> Window:
        """Memory for a new array, from the allocator that was set or the library's own pool."""
        if self._allocator is not None and nbytes:
            pointer, owner = self._allocator(nbytes)
            return Window(self._memories.find(pointer, nbytes), pointer, nbytes, owner)
        memory = PrivateMemory(self.current_device(), nbytes)
        self._memories.add(memory)
        return Window(memory, memory.address, nbytes, _Forgetting(self._memories, memory))

    def array(
        self,
        pointer: int,
        shape: Sequence[int],
        dtype: Any,
        strides: Sequence[int] | None = None,
        owner: Any = None,
    ) -> Any:
        itemsize = np.dtype(dtype).itemsize
        steps = strides or []
        nbytes = (
            math.prod(shape) * itemsize
            if strides is None
            else itemsize + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
        )
        memory = self._memories.find(pointer, nbytes)
        if memory.device != self.current_device():
            raise CudaError("cudaErrorInvalidDevice", f"memory of device {memory.device}")
        return over(self, Window(memory, pointer, nbytes, owner), shape, dtype, strides)

    def pointer(self, array: Any) -> int:
        return int(array.data.ptr)

    def set_allocator(self, allocate: Callable[[int], tuple[int, Any]] | None) -> None:
        self._allocator = allocate

    def host_register(self, address: int, nbytes: int) -> None:
        if address in self._registered:
            raise CudaError("cudaErrorHostMemoryAlreadyRegistered")
        self._registered[address] = nbytes

    def host_unregister(self, address: int) -> None:
        if self._registered.pop(address, None) is None:
            raise CudaError("cudaErrorHostMemoryNotRegistered")

    def copy(
        self, destination: int, source: int, nbytes: int, kind: int, stream: Any = None
    ) -> None:
        queue = self.current_stream() if stream is None else stream
        touches = []
        if kind != DEVICE_TO_HOST:
            self._memories.find(destination, nbytes)
            touches.append((destination, nbytes))
        if kind != HOST_TO_DEVICE:
            self._memories.find(source, nbytes)
            touches.append((source, nbytes))
        staged = None
        if kind == HOST_TO_DEVICE and not self._is_registered(source, nbytes):
            staged = ctypes.create_string_buffer(ctypes.string_at(source, nbytes), nbytes)
            source = ctypes.addressof(staged)
        run = functools.partial(_move, destination, source, nbytes, staged)
        queue.put(Operation(run, tuple(touches)))
        if kind == DEVICE_TO_HOST and not self._is_registered(destination, nbytes):
            queue.synchronize()  # as CUDA does with memory that is not pinned

    # --------------------------------------------------------------------- streams and events

    def stream(self) -> Any:
        made = FakeStream(self, self.current_device())
        self._made.append(made)
        return made

    def current_stream(self) -> Any:
        key = (threading.get_ident(), self.current_device())
        return self._streams.get(key, self._default_stream)

    def use_stream(self, device: int, stream: FakeStream | DefaultStream) -> Any:
        """Make ``stream`` this thread's current one of ``device``; the one before."""
        key = (threading.get_ident(), device)
        before = self._streams.get(key, self._default_stream)
        self._streams[key] = stream
        return before

    def event(self, *, interprocess: bool = False) -> Any:
        return FakeEvent(self, self.current_device(), self._counters if interprocess else None)

    def before_kernel(self, device: int) -> None:
        """Run what is in the current stream of the current device, which must be ``device``."""
        if device != self.current_device():
            raise ValueError(
                "Array device must be same as the current device: "
                f"array device = {device} while current = {self.current_device()}"
            )
        self.current_stream().synchronize()

    # ------------------------------------------------------------------ sharing with processes

    def ipc_memory_handle(self, pointer: int) -> bytes:
        memory = self._memories.find(pointer)
        if not self._can_share:
            raise CudaError("cudaErrorNotSupported", "this driver was told so")
        if not isinstance(memory, Allocation):
            raise CudaError("cudaErrorInvalidValue", "only memory of malloc can be exported")
        return memory.handle()

    def open_ipc_memory(self, handle: bytes) -> int:
        self.current_device()
        if not self._can_open:
            raise CudaError("cudaErrorMapBufferObjectFailed", "this driver was told so")
        memory = Import(handle)
        if memory.token in self._imports:
            memory.close()
            raise CudaError("cudaErrorAlreadyMapped", "this process has it open")
        self._imports[memory.token] = memory
        self._memories.add(memory)
        return memory.address

    def close_ipc_memory(self, pointer: int) -> None:
        memory = self._memories.find(pointer)
        if not isinstance(memory, Import) or memory.address != pointer:
            raise CudaError("cudaErrorInvalidValue", "not what open_ipc_memory gave")
        if any(stream.touches(memory.address, memory.nbytes) for stream in self._made):
            raise CudaError("undefined behaviour", "closed while a stream still uses it")
        del self._imports[memory.token]
        self._memories.remove(memory)
        memory.close()

    def ipc_event_handle(self, event: FakeEvent) -> bytes:
        if not self._can_share:
            raise CudaError("cudaErrorNotSupported", "this driver was told so")
        return self._service.export(event)

    def open_ipc_event(self, handle: bytes) -> Any:
        return OpenedEvent(handle)

    def close(self) -> None:
        """Stop answering other processes; for tests, which have many drivers in one process."""
        if "_service" in vars(self):
            self._service.close()

    @functools.cached_property
    def _counters(self) -> EventCounters:
        return EventCounters()

    @functools.cached_property
    def _service(self) -> EventService:
        return EventService()

    def _check_device(self, index: int) -> None:
        if not 0 <= index < self._devices:
            raise CudaError("cudaErrorInvalidDevice", f"{index} of {self._devices}")

    def _is_registered(self, address: int, nbytes: int) -> bool:
        return any(
            start <= address and address + nbytes <= start + length
            for start, length in self._registered.items()
        )


class _Forgetting:
    """Takes memory of the library's own pool off the map when the last array over it dies."""

    def __init__(self, memories: MemoryMap, memory: Memory) -> None:
        self._memories, self._memory = memories, memory

    def __del__(self) -> None:
        self._memories.remove(self._memory)


def _move(destination: int, source: int, nbytes: int, _staged: object) -> None:
    ctypes.memmove(destination, source, nbytes)
