"""In-place methods of Tensor: ``add_``, ``zero_``, ``+=``, ``x[key] = value`` and so on.

Each is recorded like its out-of-place form (see ``recording.dispatch.in_place``); this file checks
the operands and names the NumPy function that can write without a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpgrad.arrays.cpu.broadcasting import broadcast_shape
from mpgrad.arrays.cuda.device_arrays import on
from mpgrad.ops import catalogue as _all_registered  # noqa: F401
from mpgrad.ops.by_index import overwriting
from mpgrad.ops.by_index.indexing import getitem, selected, split_key
from mpgrad.ops.calling.promotion import (
    as_operand,
    as_tensor_operand,
    cast,
    check_cast,
    refuse_complex,
    result_dtype,
    stored,
    wrapped,
)
from mpgrad.ops.elementwise.arithmetic import div, refuse_subtraction, scaled
from mpgrad.ops.elementwise.rounding import round as round_values
from mpgrad.ops.new_tensors.device_moves import beside, to_device
from mpgrad.ops.shapes.shape import clone, reshape
from mpgrad.recording.dispatch.in_place import call_in_place, overwrite
from mpgrad.recording.dispatch.operator_call import namespace_for
from mpgrad.recording.graph.registry import OPERATORS
from mpgrad.recording.tensors.tensor import Tensor

Array = np.ndarray[Any, Any]


# ------------------------------------------------------------------------ operands


def _operand(tensor: Tensor, other: Any) -> Any:
    """``other`` as the operator accepts it, after checking that it fits into ``tensor``.

    Raises:
        RuntimeError: its category of dtype is higher, or its shape would enlarge ``tensor``.
    """
    other = as_operand(other)
    dtype = result_dtype(tensor, other)
    check_cast(dtype, tensor)
    if not isinstance(other, Tensor):
        return wrapped(other, dtype)
    if other.shape != tensor.shape:
        shape = broadcast_shape(tensor.shape, other.shape)
        if shape != tensor.shape:
            raise RuntimeError(
                f"output with shape {list(tensor.shape)} doesn't match the broadcast shape "
                f"{list(shape)}"
            )
    return cast(other, dtype) if dtype == tensor._array.dtype else other


def _into(ufunc: Any) -> Any:
    """A function that writes the result of ``ufunc`` for arrays into the first of them."""
    if ufunc is None:
        return None
    return lambda array, *others: ufunc(array, *others, out=array, casting="unsafe")


def _binary(
    name: str,
    ufunc: np.ufunc | None = None,
    *,
    true_division: bool = False,
    of_reals: bool = False,
) -> Any:
    operator, write = OPERATORS[name], _into(ufunc)

    def method(self: Tensor, other: Any) -> Tensor:
        if of_reals:
            refuse_complex(name, self, other)
        if true_division and self._array.dtype.kind not in "fc":
            check_cast(np.dtype(np.float32), self)
        return call_in_place(operator, self, _operand(self, other), write=write)

    return _described(method, name)


def _scaled(name: str, ufunc: np.ufunc) -> Any:
    """``add_`` and ``sub_``, whose second operand may be multiplied by ``alpha`` first."""
    operator, write = OPERATORS[name], _into(ufunc)

    def method(self: Tensor, other: Any, *, alpha: float = 1) -> Tensor:
        if ufunc is np.subtract:
            refuse_subtraction(self, other)
        operand = _operand(self, other)
        if alpha != 1:
            operand = scaled(self, operand, alpha)
        return call_in_place(operator, self, operand, write=write)

    return _described(method, name)


def _unary(name: str, ufunc: Any = None, *, floating: bool = False) -> Any:
    operator, write = OPERATORS[name], _into(ufunc)

    def method(self: Tensor) -> Tensor:
        if floating and self._array.dtype.kind not in "fc":
            check_cast(np.dtype(np.float32), self)
        return call_in_place(operator, self, write=write)

    return _described(method, name)


def _unrecorded(name: str, ufunc: np.ufunc) -> Any:
    """In-place forms for integers and booleans, which have no gradient."""
    write = _into(ufunc)

    def method(self: Tensor, *others: Any) -> Tensor:
        operands = [_operand(self, other) for other in others]
        if self.dtype.kind not in "biu":
            raise NotImplementedError(f"{name}_ is not implemented for {self.dtype}")
        return overwrite(self, operands, write)

    return _described(method, name)


def _described(method: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    method.__name__ = f"{name}_"
    method.__doc__ = f"``{name}`` in place; recorded like it."
    return method


# ------------------------------------------------------------------------ single methods


def abs_(self: Tensor) -> Tensor:
    """``abs`` in place; recorded like it.

    Raises:
        RuntimeError: the tensor is complex, but absolute values are real.
    """
    if self._array.dtype.kind == "c":
        raise RuntimeError("In-place abs is not supported for complex tensors.")
    return call_in_place(OPERATORS["abs"], self, write=_into(np.absolute))


_round = _unary("round", np.rint)


def round_(self: Tensor, *, decimals: int = 0) -> Tensor:
    """``round`` in place; recorded like it."""
    return copy_(self, round_values(self, decimals=decimals)) if decimals else _round(self)


_true_division = _binary("div", np.true_divide, true_division=True)


def div_(self: Tensor, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """``div`` in place; recorded like it.

    Raises:
        RuntimeError: an unknown ``rounding_mode``, or an integer is divided by 0.
    """
    if rounding_mode is None:
        return _true_division(self, other)  # type: ignore[no-any-return]
    return copy_(self, div(self, _operand(self, other), rounding_mode=rounding_mode))


def pow_(self: Tensor, exponent: Any) -> Tensor:
    """``pow`` in place; recorded like it.

    Raises:
        RuntimeError: integers to a negative integer power.
    """
    exponent = _operand(self, exponent)
    if isinstance(exponent, int) and exponent < 0 and self._array.dtype.kind in "iu":
        raise RuntimeError("Integers to negative integer powers are not allowed.")
    return call_in_place(OPERATORS["pow"], self, exponent)


def lerp_(self: Tensor, end: Any, weight: Any) -> Tensor:
    """``lerp`` in place; recorded like it."""
    return call_in_place(OPERATORS["lerp"], self, _operand(self, end), as_operand(weight))


def clamp_(self: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """``clamp`` in place; recorded like it.

    Raises:
        RuntimeError: neither limit is given.
    """
    if min is None and max is None:
        raise RuntimeError("clamp_: At least one of 'min' or 'max' must not be None")
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        limits = [None if limit is None else _operand(self, limit) for limit in (min, max)]
        return call_in_place(OPERATORS["clamp_between"], self, *limits)
    for limit in (min, max):
        if limit is not None:
            check_cast(result_dtype(self, limit), self)
    return call_in_place(OPERATORS["clamp"], self, min=min, max=max)


def zero_(self: Tensor) -> Tensor:
    """Overwrite every element with 0."""
    return call_in_place(overwriting._zero, self, write=lambda array: array.fill(0))


def fill_(self: Tensor, value: Any) -> Tensor:
    """Overwrite every element with ``value``, a number or a 0-d tensor.

    Raises:
        RuntimeError: ``value`` has dimensions, or the tensor cannot hold it.
    """
    if isinstance(value, Tensor) and value.ndim:
        raise RuntimeError(
            "fill_ only supports 0-dimension value tensor but got tensor with "
            f"{value.ndim} dimensions."
        )
    value = as_operand(value)
    value = _apart(value) if isinstance(value, Tensor) else _held(self, value)
    return call_in_place(overwriting._fill, self, value)


def _apart(value: Any) -> Any:
    """``value``; a view of one element is read before its memory may be written to."""
    is_single = isinstance(value, Tensor) and not value.ndim
    return clone(value) if is_single and value._view is not None else value


def copy_(self: Tensor, source: Any, non_blocking: bool = False) -> Tensor:
    """Overwrite with ``source``, broadcast and converted to this dtype.

    Raises:
        RuntimeError: the shape of ``source`` does not broadcast to this one.
    """
    source = _apart(to_device(as_tensor_operand(source), self.device))
    if source.shape != self.shape:
        _check_broadcast(source.shape, self.shape)
    elif source is self:
        return self
    return call_in_place(overwriting._copy, self, source)


def _check_broadcast(shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    lead = len(target) - len(shape)
    if lead < 0:
        raise RuntimeError(
            f"The number of sizes of the source, {shape}, must not be greater than the number of "
            f"dimensions of the destination, {target}"
        )
    for have, wanted in zip(shape, target[lead:], strict=True):
        if have not in (1, wanted):
            raise RuntimeError(
                f"The expanded size of the tensor ({wanted}) must match the existing size ({have})."
                f" Target sizes: {list(target)}. Tensor sizes: {list(shape)}"
            )


def masked_fill_(self: Tensor, mask: Tensor, value: Any) -> Tensor:
    """``masked_fill`` in place; recorded like it.

    Raises:
        RuntimeError: ``mask`` is not boolean, ``value`` has dimensions, or a shape does not fit.
    """
    _, mask, value = overwriting.masked_fill_operands(self, mask, value)
    _check_broadcast(mask.shape, self.shape)
    return call_in_place(overwriting._masked_fill, self, mask, _apart(value))


def index_put_(self: Tensor, indices: Any, values: Any, accumulate: bool = False) -> Tensor:
    """``self[indices] = values`` for a tuple of index tensors; returns self.

    With ``accumulate`` the values are added to the old ones, also at repeated indices.
    """
    if accumulate:
        return copy_(self, overwriting.index_put(self, indices, values, accumulate=True))
    setitem(self, tuple(slice(None) if i is None else i for i in indices), values)
    return self


def setitem(self: Tensor, key: Any, value: Any) -> None:
    """``self[key] = value``, broadcast and converted to this dtype; differentiable in both.

    Raises:
        IndexError: an index is out of range.
        RuntimeError: the shape of ``value`` does not fit, or the tensor cannot hold it.
    """
    plain, indices = split_key(key)
    if indices:
        self, plain = selected(self, plain, indices)
    value = as_operand(value)
    value = value if isinstance(value, Tensor) else _held(self, value)
    if not indices:
        place = getitem(self, plain)
        copy_(place, _without_leading_ones(value, place.ndim))
        return
    indices = [to_device(index, self.device) for index in indices]
    value = to_device(value, self.device) if value.ndim == 0 else value
    shape = _shape_of_part(self, plain, indices)
    value = _without_leading_ones(cast(value, self.dtype), len(shape))
    _check_broadcast(value.shape, shape)
    call_in_place(
        overwriting._index_put,
        self,
        value,
        *indices,
        write=lambda array, value, *at: namespace_for(array).assign_index(array, value, plain, at),
        key=plain,
    )


def _held(tensor: Tensor, number: Any) -> Tensor:
    """``number`` without dimensions, in the dtype of ``tensor``."""
    return beside(tensor, np.asarray(stored(number, tensor._array.dtype), tensor._array.dtype))


def _shape_of_part(tensor: Tensor, key: tuple[Any, ...], indices: list[Tensor]) -> tuple[int, ...]:
    with on(tensor.device):
        xp = namespace_for(tensor._array)
        return xp.getitem(tensor._array, key, [index._array for index in indices]).shape  # type: ignore[no-any-return]


def _without_leading_ones(value: Tensor, ndim: int) -> Tensor:
    """``value`` with at most ``ndim`` dimensions, if the extra leading ones have length 1."""
    extra = value.ndim - ndim
    if extra > 0 and value.shape[:extra] == (1,) * extra:
        return reshape(value, value.shape[extra:])
    return value


def _clamp_min(self: Tensor, min: Any) -> Tensor:
    """Set elements that are smaller than ``min`` to ``min``, in place."""
    return clamp_(self, min)


def _clamp_max(self: Tensor, max: Any) -> Tensor:
    """Set elements that are larger than ``max`` to ``max``, in place."""
    return clamp_(self, None, max)


METHODS: dict[str, Callable[..., Any]] = {
    "add_": _scaled("add", np.add),
    "sub_": _scaled("sub", np.subtract),
    "mul_": _binary("mul", np.multiply),
    "div_": div_,
    "floor_divide_": _binary("floor_divide", np.floor_divide, of_reals=True),
    "remainder_": _binary("remainder", np.remainder, of_reals=True),
    "arctan2_": _binary("arctan2", np.arctan2, true_division=True),
    "pow_": pow_,
    "lerp_": lerp_,
    "clamp_": clamp_,
    "clip_": clamp_,
    "clamp_min_": _clamp_min,
    "clamp_max_": _clamp_max,
    "neg_": _unary("neg", np.negative),
    "abs_": abs_,
    "square_": _unary("square", np.square),
    "sign_": _unary("sign", np.sign),
    "sgn_": _unary("sgn"),
    "trunc_": _unary("trunc", np.trunc),
    "fix_": _unary("trunc", np.trunc),
    "floor_": _unary("floor", np.floor),
    "ceil_": _unary("ceil", np.ceil),
    "round_": round_,
    "relu_": _unary("relu", lambda array, **out: np.maximum(array, 0, **out)),
    "rsqrt_": _unary("rsqrt", floating=True),
    "sigmoid_": _unary("sigmoid", floating=True),
    "erf_": _unary("erf", floating=True),
    "zero_": zero_,
    "fill_": fill_,
    "copy_": copy_,
    "masked_fill_": masked_fill_,
    "index_put_": index_put_,
    "bitwise_and_": _unrecorded("bitwise_and", np.bitwise_and),
    "bitwise_or_": _unrecorded("bitwise_or", np.bitwise_or),
    "bitwise_xor_": _unrecorded("bitwise_xor", np.bitwise_xor),
    "bitwise_not_": _unrecorded("bitwise_not", np.invert),
    "__setitem__": setitem,
}
METHODS |= {
    f"{name}_": _unary(name, getattr(np, name), floating=True)
    for name in (
        "sqrt",
        "reciprocal",
        "exp",
        "expm1",
        "log",
        "log1p",
        "sin",
        "cos",
        "tan",
        "arcsin",
        "arccos",
        "arctan",
        "sinh",
        "cosh",
        "tanh",
        "arcsinh",
        "arccosh",
        "arctanh",
        "exp2",
        "log2",
        "log10",
    )
}
METHODS |= {
    f"a{name}_": METHODS[f"arc{name}_"] for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")
}
METHODS |= {
    "absolute_": METHODS["abs_"],
    "atan2_": METHODS["arctan2_"],
    "multiply_": METHODS["mul_"],
    "divide_": METHODS["div_"],
    "subtract_": METHODS["sub_"],
    "negative_": METHODS["neg_"],
}
