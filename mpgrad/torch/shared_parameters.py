"""SharedParameters: parameters whose memory workers can read, so that no call copies them.

A large parameter moves into shared memory at its first use and stays there: the optimizer writes
it in place, and the next call sees that. It moves only if nothing else holds its memory; otherwise
each call copies it, as it does other inputs.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from mpgrad.base.handles import INLINE_LIMIT_BYTES
from mpgrad.shm.arena import client_arena
from mpgrad.torch.memory import Layout, bytes_of, nbytes_of, tensor_over

Array: TypeAlias = np.ndarray[Any, Any]

#: How many hold the memory of a tensor. Without it no parameter moves.
_use_count = getattr(torch._C, "_storage_Use_Count", None)


class SharedParameters:
    """The parameters of this process that have moved."""

    def __init__(self) -> None:
        #: The memory of each, by the parameter.
        self._moved: Any = WeakTensorKeyDictionary()
        #: All such memory that is still held, by ``id``.
        self._memory: weakref.WeakValueDictionary[int, Array] = weakref.WeakValueDictionary()
        #: Why a parameter did not move when it was used last.
        self._copied: Any = WeakTensorKeyDictionary()

    def array(self, tensor: torch.Tensor, layout: Layout) -> Array | None:
        """The memory of a parameter that has moved, now or before; None: it has to be copied."""
        if nbytes_of(layout) <= INLINE_LIMIT_BYTES:
            return None
        found: Array | None = self._moved.get(tensor)
        if found is not None:
            if found.ctypes.data == tensor.data_ptr() and tensor.stride() == layout[2]:
                return found
            del self._moved[tensor]  # it was given other memory
        reason = _why_not(tensor, layout)
        if reason:
            self._copied[tensor] = reason
            return None
        self._copied.pop(tensor, None)
        return self._move(tensor, layout)

    def _move(self, tensor: torch.Tensor, layout: Layout) -> Array:
        array: Array = client_arena().empty((nbytes_of(layout),), np.uint8)
        np.copyto(array, bytes_of(tensor, layout))
        with torch.inference_mode(False):
            tensor.data = tensor_over(array, layout)
        self._moved[tensor] = self._memory[id(array)] = array
        return array

    def is_shared(self, array: Array) -> bool:
        """Whether a parameter has moved into ``array``, so that it changes with it."""
        return self._memory.get(id(array)) is array

    def copied(self) -> list[tuple[torch.Tensor, str]]:
        """The parameters that were copied at their last use, and why."""
        return [(tensor, reason) for tensor, reason in self._copied.items()]


def _why_not(tensor: torch.Tensor, layout: Layout) -> str:
    """Why a parameter cannot move; empty: it can."""
    if tensor.is_inference():
        return "was made in inference mode"
    storage = tensor.untyped_storage()
    if storage.is_shared():
        return "lies in memory that other processes share (share_memory_())"
    if _ALONE is None:
        return "is copied by this version of PyTorch, which does not say who holds its memory"
    if tensor.storage_offset() or storage.nbytes() != nbytes_of(layout):
        return "is a part of a larger tensor"
    if not storage.resizable():
        return "lies in memory of another library (a NumPy array, a file)"
    del storage  # it counts
    if _holders(tensor) != _ALONE:
        return "has memory that something else holds, too (a view, a NumPy array, a graph)"
    return ""


def _holders(tensor: torch.Tensor) -> tuple[int, int] | None:
    """How many hold the memory of ``tensor``, in C++ and in Python; None: PyTorch does not say."""
    if _use_count is None:
        return None
    storage = tensor.untyped_storage()
    return _use_count(storage._cdata), sys.getrefcount(storage)


#: Those of a tensor whose memory nobody else holds.
_ALONE = _holders(torch.empty(1))
