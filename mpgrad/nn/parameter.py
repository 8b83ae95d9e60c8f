"""Parameter and Buffer: Tensors that a Module registers when they are assigned as attributes."""

from __future__ import annotations

from typing import Any, ClassVar

from mpgrad.ops.new_tensors.creation import empty, tensor
from mpgrad.recording.tensors.tensor import Tensor


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


class Buffer(Tensor):
    """A Tensor that a Module registers as a buffer when it is assigned as an attribute.

    Args:
        data: a Tensor, whose memory it shares, or anything that ``mg.tensor`` takes; without it,
            the buffer is empty.
        persistent: whether state dicts hold it.
    """

    __slots__ = ()

    def __init__(self, data: Any = None, *, persistent: bool = True) -> None:
        if data is None:
            data = empty(0)
        elif not isinstance(data, Tensor):
            data = tensor(data)
        super().__init__(data._array, version_counter=data._version_counter)
        self.persistent = persistent


class _Uninitialized(Tensor):
    """A Tensor of a lazy layer, whose shape is not known yet."""

    __slots__ = ()

    _becomes: ClassVar[type[Tensor]]

    def materialize(self, shape: tuple[int, ...], device: Any = None, dtype: Any = None) -> None:
        """Become a Tensor of that shape, uninitialised, on the same device by default."""
        self.data = empty(
            shape,
            device=self.device if device is None else device,
            dtype=self.dtype if dtype is None else dtype,
        )
        self.__class__ = self._becomes  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class UninitializedParameter(_Uninitialized, Parameter):
    """A Parameter of a lazy layer, whose shape is not known yet.

    Args:
        requires_grad: record operations on it.
        device: where it will lie.
        dtype: of its elements.
    """

    __slots__ = ()

    _becomes = Parameter

    def __init__(self, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> None:
        Parameter.__init__(self, empty(0, device=device, dtype=dtype), requires_grad)


class UninitializedBuffer(_Uninitialized):
    """A buffer of a lazy layer, whose shape is not known yet.

    Args:
        requires_grad: record operations on it.
        device: where it will lie.
        dtype: of its elements.
    """

    __slots__ = ()

    _becomes = Tensor

    def __init__(self, requires_grad: bool = False, device: Any = None, dtype: Any = None) -> None:
        super().__init__(empty(0, device=device, dtype=dtype)._array)
        self.requires_grad = requires_grad


def is_uninitialized(tensor: Any) -> bool:
    """Whether the shape of ``tensor`` is not known yet."""
    return isinstance(tensor, _Uninitialized)
