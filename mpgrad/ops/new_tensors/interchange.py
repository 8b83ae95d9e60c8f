"""Arrays of other libraries (DLPack) and bytes as Tensors and the reverse, in the same memory.

The protocol is that of the Python array API standard: ``__dlpack__`` and ``__dlpack_device__``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mpgrad.arrays.cuda.device_arrays import cuda, cuda_namespace, on, usable
from mpgrad.base.device import CPU
from mpgrad.ops.new_tensors.creation import from_numpy
from mpgrad.ops.new_tensors.device_moves import to_device
from mpgrad.recording.tensors.tensor import Tensor

__all__ = ["from_dlpack", "frombuffer", "to_dlpack"]

#: DLPack's numbers of the kinds of devices (``DLDeviceType``).
_CPU, _CUDA = 1, 2
#: Memory that the CPU reads as its own: also pinned, of CUDA's and ROCm's, and managed.
_OF_HOST = (_CPU, 3, 11, 13)


class _FromCapsule(NamedTuple):
    """What NumPy takes instead of a bare capsule."""

    capsule: Any

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        """NumPy refuses a capsule of other memory."""
        return _CPU, 0


def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A Tensor in the memory of an array or tensor of another library: each sees the other's
    changes.

    In-place operators refuse a Tensor of read-only memory: that of a read-only array, and of a
    library that cannot say that it is not (JAX, bare capsules).

    Args:
        ext_tensor: has ``__dlpack__``, or is a capsule of host memory, which is used up.
        device: of the result; by default that of ``ext_tensor``.
        copy: True always copies; False never does; None copies to another device only.

    Raises:
        TypeError: it has no ``__dlpack__``, or elements that NumPy has not (``bfloat16``).
        BufferError: its library does not give it away (it requires grad).
        RuntimeError: it lies on a device that is neither the CPU nor a GPU of CUDA's.
        ValueError: another ``device`` needs a copy, and ``copy`` is False.
    """
    place = None if device is None else usable(device)
    tensor = _shared(ext_tensor, copy)
    if place is None or place == tensor.device:
        return tensor
    if copy is False:
        raise ValueError(
            f"from_dlpack(): cannot move a tensor from {tensor.device} to {place} without copying. "
            "Set copy=None or copy=True."
        )
    return to_device(tensor, place)


def _shared(source: Any, copy: bool | None) -> Tensor:
    if type(source).__name__ == "PyCapsule":
        if '"dltensor' not in repr(source):
            raise RuntimeError(
                "from_dlpack(): this capsule holds no tensor (any more): a capsule is taken once"
            )
        source = _FromCapsule(source)
    if not hasattr(source, "__dlpack__"):
        raise TypeError(
            "from_dlpack(): expected an object with __dlpack__, such as a tensor of PyTorch or an "
            f"array of JAX, CuPy or NumPy, not {type(source).__name__}"
        )
    kind, index = source.__dlpack_device__()
    if kind == _CUDA:
        with on(cuda(int(index))):
            array = cuda_namespace().arrays.from_dlpack(source)
            return Tensor(array.copy() if copy else array)
    if kind not in _OF_HOST:
        raise RuntimeError(f"from_dlpack(): DLPack's device {int(kind)} is neither CPU nor CUDA")
    try:
        array = np.from_dlpack(source, copy=False) if copy is False else np.from_dlpack(source)
    except RuntimeError as error:  # NumPy has no such elements
        raise TypeError(f"from_dlpack(): {error}") from error
    return from_numpy(array.copy() if copy else array)


def to_dlpack(tensor: Tensor) -> Any:
    """The capsule of ``tensor``, which a ``from_dlpack`` takes once. ``tensor`` itself will do."""
    return dlpack(tensor)


def dlpack(
    self: Tensor,
    *,
    stream: int | None = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """A capsule of the memory, for ``from_dlpack`` of another library.

    Args:
        self: a tensor that does not require grad.
        stream: of the one who takes it, on a GPU; -1 waits for nothing.
        max_version, dl_device, copy: as in the array API standard.

    Raises:
        BufferError: the tensor requires grad, so that changes would escape the record, or has
            negative strides, at which PyTorch ends the process.
        TypeError: ``stream`` is no int.
        AssertionError: there is a ``stream``, but the tensor lies on the CPU.
    """
    if self.requires_grad:
        raise BufferError(
            "Can't export tensors that require gradient, use tensor.detach() to export the values."
        )
    if stream is not None and type(stream) is not int:
        raise TypeError(f"stream must be an int or None, not {type(stream).__name__}")
    asked = {"max_version": max_version, "dl_device": dl_device, "copy": copy}
    options: Any = {name: value for name, value in asked.items() if value is not None}
    if self.device is not CPU:
        return self._array.__dlpack__(stream=stream, **options)
    if stream not in (None, -1):
        raise AssertionError(f"stream should be None on the CPU, not {stream}")
    array = np.asarray(self._array)
    if not copy and any(stride < 0 for stride in array.strides):
        raise BufferError("Can't export tensors with negative strides, use tensor.clone()")
    return array.__dlpack__(**options)


def dlpack_device(self: Tensor) -> tuple[int, int]:
    """DLPack's numbers of the kind of device and of the device."""
    if self.device is CPU:
        return _CPU, 0
    return _CUDA, self.device.index or 0


def _cuda_array_interface(self: Tensor) -> dict[str, Any]:
    """Where the elements lie on a GPU, in Numba's and CuPy's words.

    Raises:
        AttributeError: the tensor lies on the CPU.
        RuntimeError: it requires grad.
    """
    if self.device is CPU:
        raise AttributeError(
            "Can't get __cuda_array_interface__ of a tensor on the CPU. Use tensor.cuda() first."
        )
    if self.requires_grad:
        raise RuntimeError(
            "Can't get __cuda_array_interface__ on Tensor that requires grad. Use "
            "tensor.detach() first."
        )
    array: Any = self._array
    return array.__cuda_array_interface__  # type: ignore[no-any-return]


METHODS: dict[str, Callable[..., Any]] = {
    "__dlpack__": dlpack,
    "__dlpack_device__": dlpack_device,
}
PROPERTIES: dict[str, property] = {"__cuda_array_interface__": property(_cuda_array_interface)}


def frombuffer(
    buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0, requires_grad: bool = False
) -> Tensor:
    """A Tensor over the memory of an object of bytes: no copy, each sees the other's changes.

    Args:
        buffer: what has Python's buffer interface (bytearray, memoryview, mmap).
        dtype: of the elements.
        count: how many; -1 for all.
        offset: bytes before the first one.
        requires_grad: record operations on it.

    Raises:
        ValueError: the buffer is empty, too short, or not divided evenly.
    """
    array = np.frombuffer(buffer, np.dtype(dtype), count, offset)
    if not array.flags.writeable:
        warnings.warn(
            "The given buffer is not writable, and the tensor is read-only, too: copy it with "
            "clone() to change it.",
            UserWarning,
            stacklevel=2,
        )
    return Tensor(array).requires_grad_(requires_grad)
