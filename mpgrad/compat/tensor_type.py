"""``torch.Tensor`` as a program calls it: with data, or with the lengths of dimensions.

``mpgrad.Tensor(array)`` wraps an array without a copy; PyTorch's class copies data to the default
dtype. Except for calls, this class is mpgrad's.
"""

from __future__ import annotations

from typing import Any

import mpgrad.tensor_methods  # noqa: F401  (completes Tensor)
from mpgrad.base.dtype import default_float
from mpgrad.ops.new_tensors.typed_tensors import from_data_or_size
from mpgrad.recording.tensors.tensor import Tensor as _Own


class _TensorMeta(type):
    """Makes Tensor equal to mpgrad's class, and every mpgrad tensor an instance of it."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        if cls.__init__ is not _Own.__init__:  # type: ignore[misc]
            return super().__call__(*args, **options)
        made = from_data_or_size(args, default_float(), options.pop("device", "cpu"))
        return made if cls is Tensor else super().__call__(made._array, **options)

    def __instancecheck__(cls, instance: object) -> bool:
        own = _Own if cls is Tensor else cls
        return type.__instancecheck__(own, instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        own = _Own if cls is Tensor else cls
        return type.__subclasscheck__(own, subclass)

    def __eq__(cls, other: object) -> bool:
        return cls is other or (cls is Tensor and other is _Own)

    def __hash__(cls) -> int:
        return type.__hash__(_Own if cls is Tensor else cls)

    def __setattr__(cls, name: str, value: Any) -> None:
        # All tensors get attributes that a program adds to torch.Tensor.
        type.__setattr__(_Own if cls is Tensor else cls, name, value)


class Tensor(_Own, metaclass=_TensorMeta):
    """A tensor of the default dtype: ``Tensor([1, 2])`` has data, ``Tensor(2, 3)`` has none."""

    __slots__ = ()
    __module__ = "torch"
