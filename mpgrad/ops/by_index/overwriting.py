"""Elements replaced: ``masked_fill``, ``index_put``, and what only in-place forms are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.ops.by_index.indexing import _getitem, scatter_index, split_key
from mpgrad.ops.calling.promotion import as_operand, as_tensor_operand, cast, stored
from mpgrad.ops.elementwise.arithmetic import add
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.shapes.shape import broadcast_to, clone
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = ["index_put", "masked_fill"]


def _no_gradient(xp: Any, grad: Any) -> Any:
    """The gradient of a value that was overwritten completely."""
    return xp.zeros_beside(grad, grad.shape)


_zero = operator("zero", lambda xp, input: xp.zeros_beside(input, input.shape), input=_no_gradient)


def cleared(input: Tensor) -> Tensor:
    """Zeros of the shape of ``input``, whose gradient is zeros: for what counts nothing."""
    return call(_zero, input)


_fill = operator(
    "fill",
    lambda xp, input, value: xp.broadcast_to(value, input.shape),
    input=_no_gradient,
    value=lambda xp, grad, value_shape: xp.sum_to(grad, value_shape),
)

_copy = operator(
    "copy",
    lambda xp, input, source: xp.broadcast_to(source, input.shape),
    input=_no_gradient,
    source=lambda xp, grad, source_shape, source_dtype: xp.astype(
        xp.sum_to(grad, source_shape), source_dtype
    ),
)

#: ``draws`` are random and have no history.
_uniform = operator("uniform", lambda xp, input, draws: draws, input=_no_gradient)
_normal = operator("normal", lambda xp, input, draws: draws, input=_no_gradient)
_bernoulli = operator("bernoulli", lambda xp, input, draws: draws, input=_no_gradient)
_random = operator("random", lambda xp, input, draws: draws, input=_no_gradient)
_exponential = operator("exponential", lambda xp, input, draws: draws, input=_no_gradient)
_cauchy = operator("cauchy", lambda xp, input, draws: draws, input=_no_gradient)
_geometric = operator("geometric", lambda xp, input, draws: draws, input=_no_gradient)
_log_normal = operator("log_normal", lambda xp, input, draws: draws, input=_no_gradient)


def fill(input: Tensor, value: Any) -> Tensor:
    """A tensor like ``input`` with ``value``, a number or a 0-d tensor, everywhere.

    Raises:
        RuntimeError: ``value`` has dimensions, or the dtype cannot hold it.
    """
    value = as_operand(value)
    if not isinstance(value, Tensor):
        value = beside(input, np.asarray(stored(value, input._array.dtype), input._array.dtype))
    elif value.ndim:
        raise RuntimeError(
            "fill only supports 0-dimension value tensor but got tensor with "
            f"{value.ndim} dimensions."
        )
    return clone(call(_fill, input, cast(value, input.dtype)))


_masked_fill = operator(
    "masked_fill",
    lambda xp, input, mask, value: xp.where(mask, value, input),
    input=lambda xp, grad, mask, input_shape: xp.sum_to(xp.where(mask, 0.0, grad), input_shape),
    value=lambda xp, grad, mask, value_shape: xp.sum_to(xp.where(mask, grad, 0.0), value_shape),
    wirtinger=True,
)


def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """``value`` (a number or a 0-d tensor) where ``mask`` is true, else ``input``.

    Raises:
        RuntimeError: ``mask`` is not boolean, or ``value`` has dimensions.
    """
    return call(_masked_fill, *masked_fill_operands(input, mask, value))


def masked_fill_operands(input: Tensor, mask: Any, value: Any) -> tuple[Tensor, Tensor, Any]:
    """The operands of ``masked_fill``, checked; ``value`` is what ``input`` can hold of it.

    Raises:
        RuntimeError: the mask is not boolean, ``value`` has dimensions or does not fit.
    """
    mask, value = as_tensor_operand(mask), as_operand(value)
    if mask.dtype.kind != "b":
        raise RuntimeError(f"masked_fill only supports boolean masks, but got dtype {mask.dtype}")
    if isinstance(value, Tensor):
        if value.ndim:
            raise RuntimeError(
                "masked_fill only supports a 0-dimensional value tensor, but got tensor with "
                f"{value.ndim} dimension(s)."
            )
        if value.dtype.kind == "c" and input.dtype.kind != "c":
            stored(on_host(value._array).item(), input._array.dtype)
        value = cast(value, input.dtype)
    else:
        value = stored(value, input._array.dtype)
    return input, mask, value


_index_put = operator(
    "index_put",
    lambda xp, input, value, *indices, key: xp.put_index(input, value, key, indices),
    input=lambda xp, grad, indices, key: xp.put_index(grad, 0, key, indices),
    value=lambda xp, grad, indices, key, value_shape: xp.sum_to(
        xp.getitem(grad, key, indices), value_shape
    ),
    wirtinger=True,
)


def put_index(input: Tensor, value: Any, key: tuple[Any, ...], indices: Sequence[Tensor]) -> Tensor:
    """A copy of ``input`` with ``value`` at ``key`` (as ``split_key`` gives it)."""
    return call(_index_put, input, value, *indices, key=key)


def index_put(
    input: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """A copy of ``input`` in which ``input[indices] = values`` was done (None: a whole dimension).

    If an index is repeated, one of its values stays, and all of them get its gradient; with
    ``accumulate`` all values are added to the old one.

    Raises:
        RuntimeError: ``values`` have another dtype.
    """
    key, arrays = split_key(tuple(slice(None) if i is None else i for i in indices))
    if values.dtype != input.dtype:
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, got "
            f"{input.dtype} for the destination and {values.dtype} for the source."
        )
    if not accumulate:
        return put_index(input, values, key, arrays)
    part = call(_getitem, input, *arrays, key=key)
    return add(input, scatter_index(broadcast_to(values, part.shape), key, arrays, input.shape))
