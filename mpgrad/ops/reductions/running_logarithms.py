"""``logcumsumexp``: logarithms of running sums of exponentials."""

from __future__ import annotations

import math
from typing import Any

from mpgrad.ops.calling.dimensions import one_dim
from mpgrad.ops.calling.promotion import as_tensor_operand, cast
from mpgrad.ops.reductions.products import part, recurrence
from mpgrad.ops.shapes.shape import clone
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = ["logcumsumexp"]


def _last(xp: Any, x: Any, dim: int) -> Any:
    """``x`` with ``dim`` and the last dimension exchanged."""
    order = list(range(x.ndim))
    order[dim], order[-1] = order[-1], order[dim]
    return xp.transpose(x, tuple(order))


def _together(xp: Any, a: Any, b: Any) -> Any:
    """``log(exp(a) + exp(b))`` of complex numbers, beside the one of larger real part."""
    less = xp.less(xp.real(a), xp.real(b))
    smaller, larger = xp.where(less, a, b), xp.where(less, b, a)
    # What vanishes against the larger one, minus infinity above all, is left out.
    is_nothing = xp.equal(xp.real(smaller), -math.inf)
    distance = xp.where(is_nothing, 0.0, _difference(xp, smaller, larger))
    both = xp.add(larger, xp.log(xp.add(1.0, xp.exp(distance))))
    return xp.where(is_nothing, larger, both)


def _running(xp: Any, input: Any, *, dim: int) -> Any:
    found = _last(xp, input, dim)
    steps = _one_by_one if input.dtype.kind == "c" else _doubling
    return xp.copy(_last(xp, steps(xp, found), dim))


def _doubling(xp: Any, x: Any) -> Any:
    """In log2(n) steps (Hillis and Steele, "Data parallel algorithms", 1986)."""
    length, step = x.shape[-1], 1
    while step < length:
        joined = xp.logaddexp(part(xp, x, step, None), part(xp, x, 0, length - step))
        x = xp.concatenate([part(xp, x, 0, step), joined], -1)
        step *= 2
    return x


def _one_by_one(xp: Any, x: Any) -> Any:
    """In PyTorch's order, because the sheet of each logarithm depends on it."""
    found = [part(xp, x, 0, 1)]
    for n in range(1, x.shape[-1]):
        found.append(_together(xp, part(xp, x, n, n + 1), found[-1]))
    return xp.concatenate(found, -1)


def _running_grad(xp: Any, grad: Any, input: Any, result: Any, dim: int) -> Any:
    """``exp(x[i] - y[i]) * s[i]`` with ``s[i] = grad[i] + exp(y[i] - y[i + 1]) * s[i + 1]``.

    Real factors are at most 1. Where ``y`` is minus infinity, all before it are, too.
    """
    x, y, grad = (_last(xp, a, dim) for a in (input, result, grad))
    factors = xp.exp(_difference(xp, part(xp, y, 0, -1), part(xp, y, 1, None)))
    one = xp.add(xp.zeros_beside(y, (*y.shape[:-1], 1)), 1)
    # From the end: each element of grad is followed by its factor.
    backwards = xp.concatenate([one, xp.flip(factors, -1)], -1)
    sums = xp.flip(recurrence(xp, backwards, xp.flip(grad, -1)), -1)
    return _last(xp, xp.multiply(xp.exp(_difference(xp, x, y)), sums), dim)


def _difference(xp: Any, a: Any, b: Any) -> Any:
    """``a - b``, and 0 where both are the same infinity."""
    same = xp.logical_and(xp.equal(a, b), xp.isinf(b))
    return xp.where(same, 0.0, xp.subtract(a, xp.where(same, 0.0, b)))


_logcumsumexp = operator("logcumsumexp", _running, input=_running_grad)


def logcumsumexp(input: Any, dim: int | None = None, *, axis: int | None = None) -> Tensor:
    """``log(cumsum(exp(input)))`` along ``dim``, without overflow.

    Raises:
        NotImplementedError: the elements are integers.
    """
    tensor = as_tensor_operand(input)
    dim = one_dim(dim if axis is None else axis, tensor.ndim)
    if tensor.dtype.kind not in "fc":
        raise NotImplementedError(f"logcumsumexp is not implemented for {tensor.dtype}")
    if tensor.ndim == 0 or tensor.numel() == 0:
        return clone(tensor)
    return cast(call(_logcumsumexp, tensor, dim=dim), tensor.dtype)
