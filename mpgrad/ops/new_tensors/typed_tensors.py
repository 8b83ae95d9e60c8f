"""``LongTensor`` and its like: PyTorch's older names of tensors of one dtype.

``LongTensor([1, 2])`` makes one from data, ``LongTensor(2, 3)`` one of that shape, uninitialised;
``isinstance(x, LongTensor)`` asks for the dtype.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mpgrad.base.size import Size
from mpgrad.ops.new_tensors.creation import empty, tensor
from mpgrad.recording.tensors.tensor import Tensor


class _TensorType(type):
    dtype: np.dtype[Any]

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor) and instance.dtype == cls.dtype

    def __call__(cls, *args: Any) -> Tensor:
        return from_data_or_size(args, cls.dtype, "cpu")


def from_data_or_size(args: tuple[Any, ...], dtype: Any, device: Any) -> Tensor:
    """A tensor of a shape (integers, or a shape as ``x.size()`` gives it), or with given data.

    Raises:
        TypeError: there are several arguments, and not all are integers.
    """
    if not args:
        return empty(0, dtype=dtype, device=device)
    if all(isinstance(length, int | np.integer) for length in args):
        return empty(*args, dtype=dtype, device=device)
    if len(args) > 1:
        raise TypeError("expected a shape as integers, or data as one sequence, array or Tensor")
    (data,) = args
    if isinstance(data, Size):
        return empty(*data, dtype=dtype, device=device)
    if isinstance(data, Tensor):
        return data.detach().to(dtype).to(device)
    return tensor(data, dtype=dtype, device=device)


def _named(name: str, dtype: Any) -> Any:
    documentation = f"A tensor of {np.dtype(dtype)}."
    return _TensorType(name, (), {"dtype": np.dtype(dtype), "__doc__": documentation})


HalfTensor = _named("HalfTensor", np.float16)
FloatTensor = _named("FloatTensor", np.float32)
DoubleTensor = _named("DoubleTensor", np.float64)
ByteTensor = _named("ByteTensor", np.uint8)
CharTensor = _named("CharTensor", np.int8)
ShortTensor = _named("ShortTensor", np.int16)
IntTensor = _named("IntTensor", np.int32)
LongTensor = _named("LongTensor", np.int64)
BoolTensor = _named("BoolTensor", np.bool_)
