"""The device of an array, its copies on other devices, and its array namespace.

Arrays on the CPU are NumPy's; all others are the CUDA driver's. A process without GPU arrays has no
cost from them: it checks ``CUDA.in_use``. This file knows arrays, not Tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from mpgrad.arrays.cuda import cuda_driver
from mpgrad.base.device import CPU, Device, as_device, default

if TYPE_CHECKING:
    from mpgrad.arrays.cuda.cuda_backend import CudaBackend

_NOWHERE: AbstractContextManager[Any] = nullcontext()


class _Cuda:
    """Whether this process may hold an array of a GPU."""

    in_use = False


CUDA = _Cuda()


@functools.cache
def cuda_namespace() -> CudaBackend:
    """The array namespace of all GPUs."""
    from mpgrad.arrays.cuda.cuda_backend import CudaBackend

    driver = cuda_driver.driver()
    return CudaBackend(driver.namespace, driver.special)


@functools.cache
def cuda(index: int) -> Device:
    """The GPU with that number: always the same object."""
    return Device("cuda", index)


def device_of(array: Any) -> Device:
    """The device of ``array``."""
    return CPU if isinstance(array, np.ndarray) else cuda(array.device.id)


def set_default_device(device: Device | str | int | None) -> None:
    """Make new tensors in this thread on ``device`` unless ``device=`` is given.

    All functions that make tensors, except ``from_numpy``, follow it; None restores the CPU.

    Raises:
        RuntimeError: there is no such device.
    """
    default.device = CPU if device is None else usable(device)


def get_default_device() -> Device:
    """The default device of this thread."""
    return default.device


def usable(device: Device | str | int | None) -> Device:
    """``device`` with its number: a number alone is a GPU, "cuda" the thread's current one.

    None is the thread's default device.

    Raises:
        RuntimeError: it is not a device, or there is no such GPU here.
    """
    if device is None:
        device = default.device
        if device is CPU:
            return CPU
    found = Device("cuda", device) if isinstance(device, int) else as_device(device)
    if found.type == "cpu":
        return CPU
    count = cuda_driver.device_count()
    if count == 0:
        raise RuntimeError(_why_there_is_none())
    CUDA.in_use = True
    index = cuda_driver.driver().current_device() if found.index is None else found.index
    if not 0 <= index < count:
        raise RuntimeError(
            f"CUDA error: invalid device ordinal: cuda:{index} of {count} GPU(s) that are visible"
        )
    return cuda(index)


def _why_there_is_none() -> str:
    try:
        cuda_driver.driver()
    except RuntimeError as error:
        return str(error)
    return (
        "Found no NVIDIA GPU that this process can use: there is none, its driver is missing, or "
        "CUDA_VISIBLE_DEVICES hides it. Tensors on the CPU need no device argument."
    )


def on(device: Device) -> AbstractContextManager[Any]:
    """Let array functions of the GPUs work on ``device`` inside the block."""
    if device.index is None:
        return _NOWHERE
    driver = cuda_driver.driver()
    return _NOWHERE if driver.current_device() == device.index else driver.device(device.index)


def on_its_device(array: Any) -> AbstractContextManager[Any]:
    """Inside, array functions work where ``array`` lies."""
    return _NOWHERE if isinstance(array, np.ndarray) else on(device_of(array))


def is_current(device: Device) -> bool:
    """Whether array functions work on ``device`` already."""
    return device.index is None or cuda_driver.driver().current_device() == device.index


def first_gpu(arrays: Iterable[Any]) -> Device:
    """The device of a Node with inputs ``arrays``, as in PyTorch's ``InputBuffer::device``.

    It is the device of the first array that is not on the CPU; the CPU if there is none.
    """
    for array in arrays:
        if array is not None and not isinstance(array, np.ndarray):
            return device_of(array)
    return CPU


# ---------------------------------------------------------------------- making and moving


def moved(array: Any, device: Device, empty: Callable[..., Any] = np.empty) -> Any:
    """``array`` on ``device``: itself if it lies there, else a C-contiguous copy.

    Args:
        array: of any device.
        device: with its number.
        empty: makes the array for a copy on the CPU.
    """
    here = device_of(array)
    if here == device:
        return array
    if device.index is None:
        out = empty(array.shape, array.dtype)
        with on(here):
            return array.get(out=out)
    if here.index is None:
        with on(device):
            # Not ascontiguousarray, which adds a dimension to arrays without dimensions.
            return cuda_driver.driver().namespace.asarray(np.asarray(array, order="C"))
    return _copied_between_gpus(array, here, device)


def moved_beside(array: Any, other: Any) -> Any:
    """``array`` on the device of ``other``; see :func:`moved`."""
    return moved(array, device_of(other))


def _copied_between_gpus(array: Any, source: Device, target: Device) -> Any:
    """Copy; the streams of both devices wait for each other: ``target``'s for the values,
    ``source``'s so that the memory is not freed and overwritten before they are read."""
    driver = cuda_driver.driver()
    with on(source):
        if not array.flags.c_contiguous:
            # CuPy would do this after the event, and copy before it is done.
            array = array.copy()
        written = driver.event()
        written.record()
    with on(target):
        driver.current_stream().wait_event(written)
        copy = array.copy()
        read = driver.event()
        read.record()
    with on(source):
        # Not earlier: the default stream is that of the current device.
        driver.current_stream().wait_event(read)
    return copy


def is_on_gpu(value: Any) -> bool:
    """Whether ``value`` is an array of a GPU."""
    return CUDA.in_use and isinstance(value, cuda_driver.driver().namespace.ndarray)


def is_array(value: Any) -> bool:
    """Whether ``value`` is an array, of whichever device."""
    return isinstance(value, np.ndarray) or is_on_gpu(value)


def on_host(array: Any) -> np.ndarray[Any, Any]:
    """``array`` itself if it lies on the CPU, else a copy."""
    return array if isinstance(array, np.ndarray) else moved(array, CPU)  # type: ignore[no-any-return]


def zeros(shape: tuple[int, ...], dtype: Any, device: Device = CPU) -> Any:
    """Zeros on ``device``."""
    if device.index is None:
        return np.zeros(shape, dtype)
    with on(device):
        return cuda_driver.driver().namespace.zeros(shape, dtype)


def ones(shape: tuple[int, ...], dtype: Any, device: Device = CPU) -> Any:
    """Ones on ``device``."""
    if device.index is None:
        array = np.empty(shape, dtype)
        array.fill(1)  # np.ones takes three times as long for one number
        return array
    with on(device):
        return cuda_driver.driver().namespace.ones(shape, dtype)


def without_memory(shape: tuple[int, ...], dtype: Any, device: Device) -> Any:
    """Zeros on ``device``, all of them the same one: no memory but that is used."""
    with on(device):
        xp = np if device is CPU else cuda_namespace()
        return xp.broadcast_to(zeros((), dtype, device), shape)


def empty(shape: tuple[int, ...], dtype: Any, device: Device) -> Any:
    """An uninitialised array on a GPU."""
    with on(device):
        return cuda_driver.driver().namespace.empty(shape, dtype)


def empty_beside(array: Any, size: int) -> Any:
    """An uninitialised 1-d array with the dtype and device of ``array``; not in the arena."""
    device = device_of(array)
    return np.empty(size, array.dtype) if device is CPU else empty((size,), array.dtype, device)


def copied(array: Any) -> Any:
    """A C-contiguous copy on the same device."""
    with on_its_device(array):
        return array.copy()


def is_writable(array: Any) -> bool:
    """Whether ``array`` may be written to, and each element has its own memory.

    CuPy marks no array as read-only. The strides show whether elements are repeated; they are
    also zero if there is no element.
    """
    if isinstance(array, np.ndarray):
        return array.flags.writeable
    repeated = zip(array.shape, array.strides, strict=True)
    return array.size == 0 or not any(length > 1 and step == 0 for length, step in repeated)


def address(array: Any) -> int:
    """The address of the first element."""
    if isinstance(array, np.ndarray):
        return int(array.ctypes.data)
    return cuda_driver.driver().pointer(array)
