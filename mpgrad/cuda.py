"""``mg.cuda``: the GPUs, the current one, and their memory."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Any

from mpgrad.arrays.cuda import cuda_driver, device_arrays
from mpgrad.base.device import Device

__all__ = [
    "current_device",
    "device",
    "device_count",
    "empty_cache",
    "get_device_capability",
    "get_device_name",
    "is_available",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "set_device",
    "synchronize",
]

#: A GPU, by its number or its name; None for the thread's current one.
Gpu = Device | str | int | None


def is_available() -> bool:
    """Whether tensors can be made on a GPU: CuPy, a driver and a GPU are present."""
    return device_count() > 0


def device_count() -> int:
    """The number of GPUs that this process can use."""
    return cuda_driver.device_count()


def current_device() -> int:
    """The number of the GPU that "cuda" means in this thread.

    Raises:
        RuntimeError: there is none.
    """
    return _index(None)


def set_device(device: Gpu) -> None:
    """Let "cuda" mean ``device`` in this thread from now on.

    Raises:
        RuntimeError: there is no such GPU.
    """
    cuda_driver.driver().namespace.cuda.Device(_index(device)).use()


class device:
    """Inside the ``with`` block "cuda" means ``device``, in this thread.

    Args:
        device: a number, a name ("cuda:1") or a Device; None changes nothing.

    Raises:
        RuntimeError: there is no such GPU.
    """

    def __init__(self, device: Gpu) -> None:
        self.idx = _index(device)
        self._entered: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> None:
        context = cuda_driver.driver().device(self.idx)
        context.__enter__()
        self._entered.append(context)

    def __exit__(self, *exception: Any) -> None:
        self._entered.pop().__exit__(*exception)


def synchronize(device: Gpu = None) -> None:
    """Wait until ``device`` has done all work of this process.

    Raises:
        RuntimeError: there is no such GPU.
    """
    with _on(device):
        cuda_driver.driver().synchronize()


def get_device_name(device: Gpu = None) -> str:
    """The vendor's name of ``device`` (default: this thread's current GPU).

    Raises:
        RuntimeError: there is no such GPU.
    """
    return cuda_driver.driver().properties(_index(device)).name


def get_device_capability(device: Gpu = None) -> tuple[int, int]:
    """(major, minor) compute capability of ``device`` (default: this thread's current GPU).

    Raises:
        RuntimeError: there is no such GPU.
    """
    return cuda_driver.driver().properties(_index(device)).compute_capability


def mem_get_info(device: Gpu = None) -> tuple[int, int]:
    """Bytes (free, total) of ``device``, all processes counted (default: this thread's GPU).

    Raises:
        RuntimeError: there is no such GPU.
    """
    return cuda_driver.driver().memory_info(_index(device))


def memory_allocated(device: Gpu = None) -> int:
    """Bytes on ``device`` in arrays of this process.

    Raises:
        RuntimeError: there is no such GPU.
    """
    with _on(device):
        pool = cuda_driver.driver().namespace.get_default_memory_pool()
        return int(pool.used_bytes()) + _exported()[0]


def memory_reserved(device: Gpu = None) -> int:
    """Bytes taken from ``device`` for arrays of this process, including free ones.

    Raises:
        RuntimeError: there is no such GPU.
    """
    with _on(device):
        pool = cuda_driver.driver().namespace.get_default_memory_pool()
        return int(pool.total_bytes()) + _exported()[1]


def empty_cache() -> None:
    """Return memory that is kept for later arrays.

    GPU workers return theirs before their next task, and close this process's idle segments; the
    GPU gets those only then.
    """
    if is_available():
        cuda_driver.driver().namespace.get_default_memory_pool().free_all_blocks()
        devices = sys.modules.get("mpgrad.arrays.cuda.client_devices")
        if devices is not None:
            devices.give_back()


def _exported() -> tuple[int, int]:
    """Bytes (used, held) of the current device in memory that GPU workers can open."""
    devices = sys.modules.get("mpgrad.arrays.cuda.client_devices")
    if devices is None:  # no engine with GPU workers was made here
        return 0, 0
    found: tuple[int, int] = devices.bytes_on(cuda_driver.driver().current_device())
    return found


def _index(device: Gpu) -> int:
    found = device_arrays.usable("cuda" if device is None else device)
    if found.index is None:
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return found.index


def _on(device: Gpu) -> AbstractContextManager[Any]:
    return cuda_driver.driver().device(_index(device))
