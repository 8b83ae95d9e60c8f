"""The same values in another dtype or on another device: ``to`` and its short forms."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import usable
from mpgrad.base.device import Device, as_device
from mpgrad.base.dtype import default_float
from mpgrad.base.memory_formats import MemoryFormat, preserve_format
from mpgrad.ops.calling.promotion import cast
from mpgrad.ops.new_tensors.device_moves import to_device
from mpgrad.ops.shapes import shape
from mpgrad.recording.tensors.tensor import Tensor


def to(
    self: Tensor,
    *args: Any,
    dtype: Any = None,
    device: Any = None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: MemoryFormat = preserve_format,
) -> Tensor:
    """The tensor in another dtype or on another device: ``to(dtype)``, ``to(device)``,
    ``to(other)``.

    It is differentiable. It returns the tensor itself if nothing changes and ``copy`` is False.

    Args:
        self: the tensor.
        args: a dtype, a device (its name, or the number of a GPU), or a tensor for both.
        dtype: of the result.
        device: of the result.
        non_blocking: accepted for PyTorch's callers; copies to a GPU never block.
        copy: copy even if nothing changes.
        memory_format: of a copy.

    Raises:
        RuntimeError: there is no such device.
    """
    if args and isinstance(args[-1], bool):  # non_blocking, and copy
        flags = [flag for flag in args if isinstance(flag, bool)]
        copy = flags[1] if len(flags) > 1 else copy
    for argument in args:
        if isinstance(argument, Tensor):
            dtype, device = argument.dtype, argument.device
        elif isinstance(argument, Device) or _names_device(argument):
            device = argument
        elif argument is not None and not isinstance(argument, bool):
            dtype = argument
    result = self if device is None else to_device(self, usable(device))
    result = result if dtype is None else cast(result, dtype)
    return shape.clone(self) if copy and result is self else result


def _names_device(argument: Any) -> bool:
    if isinstance(argument, int) and not isinstance(argument, bool):
        return True
    if not isinstance(argument, str):
        return False
    try:
        as_device(argument)
    except RuntimeError:
        return False
    return True


def cpu(self: Tensor) -> Tensor:
    """On the CPU."""
    return to(self, device="cpu")


def cuda(self: Tensor, device: Any = None, non_blocking: bool = False) -> Tensor:
    """The tensor on a GPU: the given one, or the thread's current one.

    Raises:
        RuntimeError: there is none.
    """
    return to(self, device="cuda" if device is None else device)


def type_as(self: Tensor, other: Tensor) -> Tensor:
    """The tensor in the dtype of ``other``."""
    return cast(self, other.dtype)


def pin_memory(self: Tensor, device: Any = None) -> Tensor:
    """The tensor itself: copies to a GPU use pinned memory anyway."""
    return self


def is_pinned(self: Tensor, device: Any = None) -> bool:
    """False for all tensors."""
    return False


#: The type names of PyTorch's old classes (``FloatTensor``) by NumPy's names of dtypes.
_TYPE_NAMES = {
    "float16": "Half",
    "float32": "Float",
    "float64": "Double",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
    "uint8": "Byte",
    "uint16": "UInt16",
    "uint32": "UInt32",
    "uint64": "UInt64",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "bool": "Bool",
}


def type_(self: Tensor, dtype: Any = None) -> Any:
    """The tensor in ``dtype``; without it, the name of its type: ``"mpgrad.FloatTensor"``, or
    ``"torch.FloatTensor"`` where mpgrad stands in for PyTorch.

    Args:
        self: the tensor.
        dtype: a dtype, a class such as ``FloatTensor`` (``Tensor`` is the one of the default
            dtype), or the name of one.

    Raises:
        ValueError: there is no type of that name.
    """
    if dtype is None:
        place = "cuda." if self.device.type == "cuda" else ""
        library = "torch" if "mpgrad.compat.torch" in sys.modules else "mpgrad"
        return f"{library}.{place}{_TYPE_NAMES[self._array.dtype.name]}Tensor"
    if isinstance(dtype, str):
        name = dtype.rpartition(".")[2].removesuffix("Tensor")
        found = next((known for known, named in _TYPE_NAMES.items() if named == name), None)
        if found is None:
            raise ValueError(f"invalid type: {dtype!r}; a valid one is 'mpgrad.FloatTensor'")
        dtype = found
    elif isinstance(dtype, type) and dtype == Tensor:
        dtype = default_float()
    return cast(self, dtype)


def _in_dtype(dtype: Any) -> Callable[[Tensor], Tensor]:
    def method(self: Tensor, memory_format: MemoryFormat = preserve_format) -> Tensor:
        return cast(self, dtype)

    method.__doc__ = f"In {np.dtype(dtype)} (differentiable where that is a floating dtype)."
    return method


METHODS: dict[str, Callable[..., Any]] = {
    "to": to,
    "type": type_,
    "type_as": type_as,
    "cpu": cpu,
    "cuda": cuda,
    "float": _in_dtype(np.float32),
    "double": _in_dtype(np.float64),
    "half": _in_dtype(np.float16),
    "long": _in_dtype(np.int64),
    "int": _in_dtype(np.int32),
    "short": _in_dtype(np.int16),
    "char": _in_dtype(np.int8),
    "byte": _in_dtype(np.uint8),
    "pin_memory": pin_memory,
    "is_pinned": is_pinned,
    "bool": _in_dtype(np.bool_),
    "cfloat": _in_dtype(np.complex64),
    "cdouble": _in_dtype(np.complex128),
}
