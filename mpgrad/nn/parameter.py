"""Parameter: a leaf Tensor that a Module registers when it is assigned as an attribute."""

from __future__ import annotations

from typing import Any

from mpgrad.ops.creation import empty, tensor
from mpgrad.tensors.tensor import Tensor


class Parameter(Tensor):
    """A Tensor that is trained.

    Args:
        data: a Tensor, whose memory it shares, or anything that ``mg.tensor`` takes; without it,
            the Parameter is empty.
        requires_grad: record operations on it.

    Raises:
        RuntimeError: ``data`` holds integers and ``requires_grad`` is True.
    """

    __slots__ = ()

    def __init__(self, data: Any = None, requires_grad: bool = True) -> None:
        if data is None:
            data = empty(0)
        elif not isinstance(data, Tensor):
            data = tensor(data)
        super().__init__(data._array, version_counter=data._version_counter)
        self.requires_grad = requires_grad

    def __repr__(self) -> str:
        return f"Parameter containing:\n{Tensor(self._array, requires_grad=self._requires_grad)!r}"


class UninitializedParameter(Parameter):
    """A Parameter of a lazy layer, whose shape is not known yet.

    Args:
        requires_grad: record operations on it.
        device: where it will lie.
        dtype: of its elements.
    """

    __slots__ = ()

    def __init__(self, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(empty(0, device=device, dtype=dtype), requires_grad)

    def materialize(self, shape: tuple[int, ...], device: Any = None, dtype: Any = None) -> None:
        """Become a Parameter of that shape, uninitialised, on the same device by default."""
        self.data = empty(
            shape,
            device=self.device if device is None else device,
            dtype=self.dtype if dtype is None else dtype,
        )
        self.__class__ = Parameter  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "<UninitializedParameter>"
