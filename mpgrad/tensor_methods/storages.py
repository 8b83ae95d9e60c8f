"""Storages: the memory that a Tensor and all its views lie in, as PyTorch's programs ask for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import address, on_host
from mpgrad.base.device import Device
from mpgrad.recording.tensors.refused_reads import refuse_of_client
from mpgrad.recording.tensors.tensor import Tensor


class UntypedStorage:
    """The bytes of the memory that a Tensor is a view of; made by ``Tensor.untyped_storage()``.

    Two Tensors share memory if the storages of both have one ``data_ptr()``.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor if tensor._view is None else tensor._view.base

    @property
    def device(self) -> Device:
        """Where it lies."""
        return self._tensor.device

    @property
    def is_cuda(self) -> bool:
        """Whether it lies on a GPU."""
        return self.device.type == "cuda"

    def cpu(self) -> UntypedStorage:
        """In the memory of the host."""
        return type(self)(self._tensor.to("cpu"))

    def cuda(self, device: Any = None) -> UntypedStorage:
        """On a GPU: that one, or the thread's current one."""
        return type(self)(self._tensor.cuda(device))

    def data_ptr(self) -> int:
        """The address of the first byte."""
        return address(self._tensor._array)

    def nbytes(self) -> int:
        """The number of bytes."""
        return int(self._tensor._array.nbytes)

    def element_size(self) -> int:
        """Bytes per element."""
        return 1

    def size(self) -> int:
        """The number of elements."""
        return self.nbytes() // self.element_size()

    def __len__(self) -> int:
        return self.size()

    def tolist(self) -> list[Any]:
        """The elements in the order of the memory."""
        return self._elements(on_host(self._tensor._array).ravel(order="K"))

    def _elements(self, array: Any) -> list[Any]:
        return array.view(np.uint8).tolist()  # type: ignore[no-any-return]

    def __getitem__(self, index: Any) -> Any:
        return self.tolist()[index]

    def __repr__(self) -> str:
        return f"[{type(self).__name__} of {self.size()} elements on {self.device}]"


class TypedStorage(UntypedStorage):
    """The elements of the memory that a Tensor is a view of; made by ``Tensor.storage()``."""

    @property
    def dtype(self) -> Any:
        """Of the elements."""
        return self._tensor.dtype

    def untyped(self) -> UntypedStorage:
        """Its bytes."""
        return UntypedStorage(self._tensor)

    def element_size(self) -> int:
        """Bytes per element."""
        return int(self._tensor._array.itemsize)

    def _elements(self, array: Any) -> list[Any]:
        return array.tolist()  # type: ignore[no-any-return]


def untyped_storage(self: Tensor) -> UntypedStorage:
    """The bytes of the memory that this Tensor is a view of."""
    refuse_of_client(self, "untyped_storage()")
    return UntypedStorage(self)


def storage(self: Tensor) -> TypedStorage:
    """The elements of the memory that this Tensor is a view of."""
    refuse_of_client(self, "storage()")
    return TypedStorage(self)


def is_set_to(self: Tensor, tensor: Tensor) -> bool:
    """Whether both are the same elements of one memory: address, shape and strides."""
    mine, other = self._array, tensor._array
    same = (mine.shape, mine.strides) == (other.shape, other.strides)
    return same and (not math.prod(mine.shape) or address(mine) == address(other))


METHODS: dict[str, Callable[..., Any]] = {
    "untyped_storage": untyped_storage,
    "storage": storage,
    "is_set_to": is_set_to,
}
