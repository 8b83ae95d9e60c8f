"""The CUDA driver of a machine with GPUs: CuPy's runtime bindings behind ``cuda_driver``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import cupy
import cupyx.scipy.special

from mpgrad.arrays.cuda.cuda_driver import CudaError, DeviceProperties

T = TypeVar("T")

_runtime = cupy.cuda.runtime

#: ``cudaDevAttrIpcEventSupport``, which CuPy does not define.
_IPC_EVENT_SUPPORT = 125

#: ``cudaHostRegisterPortable``: pinned for every context of this process.
_REGISTER_PORTABLE = 1


def _translated(call: Callable[..., T]) -> Callable[..., T]:
    """``call``, raising CudaError instead of CuPy's own errors."""

    @functools.wraps(call)
    def translated(*args: Any, **kwargs: Any) -> T:
        try:
            return call(*args, **kwargs)
        except _runtime.CUDARuntimeError as error:
            status, _, detail = str(error).partition(":")
            raise CudaError(status.strip(), detail.strip()) from error

    return translated


class CupyDriver:
    """See ``CudaDriver``."""

    name = "cupy"
    errors = (CudaError, _runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError)
    namespace = cupy
    special = cupyx.scipy.special

    def device_count(self) -> int:
        try:
            return int(_runtime.getDeviceCount())
        except _runtime.CUDARuntimeError:
            return 0  # no driver, or only one that is too old: there is no GPU to use

    def device(self, index: int) -> AbstractContextManager[Any]:
        return cupy.cuda.Device(index)

    def current_device(self) -> int:
        return int(_runtime.getDevice())

    @_translated
    def properties(self, index: int) -> DeviceProperties:
        found = _runtime.getDeviceProperties(index)
        return DeviceProperties(
            found["name"].decode(),
            int(found["totalGlobalMem"]),
            (int(found["major"]), int(found["minor"])),
            bool(_runtime.deviceGetAttribute(_IPC_EVENT_SUPPORT, index)),
        )

    @_translated
    def memory_info(self, index: int) -> tuple[int, int]:
        with cupy.cuda.Device(index):
            free, total = _runtime.memGetInfo()
        return int(free), int(total)

    @_translated
    def synchronize(self) -> None:
        _runtime.deviceSynchronize()

    @_translated
    def can_access_peer(self, index: int, peer: int) -> bool:
        return index == peer or bool(_runtime.deviceCanAccessPeer(index, peer))

    def enable_peer_access(self, peer: int) -> None:
        try:
            _runtime.deviceEnablePeerAccess(peer)
        except _runtime.CUDARuntimeError as error:
            if "PeerAccessAlreadyEnabled" not in str(error):
                raise CudaError(str(error).partition(":")[0]) from error

    # -------------------------------------------------------------------------------- memory

    @_translated
    def malloc(self, nbytes: int) -> int:
        return int(_runtime.malloc(nbytes))

    @_translated
    def free(self, pointer: int) -> None:
        _runtime.free(pointer)

    def array(
        self,
        pointer: int,
        shape: Sequence[int],
        dtype: Any,
        strides: Sequence[int] | None = None,
        owner: Any = None,
    ) -> Any:
        # The size limits nothing in CuPy; the device is given, so that CuPy does not ask CUDA for
        # it.
        memory = cupy.cuda.UnownedMemory(pointer, 0, owner, device_id=self.current_device())
        return cupy.ndarray(
            tuple(shape), dtype, cupy.cuda.MemoryPointer(memory, 0), strides=strides
        )

    def pointer(self, array: Any) -> int:
        return int(array.data.ptr)

    def set_allocator(self, allocate: Callable[[int], tuple[int, Any]] | None) -> None:
        if allocate is None:
            cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
            return

        def allocated(nbytes: int) -> Any:
            pointer, owner = allocate(nbytes)
            memory = cupy.cuda.UnownedMemory(
                pointer, nbytes, owner, device_id=self.current_device()
            )
            return cupy.cuda.MemoryPointer(memory, 0)

        cupy.cuda.set_allocator(allocated)

    @_translated
    def host_register(self, address: int, nbytes: int) -> None:
        _runtime.hostRegister(address, nbytes, _REGISTER_PORTABLE)

    @_translated
    def host_unregister(self, address: int) -> None:
        _runtime.hostUnregister(address)

    @_translated
    def copy(
        self, destination: int, source: int, nbytes: int, kind: int, stream: Any = None
    ) -> None:
        queue = cupy.cuda.get_current_stream() if stream is None else stream
        _runtime.memcpyAsync(destination, source, nbytes, kind, queue.ptr)

    # --------------------------------------------------------------------- streams and events

    @_translated
    def stream(self) -> Any:
        return cupy.cuda.Stream(non_blocking=True)

    def current_stream(self) -> Any:
        return cupy.cuda.get_current_stream()

    @_translated
    def event(self, *, interprocess: bool = False) -> Any:
        return cupy.cuda.Event(disable_timing=True, interprocess=interprocess)

    # ------------------------------------------------------------------ sharing with processes

    @_translated
    def ipc_memory_handle(self, pointer: int) -> bytes:
        return bytes(_runtime.ipcGetMemHandle(pointer))

    @_translated
    def open_ipc_memory(self, handle: bytes) -> int:
        return int(_runtime.ipcOpenMemHandle(handle))

    @_translated
    def close_ipc_memory(self, pointer: int) -> None:
        _runtime.ipcCloseMemHandle(pointer)

    @_translated
    def ipc_event_handle(self, event: Any) -> bytes:
        return bytes(_runtime.ipcGetEventHandle(event.ptr))

    @_translated
    def open_ipc_event(self, handle: bytes) -> Any:
        # CuPy has no constructor for it. An Event destroys its ptr when it is freed, which CUDA
        # requires of an opened event, too; an Event without a ptr cannot be freed.
        opened = _runtime.ipcOpenEventHandle(handle)
        event = object.__new__(cupy.cuda.Event)
        event.ptr = opened
        return event
