"""Comparisons, logic and tests for special values: nothing here has a derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpgrad.ops.calling.promotion import (
    as_operand,
    as_tensor_operand,
    cast,
    operands,
    refuse_complex,
    require_tensors,
    result_dtype,
    wrapped,
)
from mpgrad.recording.dispatch.operator_call import unrecorded
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "allclose",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "eq",
    "equal",
    "ge",
    "greater",
    "greater_equal",
    "gt",
    "isclose",
    "isfinite",
    "isinf",
    "isnan",
    "le",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "lt",
    "ne",
    "not_equal",
]


def _comparison(
    name: str, function: str, doc: str, *, orders: bool = False
) -> Callable[[Any, Any], Tensor]:
    """A function of a tensor and another operand whose result is boolean: nothing is recorded."""

    def compare(xp: Any, a: Any, b: Any) -> Any:
        return getattr(xp, function)(a, b)

    compare.__name__ = name

    def public(input: Any, other: Any) -> Tensor:
        if not isinstance(input, Tensor):
            require_tensors(name, input=input)
        a, b = as_operand(input), as_operand(other)
        if type(b) is int and isinstance(a, Tensor):
            b = wrapped(b, a._array.dtype)
        if isinstance(a, Tensor) and isinstance(b, Tensor) and a._array.dtype != b._array.dtype:
            dtype = result_dtype(a, b)  # NumPy would compare what does not fit into it
            a, b = (cast(x.detach(), dtype) for x in (a, b))
        if orders:
            refuse_complex(name, a, b)
        return unrecorded(compare, a, b)

    public.__name__, public.__doc__ = name, doc
    return public


def _logic(name: str, doc: str) -> Callable[[Any, Any], Tensor]:
    """The same of two tensors."""
    compare = _comparison(name, name, doc)

    def public(input: Any, other: Any) -> Tensor:
        require_tensors(name, input=input, other=other)
        return compare(input, other)

    public.__name__, public.__doc__ = name, doc
    return public


eq = _comparison("eq", "equal", "``input == other``, element by element.")
ne = _comparison("ne", "not_equal", "``input != other``, element by element.")
gt = _comparison("gt", "greater", "``input > other``, element by element.", orders=True)
ge = _comparison("ge", "greater_equal", "``input >= other``, element by element.", orders=True)
lt = _comparison("lt", "less", "``input < other``, element by element.", orders=True)
le = _comparison("le", "less_equal", "``input <= other``, element by element.", orders=True)
logical_and = _logic("logical_and", "Both are true (not zero).")
logical_or = _logic("logical_or", "At least one is true (not zero).")
logical_xor = _logic("logical_xor", "Exactly one is true (not zero).")


def _predicate(name: str, function: str, doc: str) -> Callable[[Any], Tensor]:
    def public(input: Any) -> Tensor:
        return unrecorded(lambda xp, x: getattr(xp, function)(x), as_tensor_operand(input))

    public.__name__, public.__doc__ = name, doc
    return public


def _bitwise(name: str, ufunc: np.ufunc) -> Callable[..., Tensor]:
    """Of integers bit by bit, of booleans the logical operation."""

    def compute(xp: Any, *arrays: Any) -> Any:
        return getattr(xp, ufunc.__name__)(*arrays)

    def public(input: Any, other: Any) -> Tensor:
        a, b = bitwise_operands(name, input, other)
        return unrecorded(compute, a, b)

    compute.__name__ = public.__name__ = name
    public.__doc__ = f"``np.{ufunc.__name__}``, element by element."
    return public


def bitwise_operands(name: str, input: Any, other: Any) -> tuple[Any, Any]:
    """The operands of a bitwise operator in one dtype.

    Raises:
        NotImplementedError: they are no integers and booleans.
    """
    dtype = result_dtype(as_operand(input), as_operand(other))
    if dtype.kind in "fc":
        raise NotImplementedError(f"{name} is not implemented for {dtype}")
    return operands(input, other)


bitwise_and = _bitwise("bitwise_and", np.bitwise_and)
bitwise_or = _bitwise("bitwise_or", np.bitwise_or)
bitwise_xor = _bitwise("bitwise_xor", np.bitwise_xor)


def bitwise_not(input: Any) -> Tensor:
    """``np.invert``, element by element.

    Raises:
        NotImplementedError: the elements are no integers and booleans.
    """
    tensor = as_tensor_operand(input)
    if tensor.dtype.kind in "fc":
        raise NotImplementedError(f"bitwise_not is not implemented for {tensor.dtype}")
    return unrecorded(lambda xp, x: xp.invert(x), tensor)


def inverted(input: Tensor) -> Tensor:
    """``~input``.

    Raises:
        TypeError: the elements are no integers and booleans.
    """
    if input.dtype.kind in "fc":
        raise TypeError(
            f"~ is only implemented on integer and Boolean-type tensors, not on {input.dtype}"
        )
    return bitwise_not(input)


logical_not = _predicate("logical_not", "logical_not", "True where the element is zero.")
isnan = _predicate("isnan", "isnan", "True where the element is NaN.")
isinf = _predicate("isinf", "isinf", "True where the element is infinite.")
isfinite = _predicate("isfinite", "isfinite", "True where the element is finite.")


def isclose(
    input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """``abs(input - other) <= atol + rtol * abs(other)``, element by element.

    Raises:
        RuntimeError: the dtypes differ, or a tolerance is negative.
        TypeError: one is no tensor.
    """
    require_tensors("isclose", input=input, other=other)
    if input.dtype != other.dtype:
        raise RuntimeError(f"isclose(): {input.dtype} did not match {other.dtype}")
    for name, tolerance in (("rtol", rtol), ("atol", atol)):
        if tolerance < 0:
            raise RuntimeError(
                f"isclose(): {name} must be greater than or equal to zero, but got {tolerance}"
            )
    return unrecorded(lambda xp, a, b: xp.isclose(a, b, rtol, atol, equal_nan), input, other)


def allclose(
    input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Whether all elements are close (see :func:`isclose`).

    Raises:
        RuntimeError: the dtypes differ, or a tolerance is negative.
    """
    return bool(isclose(input, other, rtol, atol, equal_nan)._array.all())


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether both have the same shape and elements."""
    return bool(unrecorded(lambda xp, a, b: xp.array_equal(a, b), input, other)._array)


not_equal, greater, greater_equal, less, less_equal = ne, gt, ge, lt, le
