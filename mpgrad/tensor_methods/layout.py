"""The layout of a Tensor in memory: size, strides, address, device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpgrad.arrays.cpu.array_proxies import ArrayProxy
from mpgrad.arrays.cuda.device_arrays import address
from mpgrad.base.memory_formats import (
    MemoryFormat,
    TensorLayout,
    channels_last,
    channels_last_3d,
    contiguous_format,
    strided,
)
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.recording.tensors.view import storage_offset


def size(self: Tensor, dim: int | None = None) -> Any:
    """The shape, or the length of one dimension."""
    return self.shape if dim is None else self._array.shape[dim]


def numel(self: Tensor) -> int:
    """The number of elements."""
    return self._array.size


def element_size(self: Tensor) -> int:
    """Bytes per element."""
    return self._array.itemsize


def is_contiguous(self: Tensor, memory_format: MemoryFormat = contiguous_format) -> bool:
    """Whether the elements are in order without gaps, or in the order of another format."""
    array = self._array
    if memory_format in (channels_last, channels_last_3d):
        ndim = 4 if memory_format is channels_last else 5
        return array.ndim == ndim and np.moveaxis(array, 1, -1).flags.c_contiguous
    return array.flags.c_contiguous


def stride(self: Tensor, dim: int | None = None) -> Any:
    """Steps between neighbours along each dimension, in elements."""
    array = self._array
    if 1 in array.shape or 0 in array.shape:
        strides = _steps(array)
    else:
        strides = tuple(step // array.itemsize for step in array.strides)
    return strides if dim is None else strides[dim]


def _steps(array: Any) -> tuple[int, ...]:
    """The strides in elements, where NumPy has 0 for new axes and for new arrays without elements.

    They step over all that follows, as if the array were contiguous there.
    """
    steps: list[int] = []
    after = 1
    for length, step in zip(reversed(array.shape), reversed(array.strides), strict=True):
        is_free = step == 0 and (length == 1 or not array.size)
        steps.append(after if is_free else step // array.itemsize)
        after = steps[-1] * max(length, 1)
    return tuple(reversed(steps))


def data_ptr(self: Tensor) -> int:
    """The address of the first element, on its device."""
    if type(self._array) is ArrayProxy:
        self._array._program.read("data_ptr()")
    return address(self._array)


def get_device(self: Tensor) -> int:
    """The number of the GPU, -1 on the CPU."""
    index = self.device.index
    return -1 if index is None else index


def is_floating_point(self: Tensor) -> bool:
    """Whether the dtype is a floating one."""
    return self.dtype.kind == "f"


def is_signed(self: Tensor) -> bool:
    """Whether numbers of the dtype can be negative."""
    return self.dtype.is_signed


def dim(self: Tensor) -> int:
    """The number of dimensions."""
    return self.ndim


def _nbytes(self: Tensor) -> int:
    """The bytes of all elements."""
    return self._array.nbytes  # type: ignore[no-any-return]


def _is_cuda(self: Tensor) -> bool:
    """Whether it lies on a GPU."""
    return self.device.type == "cuda"


def _is_cpu(self: Tensor) -> bool:
    """Whether it lies in the memory of the host."""
    return self.device.type == "cpu"


METHODS: dict[str, Callable[..., Any]] = {
    "size": size,
    "dim": dim,
    "ndimension": dim,
    "numel": numel,
    "nelement": numel,
    "element_size": element_size,
    "is_contiguous": is_contiguous,
    "stride": stride,
    "data_ptr": data_ptr,
    "storage_offset": storage_offset,
    "get_device": get_device,
    "is_floating_point": is_floating_point,
    "is_signed": is_signed,
}


def _is_not(self: Tensor) -> bool:
    """False: every tensor is dense, and lies on the host or on a GPU of NVIDIA's."""
    return False


def _layout(self: Tensor) -> TensorLayout:
    """``strided``: there are no sparse tensors."""
    return strided


#: What PyTorch's tensors are asked, and none here is.
_NOT_HERE = """
is_sparse is_sparse_csr is_mkldnn is_nested is_quantized is_meta
is_ipu is_maia is_mps is_mtia is_vulkan is_xla is_xpu
"""

PROPERTIES: dict[str, property] = {
    "nbytes": property(_nbytes),
    "itemsize": property(element_size),
    "is_cuda": property(_is_cuda),
    "is_cpu": property(_is_cpu),
    **dict.fromkeys(_NOT_HERE.split(), property(_is_not)),
    "layout": property(_layout),
}
