"""Choosing between values element by element: ``maximum minimum clamp where``."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpgrad.ops.by_index.indexing import unbind
from mpgrad.ops.calling.promotion import (
    as_operand,
    as_tensor_operand,
    cast,
    operands,
    refuse_complex,
    require_tensors,
    stored,
)
from mpgrad.ops.calling.promotion import result_dtype as _result_dtype
from mpgrad.ops.shapes.shape import contiguous, reshape
from mpgrad.recording.dispatch.operator_call import call, unrecorded
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "clamp",
    "clamp_max",
    "clamp_min",
    "clip",
    "maximum",
    "minimum",
    "nonzero",
    "where",
]


def _chosen(xp: Any, grad: Any, loses: Any, ties: Any, shape: Any) -> Any:
    """The gradient of the operand unless it ``loses``; a tie gives half to each, as in PyTorch.

    Neither of the two counts as smaller or larger if one is NaN.
    """
    whole = xp.where(loses, 0.0, grad)
    return xp.sum_to(xp.where(ties, xp.multiply(grad, 0.5), whole), shape)


_maximum = operator(
    "maximum",
    lambda xp, a, b: xp.maximum(a, b),
    a=lambda xp, grad, a, b, a_shape: _chosen(xp, grad, xp.less(a, b), xp.equal(a, b), a_shape),
    b=lambda xp, grad, a, b, b_shape: _chosen(xp, grad, xp.greater(a, b), xp.equal(a, b), b_shape),
)
_minimum = operator(
    "minimum",
    lambda xp, a, b: xp.minimum(a, b),
    a=lambda xp, grad, a, b, a_shape: _chosen(xp, grad, xp.greater(a, b), xp.equal(a, b), a_shape),
    b=lambda xp, grad, a, b, b_shape: _chosen(xp, grad, xp.less(a, b), xp.equal(a, b), b_shape),
)


def maximum(input: Any, other: Any) -> Tensor:
    """The larger of each pair of elements of two tensors; a NaN wins.

    Raises:
        TypeError: one is no tensor.
    """
    require_tensors("maximum", input=input, other=other)
    return larger(input, other)


def minimum(input: Any, other: Any) -> Tensor:
    """The smaller of each pair of elements of two tensors; a NaN wins.

    Raises:
        TypeError: one is no tensor.
    """
    require_tensors("minimum", input=input, other=other)
    return smaller(input, other)


def larger(input: Any, other: Any) -> Tensor:
    """:func:`maximum`, also of a tensor and a number."""
    a, b = operands(input, other)
    refuse_complex("maximum", a, b)
    return call(_maximum, a, b)


def smaller(input: Any, other: Any) -> Tensor:
    """:func:`minimum`, also of a tensor and a number."""
    a, b = operands(input, other)
    refuse_complex("minimum", a, b)
    return call(_minimum, a, b)


def _clamp_forward(xp: Any, input: Any, *, min: float | None, max: float | None) -> Any:
    if min is not None:
        input = xp.maximum(input, min)
    return input if max is None else xp.minimum(input, max)


def _clamp_grad(xp: Any, grad: Any, input: Any, min: float | None, max: float | None) -> Any:
    if min is not None:
        grad = xp.where(xp.greater_equal(input, min), grad, 0.0)
    return grad if max is None else xp.where(xp.less_equal(input, max), grad, 0.0)


_clamp = operator("clamp", _clamp_forward, input=_clamp_grad)


def _between_grad(xp: Any, grad: Any, input: Any, min: Any, max: Any, input_shape: Any) -> Any:
    return xp.sum_to(_clamp_grad(xp, grad, input, min, max), input_shape)


def _min_grad(xp: Any, grad: Any, input: Any, min: Any, max: Any, min_shape: Any) -> Any:
    """Where ``input`` is too small; nowhere if the limits contradict each other."""
    taken = xp.less(input, min)
    taken = taken if max is None else xp.logical_and(taken, xp.less(min, max))
    return xp.sum_to(xp.where(taken, grad, 0.0), min_shape)


def _max_grad(xp: Any, grad: Any, input: Any, min: Any, max: Any, max_shape: Any) -> Any:
    """Where ``input`` is too large; also where the limits contradict each other."""
    taken = xp.greater(input, max)
    taken = taken if min is None else xp.logical_or(taken, xp.less(max, min))
    return xp.sum_to(xp.where(taken, grad, 0.0), max_shape)


#: The operator for limits that are tensors; each limit may be omitted.
_clamp_between = operator(
    "clamp_between",
    lambda xp, input, min, max: _clamp_forward(xp, input, min=min, max=max),
    input=_between_grad,
    min=_min_grad,
    max=_max_grad,
)


def clamp_operands(input: Any, min: Any, max: Any) -> list[Any]:
    """``input`` and its limits in one dtype; a limit may be None, a number stays one.

    Raises:
        NotImplementedError: one is complex.
    """
    values: list[Any] = [as_tensor_operand(input)]
    values += [None if limit is None else as_operand(limit) for limit in (min, max)]
    refuse_complex("clamp", *values)
    dtype = _result_dtype(*(value for value in values if value is not None))
    return [cast(value, dtype) if isinstance(value, Tensor) else value for value in values]


def clamp(input: Any, min: float | None = None, max: float | None = None) -> Tensor:
    """Limit every element to [``min``, ``max``]; the gradient is 1 on the limits, 0 outside.

    Raises:
        RuntimeError: neither limit is given.
    """
    if min is None and max is None:
        raise RuntimeError("clamp: At least one of 'min' or 'max' must not be None")
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        return call(_clamp_between, *clamp_operands(input, min, max))
    tensor = as_tensor_operand(input)
    refuse_complex("clamp", tensor)
    for limit in (min, max):
        if isinstance(limit, complex):
            raise RuntimeError(f"clamp: value {limit} cannot be converted to a real number")
    limits = tuple(as_operand(limit) for limit in (min, max) if limit is not None)
    dtype = _result_dtype(tensor, *limits)
    if dtype.kind in "iu":
        min, max = (None if limit is None else stored(limit, dtype) for limit in (min, max))
    return call(_clamp, cast(tensor, dtype), min=min, max=max)


_where = operator(
    "where",
    lambda xp, condition, a, b: xp.where(condition, a, b),
    a=lambda xp, grad, condition, a_shape: xp.sum_to(xp.where(condition, grad, 0.0), a_shape),
    b=lambda xp, grad, condition, b_shape: xp.sum_to(xp.where(condition, 0.0, grad), b_shape),
    wirtinger=True,
)


def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """The indices of all elements that are not zero, one row each (or one tensor a dimension)."""
    if as_tuple and input.ndim == 0:
        input = reshape(input, (1,))
    found = unrecorded(lambda xp, x: xp.argwhere(x), input)
    return tuple(contiguous(index) for index in unbind(found, 1)) if as_tuple else found


def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """``input`` where ``condition`` is true, ``other`` elsewhere (all broadcast).

    With ``condition`` alone, ``nonzero(condition, as_tuple=True)``.

    Raises:
        RuntimeError: ``condition`` holds neither booleans nor bytes.
    """
    if input is None and other is None:
        return nonzero(condition, as_tuple=True)
    condition = as_tensor_operand(condition)
    if condition.dtype.kind != "b" and condition.dtype != np.uint8:
        raise RuntimeError(
            "where expected condition to be a boolean tensor, but got a tensor with dtype "
            f"{condition.dtype}"
        )
    if not isinstance(input, Tensor) and not isinstance(other, Tensor):
        input = as_tensor_operand(input)
    return call(_where, cast(condition, bool), *operands(input, other))


clip = clamp


def clamp_min(input: Any, min: Any) -> Tensor:
    """At least ``min``.

    Raises:
        TypeError: ``input`` is no tensor.
    """
    require_tensors("clamp_min", input=input)
    return clamp(input, min)


def clamp_max(input: Any, max: Any) -> Tensor:
    """At most ``max``.

    Raises:
        TypeError: ``input`` is no tensor.
    """
    require_tensors("clamp_max", input=input)
    return clamp(input, None, max)
