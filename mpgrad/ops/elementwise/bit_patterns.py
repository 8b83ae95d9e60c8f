"""Functions of the bits of numbers: shifts, exponents, and the next number."""

from __future__ import annotations

from typing import Any, NamedTuple

from mpgrad.ops.calling.promotion import cast, operands, real_tensors, require_tensors
from mpgrad.recording.dispatch.operator_call import call, unrecorded
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = ["bitwise_left_shift", "bitwise_right_shift", "frexp", "nextafter"]


def _shift(name: str, input: Any, other: Any) -> Tensor:
    a, b = operands(input, other)
    dtype = next(x.dtype for x in (a, b) if isinstance(x, Tensor))
    if dtype.kind not in "iu":
        raise NotImplementedError(f"{name} is not implemented for {dtype}")
    return cast(unrecorded(getattr(_Shifts, name), a, b), dtype)


class _Shifts:
    """By as many bits as there are, or a negative number, all but a sign is shifted out."""

    @staticmethod
    def bitwise_left_shift(xp: Any, a: Any, b: Any) -> Any:
        fits = xp.logical_and(xp.greater_equal(b, 0), xp.less(b, _bits(a, b)))
        return xp.where(fits, xp.left_shift(a, xp.where(fits, b, 0)), 0)

    @staticmethod
    def bitwise_right_shift(xp: Any, a: Any, b: Any) -> Any:
        bits = _bits(a, b)
        fits = xp.logical_and(xp.greater_equal(b, 0), xp.less(b, bits))
        shifted = xp.right_shift(a, xp.where(fits, b, bits - 1))
        return xp.right_shift(shifted, xp.where(fits, 0, 1))


def _bits(a: Any, b: Any) -> int:
    return 8 * int((a if hasattr(a, "dtype") else b).dtype.itemsize)


def bitwise_left_shift(input: Any, other: Any) -> Tensor:
    """``input * 2 ** other`` of integers: bits that do not fit are lost.

    Raises:
        NotImplementedError: the elements are no integers.
    """
    return _shift("bitwise_left_shift", input, other)


def bitwise_right_shift(input: Any, other: Any) -> Tensor:
    """``input / 2 ** other`` of integers, rounded down.

    Raises:
        NotImplementedError: the elements are no integers.
    """
    return _shift("bitwise_right_shift", input, other)


class MantissaAndExponent(NamedTuple):
    """``mantissa * 2 ** exponent``."""

    mantissa: Tensor
    exponent: Tensor


_frexp = operator(
    "frexp",
    lambda xp, input: xp.frexp(input),
    input=lambda xp, grad, last_result: xp.divide(
        grad, xp.exp2(xp.astype(last_result, grad.dtype))
    ),
)


def frexp(input: Tensor) -> MantissaAndExponent:
    """Numbers of a size from 0.5 to 1, and by which powers of 2 they are multiplied, int32.

    Raises:
        RuntimeError: the elements are not floating.
    """
    if not isinstance(input, Tensor) or input.dtype.kind != "f":
        raise RuntimeError("torch.frexp() only supports floating-point dtypes")
    return MantissaAndExponent(*call(_frexp, input))


_nextafter = operator(
    "nextafter",
    lambda xp, input, other: xp.nextafter(input, other),
    input=lambda xp, grad, input, other, input_shape: xp.sum_to(
        xp.where(xp.equal(input, other), 0.0, grad), input_shape
    ),
    other=lambda xp, grad, other_shape: xp.zeros_beside(grad, other_shape),
)


def nextafter(input: Any, other: Any) -> Tensor:
    """The number that follows ``input`` on the way to ``other``; where both are equal, its gradient
    is 0.

    Raises:
        NotImplementedError: the elements are not floating.
        TypeError: one is no tensor.
    """
    require_tensors("nextafter", input=input, other=other)
    a, b = real_tensors("nextafter", input, other)
    if a.dtype.kind != "f":
        raise NotImplementedError(f"nextafter is not implemented for {a.dtype}")
    return call(_nextafter, a, b)
