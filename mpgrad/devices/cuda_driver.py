"""What mpgrad asks of CUDA, and which implementation of it serves this process.

``MPGRAD_CUDA_DRIVER`` names the function that makes it: that of ``cuda_cupy``, or another one
that passes the same contract tests (``tests/cuda/test_cuda_driver.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from mpgrad.base import config

#: Directions of a copy, with the numbers of ``cudaMemcpyKind``.
HOST_TO_DEVICE = 1
DEVICE_TO_HOST = 2
DEVICE_TO_DEVICE = 3

#: Bytes of an IPC handle of memory or of an event.
IPC_HANDLE_BYTES = 64


class CudaError(RuntimeError):
    """A call of the CUDA runtime failed.

    Attributes:
        status: CUDA's own name of the error, such as "cudaErrorInvalidValue".
    """

    def __init__(self, status: str, detail: str = "") -> None:
        self.status, self.detail = status, detail
        super().__init__(f"CUDA error: {status}" + (f": {detail}" if detail else ""))

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.status, self.detail))


class DeviceProperties(NamedTuple):
    """What one GPU is.

    Attributes:
        name: as the vendor calls it.
        total_bytes: memory of the device.
        compute_capability: (major, minor).
        has_ipc_events: whether events can be shared between processes.
    """

    name: str
    total_bytes: int
    compute_capability: tuple[int, int]
    has_ipc_events: bool


class Event(Protocol):
    """A mark in a stream. Copying an event does not copy the mark."""

    @property
    def done(self) -> bool:
        """Whether all that was in the stream when it was last recorded has run."""

    def record(self, stream: Any = None) -> None:
        """Put the mark behind what is in ``stream`` (None: the current one) now."""

    def synchronize(self) -> None:
        """Block this thread until ``done``."""


class Stream(Protocol):
    """A queue of a device: what is put there runs in order; streams do not wait for each other.

    ``with stream:`` makes it this thread's current one, to which array functions go.
    """

    @property
    def done(self) -> bool:
        """Whether nothing is left to run."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *exception: object) -> None: ...

    def synchronize(self) -> None:
        """Block this thread until ``done``."""

    def wait_event(self, event: Any) -> None:
        """Let what comes later wait for the last ``record`` of ``event`` before this call."""


class CudaDriver(Protocol):
    """The part of the CUDA runtime that mpgrad uses, and the arrays that go with it.

    Devices are numbers from 0, pointers are addresses on the device. Calls act on the device that
    is current in the calling thread. Every call raises CudaError where CUDA refuses; streams,
    events and arrays raise what their library does: ``errors``.

    Attributes:
        name: "cupy" or "fake".
        errors: what its calls, and those of its streams and events, may raise. A context in which a
            kernel has failed raises such a one for ever.
        namespace: the array library: CuPy's names and meanings.
        special: its special functions, of which ``erf`` is used.
    """

    name: str
    errors: tuple[type[Exception], ...]
    namespace: Any
    special: Any

    # ------------------------------------------------------------------------------- devices

    def device_count(self) -> int:
        """How many GPUs this process sees; 0 also where there is no driver at all."""

    def device(self, index: int) -> AbstractContextManager[Any]:
        """Makes ``index`` this thread's current device inside the block."""

    def current_device(self) -> int: ...

    def properties(self, index: int) -> DeviceProperties: ...

    def memory_info(self, index: int) -> tuple[int, int]:
        """Bytes (free, total) of a device, all processes counted."""

    def synchronize(self) -> None:
        """Block until every stream of the current device is done."""

    def can_access_peer(self, index: int, peer: int) -> bool:
        """Whether kernels on ``index`` may read the memory of ``peer``."""

    def enable_peer_access(self, peer: int) -> None:
        """Let the current device read ``peer``'s memory; again is no error."""

    # -------------------------------------------------------------------------------- memory

    def malloc(self, nbytes: int) -> int:
        """The address of new memory on the current device, aligned to 256 bytes."""

    def free(self, pointer: int) -> None:
        """Give ``malloc``'s memory back. No importer may have it open: that is undefined."""

    def array(
        self,
        pointer: int,
        shape: Sequence[int],
        dtype: Any,
        strides: Sequence[int] | None = None,
        owner: Any = None,
    ) -> Any:
        """An array over memory of the current device; it and its views keep ``owner`` alive."""

    def pointer(self, array: Any) -> int:
        """Where the first element of ``array`` lies on its device."""

    def set_allocator(self, allocate: Callable[[int], tuple[int, Any]] | None) -> None:
        """New arrays of this process get their memory from ``allocate(nbytes)``.

        Args:
            allocate: gives (pointer, owner) on the current device; the array keeps ``owner``.
                None brings the library's own allocator back.
        """

    def host_register(self, address: int, nbytes: int) -> None:
        """Pin host memory, so that copies from and to it run beside the host."""

    def host_unregister(self, address: int) -> None: ...

    def copy(
        self, destination: int, source: int, nbytes: int, kind: int, stream: Any = None
    ) -> None:
        """Put a copy into ``stream`` (None: the current one); ``kind`` as HOST_TO_DEVICE.

        Pinned host memory must stay as it is until the copy has run; other host memory is free
        to change on return.
        """

    # --------------------------------------------------------------------- streams and events

    def stream(self) -> Any:
        """A new Stream of the current device, which does not wait for the default stream."""

    def current_stream(self) -> Any: ...

    def event(self, *, interprocess: bool = False) -> Any:
        """A new Event of the current device, without timing."""

    # ------------------------------------------------------------------ sharing with processes

    def ipc_memory_handle(self, pointer: int) -> bytes:
        """The handle of the *whole* allocation in which ``pointer`` lies, not of the place."""

    def open_ipc_memory(self, handle: bytes) -> int:
        """Map another process's allocation here; the address of its first byte.

        Not for the process that exported it, and only once in a process until it is closed.
        """

    def close_ipc_memory(self, pointer: int) -> None:
        """Unmap what ``open_ipc_memory`` gave; nothing may still be reading it."""

    def ipc_event_handle(self, event: Any) -> bytes:
        """The handle of an ``interprocess`` event."""

    def open_ipc_event(self, handle: bytes) -> Any:
        """Another process's Event. It may not be used once that process has destroyed it."""


@functools.cache
def driver() -> CudaDriver:
    """The driver of this process, made by what ``MPGRAD_CUDA_DRIVER`` names.

    Raises:
        RuntimeError: CuPy is not installed.
        ImportError, AttributeError: what the variable names is not there.
    """
    import pkgutil  # here, as few processes have a GPU

    function = config.cuda_driver()
    try:
        make = pkgutil.resolve_name(function)
    except ImportError as error:
        if function != config.CUPY:
            raise
        raise RuntimeError(
            f"GPUs need CuPy, which is not installed here ({error}): install mpgrad[cuda13] or "
            "mpgrad[cuda12], whichever CUDA the driver serves"
        ) from error
    driver: CudaDriver = make()
    return driver


@functools.cache
def device_count() -> int:
    """How many GPUs this process can use; 0 without CuPy, without a driver, without a GPU."""
    try:
        return driver().device_count()
    except RuntimeError:
        return 0
