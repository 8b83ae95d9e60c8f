"""Arrays of other libraries as Tensors and the reverse, in the same memory (DLPack).

The protocol is that of the Python array API standard: ``__dlpack__`` and ``__dlpack_device__``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpgrad.base.device import CPU
from mpgrad.devices.device_arrays import cuda, cuda_namespace, on
from mpgrad.ops.creation import from_numpy
from mpgrad.tensors.tensor import Tensor

__all__ = ["from_dlpack", "to_dlpack"]

#: DLPack's numbers of the kinds of devices (``DLDeviceType``).
_CPU, _CUDA = 1, 2


def from_dlpack(ext_tensor: Any) -> Tensor:
    """A Tensor in the memory of an array or tensor of another library: each sees the other's
    changes.

    Raises:
        TypeError: it has no ``__dlpack__``, or elements that NumPy has not (``bfloat16``).
        BufferError: its library does not give it away (it requires grad, or is read-only).
        RuntimeError: it lies on a device that is neither the CPU nor a GPU of CUDA's.
    """
    if not hasattr(ext_tensor, "__dlpack__"):
        raise TypeError(
            "from_dlpack(): expected an object with __dlpack__, such as a tensor of PyTorch or an "
            f"array of JAX, CuPy or NumPy, not {type(ext_tensor).__name__}"
        )
    kind, index = ext_tensor.__dlpack_device__()
    if kind == _CUDA:
        device = cuda(int(index))
        with on(device):
            return Tensor(cuda_namespace().arrays.from_dlpack(ext_tensor))
    if kind != _CPU:
        raise RuntimeError(f"from_dlpack(): DLPack's device {int(kind)} is neither CPU nor CUDA")
    try:
        array = np.from_dlpack(ext_tensor)
    except RuntimeError as error:  # NumPy has no such elements
        raise TypeError(f"from_dlpack(): {error}") from error
    if not array.flags.writeable:
        raise BufferError(
            "from_dlpack(): the memory is read-only, and writing into a Tensor would change it. "
            "Copy it: mpgrad.tensor(numpy.from_dlpack(x))"
        )
    return from_numpy(array)


def to_dlpack(tensor: Tensor) -> Any:
    """The capsule of ``tensor``, which a ``from_dlpack`` takes once. ``tensor`` itself will do."""
    return dlpack(tensor)


def dlpack(
    self: Tensor,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """A capsule of the memory, for ``from_dlpack`` of another library.

    Args:
        self: a tensor that does not require grad.
        stream: of the one who takes it, on a GPU.
        max_version, dl_device, copy: as in the array API standard.

    Raises:
        BufferError: the tensor requires grad, so that changes would escape the record.
    """
    if self.requires_grad:
        raise BufferError(
            "Can't export tensors that require gradient, use tensor.detach() to export the values."
        )
    if self.device is not CPU:
        return self._array.__dlpack__(stream=stream)
    return np.asarray(self._array).__dlpack__(
        max_version=max_version, dl_device=dl_device, copy=copy
    )


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
