"""A Tensor as Python values: numbers, lists, lengths, truth."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.ops.by_index import indexing
from mpgrad.ops.elementwise import comparison
from mpgrad.ops.shapes import shape
from mpgrad.recording.tensors.tensor import Tensor

_has_warned_of_scalar = False


def item(self: Tensor) -> Any:
    """The only element as a Python number.

    Raises:
        RuntimeError: there is not exactly one.
    """
    if self._array.size != 1:
        raise RuntimeError(
            f"a Tensor with {self._array.size} elements cannot be converted to Scalar"
        )
    return on_host(self._array).item()


def tolist(self: Tensor) -> Any:
    """Nested lists of Python numbers."""
    return on_host(self._array).tolist()


def _float(self: Tensor) -> float:
    _warn_of_lost_history(self)
    return float(_real(self))


def _complex(self: Tensor) -> complex:
    _warn_of_lost_history(self)
    return complex(_scalar(self))


def _real(self: Tensor) -> Any:
    value = _scalar(self)
    if isinstance(value, complex) and value.imag:
        raise RuntimeError(f"{value} cannot be converted to a real number without overflow")
    return value.real


def _scalar(self: Tensor) -> Any:
    if self._array.size != 1:
        raise ValueError(
            "only one element tensors can be converted to Python scalars, not one with "
            f"{self._array.size}"
        )
    return item(self)


def _warn_of_lost_history(tensor: Tensor) -> None:
    """Warn, once per process, about a number that has lost its history."""
    global _has_warned_of_scalar
    if _has_warned_of_scalar or not tensor.requires_grad:
        return
    _has_warned_of_scalar = True
    warnings.warn(
        "Converting a tensor with requires_grad=True to a scalar may lead to unexpected behavior. "
        "Consider using tensor.detach() first.",
        UserWarning,
        stacklevel=3,
    )


def _bool(self: Tensor) -> bool:
    if self._array.size != 1:
        what = "more than one value" if self._array.size else "no values"
        raise RuntimeError(f"Boolean value of Tensor with {what} is ambiguous")
    return bool(item(self))


def _index(self: Tensor) -> int:
    if self._array.size != 1 or self._array.dtype.kind not in "biu":
        raise TypeError("only integer tensors of a single element can be converted to an index")
    return int(_scalar(self))


def _int(self: Tensor) -> int:
    return int(_real(self))


def _len(self: Tensor) -> int:
    if self.ndim == 0:
        raise TypeError("len() of a 0-d tensor")
    return self.shape[0]


def _iter(self: Tensor) -> Iterator[Tensor]:
    if self.ndim == 0:
        raise TypeError("iteration over a 0-d tensor")
    return iter(indexing.unbind(self))


def _reversed(self: Tensor) -> Tensor:
    """A copy from the last row to the first."""
    return shape.flip(self, 0) if self.ndim else self


def _contains(self: Tensor, value: Any) -> bool:
    return bool(on_host(comparison.eq(self, value)._array).any())


def _format(self: Tensor, spec: str) -> str:
    if self.ndim == 0 and (spec or type(self) is Tensor):
        return format(item(self), spec)
    return object.__format__(self, spec)


def apply_(self: Tensor, callable: Callable[[Any], Any]) -> Tensor:
    """Replace each element by what a Python function gives for it: slow, and without a gradient.

    Raises:
        RuntimeError: the tensor requires grad and recording is on.
    """
    array = on_host(self._array)
    found = [callable(value) for value in array.reshape(-1).tolist()]
    return self.copy_(Tensor(np.array(found, array.dtype).reshape(array.shape)))  # type: ignore[no-any-return]


def fill_diagonal_(self: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """Overwrite the diagonal; of more dimensions, whose lengths are equal, that of all of them.

    Args:
        fill_value: a number.
        wrap: of a tall matrix: begin anew after each square and one row.

    Raises:
        RuntimeError: there are fewer than two dimensions, or more of different lengths.
    """
    if self.ndim < 2:
        raise RuntimeError("dimensions must larger than 1")
    if self.ndim > 2 and len(set(self.shape)) > 1:
        raise RuntimeError("all dimensions of input must be of equal length")
    marks = np.zeros(self.shape, bool)
    np.fill_diagonal(marks, True, wrap)
    return self.masked_fill_(Tensor(marks), fill_value)  # type: ignore[no-any-return]


METHODS: dict[str, Callable[..., Any]] = {
    "apply_": apply_,
    "fill_diagonal_": fill_diagonal_,
    "item": item,
    "tolist": tolist,
    "__len__": _len,
    "__iter__": _iter,
    "__contains__": _contains,
    "__reversed__": _reversed,
    "__bool__": _bool,
    "__float__": _float,
    "__complex__": _complex,
    "__int__": _int,
    "__index__": _index,
    "__format__": _format,
}
