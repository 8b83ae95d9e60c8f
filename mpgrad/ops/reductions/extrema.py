"""Extrema: the largest and smallest elements, and where they are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mpgrad.ops.calling.dimensions import Dims, either, keep, one_dim, some_dims
from mpgrad.ops.calling.promotion import as_tensor_operand, refuse_complex, require_tensors
from mpgrad.ops.elementwise.minimum_maximum import maximum, minimum
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.shapes.shape import clone
from mpgrad.recording.dispatch.operator_call import call, unrecorded
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = ["amax", "amin", "argmax", "argmin", "max", "min"]


class ValuesAndIndices(NamedTuple):
    """The extrema along one dimension, and where they are."""

    values: Tensor
    indices: Tensor


def _extremum_grad(xp: Any, grad: Any, input: Any, result: Any, dim: Dims) -> Any:
    """An equal share for each element that attains the extremum (PyTorch's amax)."""
    attains = xp.equal(input, keep(xp, result, input.shape, dim))
    ties = xp.sum(attains, dim, True)
    share = xp.divide(keep(xp, grad, input.shape, dim), xp.astype(ties, grad.dtype))
    return xp.multiply(attains, share)


_amax = operator(
    "amax",
    lambda xp, input, *, dim, keepdim: xp.max(input, dim, keepdim),
    input=_extremum_grad,
)
_amin = operator(
    "amin",
    lambda xp, input, *, dim, keepdim: xp.min(input, dim, keepdim),
    input=_extremum_grad,
)


def amax(
    input: Any,
    dim: Any = None,
    keepdim: bool = False,
    *,
    axis: Any = None,
) -> Tensor:
    """The largest element over ``dim``; ties share the gradient.

    Raises:
        IndexError, RuntimeError: there is no element to choose from.
    """
    return _over(_amax, input, some_dims(dim, axis, _ndim(input)), keepdim)


def amin(
    input: Any,
    dim: Any = None,
    keepdim: bool = False,
    *,
    axis: Any = None,
) -> Tensor:
    """The smallest element over ``dim``; ties share the gradient.

    Raises:
        IndexError, RuntimeError: there is no element to choose from.
    """
    return _over(_amin, input, some_dims(dim, axis, _ndim(input)), keepdim)


def _ndim(input: Any) -> int:
    return as_tensor_operand(input).ndim


def _over(extremum: Any, input: Any, dims: Dims, keepdim: bool) -> Tensor:
    tensor = as_tensor_operand(input)
    refuse_complex(extremum.name, tensor)
    _check_not_empty(extremum.name, tensor.shape, dims)
    return call(extremum, tensor, dim=dims, keepdim=keepdim)


def _check_not_empty(name: str, shape: tuple[int, ...], dims: Dims) -> None:
    """Raise if ``name`` would have to choose from no element.

    Raises:
        RuntimeError: over all dimensions.
        IndexError: over some.
    """
    if dims is None:
        if 0 in shape:
            raise RuntimeError(
                f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify "
                "the reduction dim with the 'dim' argument."
            )
        return
    for dim in dims:
        if shape[dim] == 0:
            raise IndexError(f"{name}(): Expected reduction dim {dim} to have non-zero size.")


def _whole_grad(xp: Any, grad: Any, input: Any, result: Any) -> Any:
    """An equal share for each element that attains the extremum, also where that is NaN."""
    attains = xp.equal(input, result)
    attains = xp.logical_or(attains, xp.logical_and(xp.isnan(input), xp.isnan(result)))
    share = xp.divide(grad, xp.astype(xp.sum(attains), grad.dtype))
    return xp.where(attains, share, 0.0)


_max_of_all = operator("max_of_all", lambda xp, input: xp.max(input), input=_whole_grad)
_min_of_all = operator("min_of_all", lambda xp, input: xp.min(input), input=_whole_grad)


def _at_extremum(xp: Any, input: Any, indices: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
    values = xp.take_along_axis(input, indices, dim)
    if keepdim:
        return values, indices
    shape = input.shape[:dim] + input.shape[dim + 1 :]
    return xp.reshape(values, shape), xp.reshape(indices, shape)


def _at_extremum_grad(
    xp: Any, grad: Any, last_result: Any, input_shape: tuple[int, ...], dim: int
) -> Any:
    grad, indices = (keep(xp, x, input_shape, (dim,)) for x in (grad, last_result))
    return xp.scatter_along_axis(grad, indices, dim, input_shape[dim])


_max_along = operator(
    "max",
    lambda xp, input, *, dim, keepdim: _at_extremum(
        xp, input, xp.argmax(input, dim, True), dim, keepdim
    ),
    input=_at_extremum_grad,
)
_min_along = operator(
    "min",
    lambda xp, input, *, dim, keepdim: _at_extremum(
        xp, input, xp.argmin(input, dim, True), dim, keepdim
    ),
    input=_at_extremum_grad,
)


def max(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Any:
    """The largest element, or (values, indices) along ``dim``, or :func:`maximum` of two tensors.

    Along ``dim`` the first of equal elements is taken and gets the gradient.
    """
    return _extremum(
        _max_of_all, _max_along, maximum, input, either("dim", dim, "axis", axis), keepdim
    )


def min(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Any:
    """The smallest element, or (values, indices) along ``dim``, or :func:`minimum` of two tensors.

    Along ``dim`` the first of equal elements is taken and gets the gradient.
    """
    return _extremum(
        _min_of_all, _min_along, minimum, input, either("dim", dim, "axis", axis), keepdim
    )


def _extremum(whole: Any, along: Any, of_two: Any, input: Any, dim: Any, keepdim: bool) -> Any:
    if isinstance(dim, Tensor):
        return of_two(input, dim)
    require_tensors(along.name, input=input)
    tensor = as_tensor_operand(input)
    refuse_complex("max or min", tensor)
    if dim is None:
        _check_not_empty(along.name, tensor.shape, None)
        return call(whole, tensor)
    dim = one_dim(dim, tensor.ndim)
    if tensor.ndim == 0:
        return ValuesAndIndices(clone(tensor), beside(tensor, np.zeros((), np.int64)))
    _check_not_empty(along.name, tensor.shape, (dim,))
    return ValuesAndIndices(*call(along, tensor, dim=dim, keepdim=keepdim))


def argmax(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Tensor:
    """Where the (first) largest element along ``dim`` is; in the flattened tensor if None."""
    return _where_extremum("argmax", input, either("dim", dim, "axis", axis), keepdim)


def argmin(input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Tensor:
    """Where the (first) smallest element along ``dim`` is; in the flattened tensor if None."""
    return _where_extremum("argmin", input, either("dim", dim, "axis", axis), keepdim)


def _where_extremum(function: str, input: Any, dim: Any, keepdim: bool) -> Tensor:
    tensor = as_tensor_operand(input)
    refuse_complex(function, tensor)
    if dim is None and 0 in tensor.shape:
        raise IndexError(
            f"{function}(): Expected reduction dim to be specified for input.numel() == 0."
        )
    axis = None
    if dim is not None:
        dim = one_dim(dim, tensor.ndim)
        if tensor.ndim:
            axis = dim
            _check_not_empty(function, tensor.shape, (dim,))
    return unrecorded(lambda xp, x: getattr(xp, function)(x, axis, keepdim), tensor)
