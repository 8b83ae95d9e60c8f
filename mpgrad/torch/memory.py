"""The memory of torch's tensors as bytes, of any dtype and any strides, and tensors over bytes."""

from __future__ import annotations

import mmap
import os
from typing import Any, TypeAlias

import numpy as np
import torch

from mpgrad.base.handles import INLINE_LIMIT_BYTES
from mpgrad.shm.arena import client_arena

Array: TypeAlias = np.ndarray[Any, Any]
#: The name of a dtype, a shape, and strides in elements.
Layout: TypeAlias = tuple[str, tuple[int, ...], tuple[int, ...]]


def layout_of(tensor: torch.Tensor) -> Layout:
    """How ``tensor`` travels: with its own strides if no element between the first and the last
    one is not its own, else without gaps, in the same order of dimensions."""
    strides = tensor.stride()
    if _is_lazy(tensor) or not _is_without_gaps(tensor.shape, strides):
        strides = torch.empty_like(tensor, device="meta").stride()
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(strides)


def bytes_of(tensor: torch.Tensor, layout: Layout) -> Array:
    """The bytes of ``tensor`` in ``layout``: its own memory, or a copy if that differs."""
    tensor = tensor.detach()
    if _is_lazy(tensor) or tensor.stride() != layout[2]:
        source = tensor
        tensor = torch.empty_strided(layout[1], layout[2], dtype=source.dtype, device="cpu")
        tensor.copy_(source)
    return _array_at(tensor.data_ptr(), nbytes_of(layout), tensor)


def snapshot(tensor: torch.Tensor, layout: Layout) -> Array:
    """A copy of the bytes of ``tensor``; a large one lies where workers can read it."""
    found = bytes_of(tensor, layout)
    nbytes = found.nbytes
    copy: Array = (
        np.empty(nbytes, np.uint8)
        if nbytes <= INLINE_LIMIT_BYTES
        else client_arena().empty((nbytes,), np.uint8)
    )
    np.copyto(copy, found)
    return copy


def tensor_over(array: Array, layout: Layout) -> torch.Tensor:
    """A tensor over these bytes, which it keeps alive. It can write them, whatever NumPy says."""
    dtype = getattr(torch, layout[0])
    flat = torch.empty(0, dtype=dtype)
    if not array.nbytes:
        return flat.as_strided(layout[1], layout[2])
    if not array.flags.writeable:
        array = _array_at(array.ctypes.data, array.nbytes, array)
    return flat.set_(torch.from_numpy(array).untyped_storage(), 0, layout[1], layout[2])


def nbytes_of(layout: Layout) -> int:
    """The bytes from the first to the last element."""
    name, shape, strides = layout
    if 0 in shape:
        return 0
    last = sum([(n - 1) * stride for n, stride in zip(shape, strides, strict=True)])
    return (last + 1) * int(getattr(torch, name).itemsize)


def _is_without_gaps(shape: torch.Size, strides: tuple[int, ...]) -> bool:
    if 0 in shape:
        return False
    dimensions = [(s, n) for s, n in zip(strides, shape, strict=True) if n > 1 and s]
    expected = 1
    for stride, length in sorted(dimensions):
        if stride != expected:
            return False
        expected *= length
    return True


def _is_lazy(tensor: torch.Tensor) -> bool:
    """Whether the elements are others than those in memory, or there is none (a zero tensor)."""
    return tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor()


class _Memory:
    """Some bytes, for NumPy."""

    def __init__(self, address: int, nbytes: int, holder: Any) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }
        self.holder = holder


def _array_at(address: int, nbytes: int, holder: Any) -> Array:
    """A writable array over the bytes at ``address``, which ``holder`` keeps alive."""
    if not nbytes:
        return np.empty(0, np.uint8)
    return np.asarray(_Memory(address, nbytes, holder))


def resident_bytes() -> int:
    """The memory of its own that this process has now; 0 if the system does not tell."""
    try:
        file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        _, resident, shared, *_ = map(int, os.read(file, 256).split())
    finally:
        os.close(file)
    return (resident - shared) * mmap.PAGESIZE
