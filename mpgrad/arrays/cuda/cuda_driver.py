"""CudaDriver: the interface of CUDA for mpgrad, and the implementation that this process uses.

``MPGRAD_CUDA_DRIVER`` names the function that makes it: that of ``cuda_cupy``, or another one that
passes the same contract tests (``tests/cuda/test_cuda_driver.py``).
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
    """The properties of one GPU.

    Attributes:
        name: the vendor's name.
        total_bytes: memory of the device.
        compute_capability: (major, minor).
        has_ipc_events: whether events can be shared between processes.
    """

    name: str
    total_bytes: int
    compute_capability: tuple[int, int]
    has_ipc_events: bool


class Event(Protocol):
    """A mark in a stream. A copy of an event does not copy the mark."""

    @property
    def done(self) -> bool:
        """Whether all work before its last ``record`` has run."""

    def record(self, stream: Any = None) -> None:
        """Put the mark after the current work of ``stream`` (None: the current one)."""

    def synchronize(self) -> None:
        """Block this thread until ``done``."""


class Stream(Protocol):
    """A queue of a device. Its work runs in order; streams do not wait for each other.

    ``with stream:`` makes it this thread's current stream, which array functions use.
    """

    @property
    def done(self) -> bool:
        """Whether all its work has run."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *exception: object) -> None: ...

    def synchronize(self) -> None:
        """Block this thread until ``done``."""

    def wait_event(self, event: Any) -> None:
        """Make later work wait for the last ``record`` of ``event`` before this call."""


class CudaDriver(Protocol):
    """The part of the CUDA runtime that mpgrad uses, and the arrays of its library.

    Devices are numbers from 0, pointers are addresses on the device. Calls act on the device that
    is current in the calling thread. Every call raises CudaError if CUDA refuses; streams, events
    and arrays raise the errors of their library: ``errors``.

    Attributes:
        name: "cupy" or "fake".
        errors: the errors that its calls, and those of its streams and events, may raise. A context
            in which a kernel has failed raises such an error forever.
        namespace: the array library, with CuPy's names and meanings.
        special: its special functions, of which ``erf`` is used.
    """

    name: str
    errors: tuple[type[Exception], ...]
    namespace: Any
    special: Any

    # ------------------------------------------------------------------------------- devices

    def device_count(self) -> int:
        """The number of GPUs that this process sees; 0 without a driver."""

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
        """Let the current device read ``peer``'s memory; a second call does nothing."""

    # -------------------------------------------------------------------------------- memory

    def malloc(self, nbytes: int) -> int:
        """The address of new memory on the current device, aligned to 256 bytes."""

    def free(self, pointer: int) -> None:
        """Free memory of ``malloc``. No importer may have it open: that is undefined."""

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
        """The address of the first element of ``array`` on its device."""

    def set_allocator(self, allocate: Callable[[int], tuple[int, Any]] | None) -> None:
        """New arrays of this process get their memory from ``allocate(nbytes)``.

        Args:
            allocate: returns (pointer, owner) on the current device; the array keeps ``owner``.
                None restores the library's own allocator.
        """

    def host_register(self, address: int, nbytes: int) -> None:
        """Pin host memory, so that copies from and to it run asynchronously."""

    def host_unregister(self, address: int) -> None: ...

    def copy(
        self, destination: int, source: int, nbytes: int, kind: int, stream: Any = None
    ) -> None:
        """Add a copy to ``stream`` (None: the current one); ``kind`` as HOST_TO_DEVICE.

        Pinned host memory must not change until the copy has run; other host memory may change
        after the call.
        """

    # --------------------------------------------------------------------- streams and events

    def stream(self) -> Any:
        """A new Stream of the current device, which does not wait for the default stream."""

    def current_stream(self) -> Any: ...

    def event(self, *, interprocess: bool = False) -> Any:
        """A new Event of the current device, without timing."""

    # ------------------------------------------------------------------ sharing with processes

    def ipc_memory_handle(self, pointer: int) -> bytes:
        """The handle of the *whole* allocation that contains ``pointer``."""

    def open_ipc_memory(self, handle: bytes) -> int:
        """Map another process's allocation; return the address of its first byte.

        This is not allowed in the process that exported it, and only once until it is closed.
        """

    def close_ipc_memory(self, pointer: int) -> None:
        """Unmap memory of ``open_ipc_memory``; no work may still read it."""

    def ipc_event_handle(self, event: Any) -> bytes:
        """The handle of an ``interprocess`` event."""

    def open_ipc_event(self, handle: bytes) -> Any:
        """Another process's Event. Do not use it after that process has destroyed it."""


@functools.cache
def driver() -> CudaDriver:
    """The driver of this process, made by the function in ``MPGRAD_CUDA_DRIVER``.

    Raises:
        RuntimeError: CuPy is not installed.
        ImportError, AttributeError: the function in the variable does not exist.
    """
    import pkgutil  # imported here, as few processes use a GPU

    function = config.cuda_driver()
    try:
        make = pkgutil.resolve_name(function)
    except ImportError as error:
        if function != config.CUPY:
            raise
        raise RuntimeError(
            f"GPUs need CuPy, which is not installed here ({error}): install mpgrad[cuda13] or "
            "mpgrad[cuda12], depending on the CUDA version of the driver"
        ) from error
    driver: CudaDriver = make()
    return driver


@functools.cache
def device_count() -> int:
    """The number of GPUs that this process can use; 0 without CuPy, driver or GPU."""
    try:
        return driver().device_count()
    except RuntimeError:
        return 0
