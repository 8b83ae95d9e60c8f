"""In-place methods of Tensor: ``add_``, ``zero_``, ``+=``, ``x[key] = value`` and their like.

They overwrite the array and bump the version counter, so that a backward that had saved the old
values says so. They are not recorded: where one would have to be, it raises and names the form
that is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpgrad.autograd.grad_mode import is_grad_enabled, no_grad
from mpgrad.ops import arithmetic, random, transcendental
from mpgrad.ops.indexing import split_key
from mpgrad.ops.promotion import as_operand, result_dtype
from mpgrad.tensor import Tensor

_CATEGORY = "buifc"


def check_in_place(tensor: Tensor, name: str, *others: Any) -> None:
    """Raise unless ``tensor`` may be overwritten now.

    Args:
        name: of the in-place method, without its underscore.
        others: the operands, which could require grad too.

    Raises:
        RuntimeError: the change would have to be recorded, or several elements share memory.
    """
    if is_grad_enabled():
        if tensor._requires_grad and tensor._grad_fn is None:
            raise RuntimeError(
                "a leaf Variable that requires grad is being used in an in-place operation."
            )
        if any(isinstance(t, Tensor) and t._requires_grad for t in (tensor, *others)):
            raise RuntimeError(
                f"{name}_: in-place operations on tensors that require grad are not recorded. Use "
                f"the out-of-place form, x = {_out_of_place(name)}, or no_grad()."
            )
    if not tensor._array.flags.writeable:
        raise RuntimeError(
            f"{name}_: unsupported operation: more than one element of the written-to tensor may "
            "refer to a single memory location, or its memory is read-only. Please clone() the "
            "tensor before performing the operation."
        )


def _out_of_place(name: str) -> str:
    if name == "__setitem__":
        return "mg.where(mask, value, x)"
    return "mg.full_like(x, value)" if name in ("fill", "zero", "copy") else f"x.{name}(...)"


def _changed(tensor: Tensor) -> Tensor:
    tensor._version_counter.value += 1
    return tensor


def _operand_array(tensor: Tensor, name: str, other: Any) -> Any:
    """``other`` as NumPy takes it, checked to fit into ``tensor``.

    Raises:
        RuntimeError: its category of dtype is higher, or its shape would enlarge ``tensor``.
    """
    other = as_operand(other)
    dtype = result_dtype(tensor, other)
    if _CATEGORY.index(dtype.kind) > max(_CATEGORY.index(tensor.dtype.kind), 2) or (
        dtype.kind != "b" and tensor.dtype.kind == "b"
    ):
        raise RuntimeError(
            f"{name}_: result type {dtype} can't be cast to the desired output type {tensor.dtype}"
        )
    if not isinstance(other, Tensor):
        return other
    shape = np.broadcast_shapes(tensor.shape, other.shape)
    if shape != tensor.shape:
        raise RuntimeError(
            f"{name}_: output with shape {list(tensor.shape)} doesn't match the broadcast shape "
            f"{list(shape)}"
        )
    return other._array


def _binary(name: str, ufunc: np.ufunc) -> Callable[..., Tensor]:
    def method(self: Tensor, other: Any) -> Tensor:
        check_in_place(self, name, other)
        array = self._array
        if ufunc is np.true_divide and array.dtype.kind not in "fc":
            raise RuntimeError(
                f"{name}_: result type Float can't be cast to the desired output type {array.dtype}"
            )
        ufunc(array, _operand_array(self, name, other), out=array, casting="same_kind")
        return _changed(self)

    return _described(method, name)


def _scaled(name: str, ufunc: np.ufunc) -> Callable[..., Tensor]:
    """``add_`` and ``sub_``, whose second operand may be multiplied by ``alpha`` first."""

    def method(self: Tensor, other: Any, *, alpha: float = 1) -> Tensor:
        check_in_place(self, name, other)
        operand = _operand_array(self, name, other)
        if alpha != 1:
            operand = np.multiply(operand, alpha)
        ufunc(self._array, operand, out=self._array, casting="same_kind")
        return _changed(self)

    return _described(method, name)


def _unary(name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        check_in_place(self, name, *args)
        with no_grad():
            self._array[...] = function(self, *args, **kwargs)._array
        return _changed(self)

    return _described(method, name)


def _described(method: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    method.__name__ = f"{name}_"
    method.__doc__ = f"``{name}`` in place; not recorded, so raises where it would have to be."
    return method


def zero_(self: Tensor) -> Tensor:
    """Overwrite every element with 0."""
    check_in_place(self, "zero")
    self._array.fill(0)
    return _changed(self)


def fill_(self: Tensor, value: Any) -> Tensor:
    """Overwrite every element with ``value``, a number or a 0-d tensor."""
    check_in_place(self, "fill", value)
    self._array[...] = value._array if isinstance(value, Tensor) else value
    return _changed(self)


def copy_(self: Tensor, source: Any, non_blocking: bool = False) -> Tensor:
    """Overwrite with ``source``, broadcast and converted to this dtype."""
    check_in_place(self, "copy", source)
    array = source._array if isinstance(source, Tensor) else np.asarray(source)
    try:
        np.copyto(self._array, array, casting="unsafe")
    except ValueError:
        raise RuntimeError(
            f"copy_: the shape of the source {array.shape} must be broadcastable to the shape of "
            f"the destination {self.shape}"
        ) from None
    return _changed(self)


def uniform_(self: Tensor, from_: float = 0.0, to: float = 1.0) -> Tensor:
    """Overwrite with draws from the uniform distribution on [``from_``, ``to``)."""
    check_in_place(self, "uniform")
    random.fill_uniform(self._array, from_, to)
    return _changed(self)


def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Overwrite with draws from the normal distribution."""
    check_in_place(self, "normal")
    random.fill_normal(self._array, mean, std)
    return _changed(self)


def setitem(self: Tensor, key: Any, value: Any) -> None:
    """``self[key] = value``, converted to this dtype."""
    check_in_place(self, "__setitem__", value)
    plain, indices = split_key(key)
    left = iter(indices)
    place = tuple(next(left)._array if isinstance(item, str) else item for item in plain)
    self._array[place] = value._array if isinstance(value, Tensor) else value
    _changed(self)


METHODS: dict[str, Callable[..., Any]] = {
    "add_": _scaled("add", np.add),
    "sub_": _scaled("sub", np.subtract),
    "mul_": _binary("mul", np.multiply),
    "div_": _binary("div", np.true_divide),
    "pow_": _binary("pow", np.power),
    "zero_": zero_,
    "fill_": fill_,
    "copy_": copy_,
    "uniform_": uniform_,
    "normal_": normal_,
    "__setitem__": setitem,
}
METHODS |= {
    f"{function.__name__}_": _unary(function.__name__, function)
    for function in (
        arithmetic.clamp,
        arithmetic.neg,
        arithmetic.abs,
        arithmetic.sqrt,
        arithmetic.rsqrt,
        arithmetic.reciprocal,
        arithmetic.square,
        arithmetic.floor,
        arithmetic.ceil,
        arithmetic.round,
        transcendental.exp,
        transcendental.log,
        transcendental.tanh,
        transcendental.sigmoid,
        transcendental.relu,
    )
}
METHODS |= {
    "__iadd__": METHODS["add_"],
    "__isub__": METHODS["sub_"],
    "__imul__": METHODS["mul_"],
    "__itruediv__": METHODS["div_"],
    "__ipow__": METHODS["pow_"],
}
