"""``out=``: a result that is written into a tensor that is there already; never recorded."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from mpgrad.autograd.grad_mode import is_grad_enabled
from mpgrad.autograd.views.in_place import overwrite
from mpgrad.device_arrays import on
from mpgrad.ops.promotion import check_cast
from mpgrad.storage import empty
from mpgrad.tensor import Tensor

#: Functions that pick elements: ``out`` has their dtype, and lies elsewhere.
_PICKING = frozenset({"amax", "amin", "cat", "gather", "index_select", "masked_select", "take"})


def into(out: Tensor, function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """Write ``function(*args, **kwargs)`` into ``out``, whose shape changes if it does not fit.

    Raises:
        RuntimeError: an argument or ``out`` requires grad, or the dtype of ``out`` is too small;
            of functions that pick elements also: it is another one, or shares their memory.
        TypeError: ``out`` is no Tensor.
    """
    name = function.__name__
    if not isinstance(out, Tensor):
        raise TypeError(f"{name}(): argument 'out' must be Tensor, not {type(out).__name__}")
    if is_grad_enabled() and any(_requires_grad(value) for value in (out, *args)):
        raise RuntimeError(
            f"{name}(): functions with out=... arguments don't support automatic differentiation, "
            "but one of the arguments requires grad. Leave out= away, or use no_grad()."
        )
    result = function(*args, **kwargs)
    check_cast(result.dtype, out)
    if name in _PICKING:
        if name != "cat" and out.dtype != result.dtype:
            raise RuntimeError(
                f"{name}(): Expected out tensor to have dtype {result.dtype}, but got {out.dtype}"
            )
        if any(_overlap(value, out) for value in args):
            raise RuntimeError(
                f"{name}(): unsupported operation: some elements of the input tensor and the "
                "written-to tensor refer to a single memory location. Please clone() the tensor "
                "before performing the operation."
            )
    if out.shape != result.shape:
        _resize(out, result.shape)
    with on(out.device):
        return overwrite(out, (result,), lambda array, new: np.copyto(array, new, casting="unsafe"))


def _overlap(value: Any, out: Tensor) -> bool:
    if isinstance(value, list | tuple):
        return any(_overlap(item, out) for item in value)
    if not isinstance(value, Tensor) or value.device != out.device:
        return False
    if isinstance(value._array, np.ndarray):
        return np.may_share_memory(value._array, out._array)
    return value is out


def _requires_grad(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_requires_grad(item) for item in value)
    return isinstance(value, Tensor) and value.requires_grad


def _resize(out: Tensor, shape: tuple[int, ...]) -> None:
    if out._array.size:
        warnings.warn(
            "An output with one or more elements was resized since it had shape "
            f"{list(out.shape)}, which does not match the required output shape {list(shape)}. "
            "Pass an empty tensor, or one of the right shape, as out=.",
            UserWarning,
            stacklevel=4,
        )
    out._array = empty(shape, out.dtype, out.device)
