"""The dtype of an operator's computation: PyTorch's rules, where they differ from NumPy's.

Operands are Tensors, NumPy arrays and Python scalars. A tensor with dimensions outweighs a 0-d
tensor, which outweighs a Python scalar, within one category (bool < integer < floating); a higher
category wins always (PyTorch's documentation, "Type promotion").
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from mpgrad.base.dtype import DEFAULTS, DType, default_float
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.of_pytorch import kind_of, mend
from mpgrad.recording.tensors.tensor import Tensor

_CATEGORY = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


def _in_dtype(xp: Any, x: Any, dtype: np.dtype[Any]) -> Any:
    """``x`` in ``dtype``; if that is real, the real part of complex numbers."""
    if x.dtype.kind == "c" and dtype.kind not in "cb":
        x = xp.real(x)
    return xp.astype(x, dtype)


_to_copy = operator(
    "to_copy",
    lambda xp, input, *, dtype: _in_dtype(xp, input, dtype),
    input=lambda xp, grad, input_dtype: _in_dtype(xp, grad, input_dtype),
)


def cast(input: Tensor, dtype: Any) -> Tensor:
    """``input`` in ``dtype``: a differentiable copy, or ``input`` itself if it has it already."""
    dtype = np.dtype(dtype)
    if input._array.dtype == dtype:
        return input
    if input._array.dtype.kind == "c" and dtype.kind not in "cb":
        warnings.warn(
            "Casting complex values to real discards the imaginary part", UserWarning, stacklevel=3
        )
    return call(_to_copy, input, dtype=dtype)


def as_operand(value: Any) -> Any:
    """``value`` as an operator takes it: a Tensor or a Python scalar.

    Raises:
        TypeError: it is neither a Tensor, an array nor a number.
    """
    if isinstance(value, Tensor) or type(value) in (float, int, bool):
        return value
    if isinstance(value, np.ndarray):
        return Tensor(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, int | float | complex):
        return value
    raise TypeError(
        f"expected a Tensor, a NumPy array or a number, but got {kind_of(value)}{mend(value)}"
    )


def stored(value: Any, dtype: np.dtype[Any]) -> Any:
    """The Python number that an element of ``dtype`` holds when ``value`` is written into it.

    Negative numbers wrap around in unsigned integers; fractions are cut off in integers.

    Raises:
        RuntimeError: the number is out of range, or complex and ``dtype`` is not.
    """
    if dtype.kind == "b":
        return bool(value)
    if dtype.kind == "c":
        return complex(value)
    if not (isinstance(value, complex) and value.imag):
        real = value.real if isinstance(value, complex) else value
        if dtype.kind == "f":
            limit = float(np.finfo(dtype).max)
            if not math.isfinite(real) or -limit <= real <= limit:
                return float(real)
        elif math.isfinite(real):
            limits = np.iinfo(dtype)
            whole = int(real)
            if min(limits.min, -limits.max) <= whole <= limits.max:
                return whole % (limits.max + 1) if dtype.kind == "u" else whole
    raise RuntimeError(f"value {value} cannot be converted to type {dtype} without overflow")


def as_tensor_operand(value: Any) -> Tensor:
    """``value`` as a Tensor; a Python scalar becomes 0-d of the default dtype of its category."""
    value = as_operand(value)
    if isinstance(value, Tensor):
        return value
    return Tensor(np.asarray(value, DEFAULTS[_scalar_category(value)]))


def floating(input: Any) -> Tensor:
    """``input`` as a Tensor of floating dtype: integers become the default one."""
    tensor = as_tensor_operand(input)
    return tensor if tensor._array.dtype.kind in "fc" else cast(tensor, default_float())


def require_tensors(name: str, **arguments: Any) -> None:
    """Raise if one of the arguments of ``name`` is a Python number, where PyTorch takes none.

    Raises:
        TypeError: that is so.
    """
    for argument, value in arguments.items():
        if not isinstance(value, Tensor | np.ndarray | np.generic):
            raise TypeError(
                f"{name}(): argument '{argument}' must be Tensor, not {type(value).__name__}"
            )


def require_numbers(name: str, **arguments: Any) -> None:
    """Raise if one of the arguments of ``name`` is no Python number (a 0-d tensor is one).

    Raises:
        TypeError: that is so.
    """
    for argument, value in arguments.items():
        if not isinstance(value, int | float | complex | np.generic) and not (
            isinstance(value, Tensor) and value.ndim == 0
        ):
            raise TypeError(
                f"{name}(): argument '{argument}' must be Number, not {type(value).__name__}"
            )


def refuse_complex(name: str, *values: Any) -> None:
    """Raise if a value is complex: ``name`` orders numbers, or is not defined for complex ones.

    Raises:
        NotImplementedError: as in PyTorch.
    """
    for value in values:
        if isinstance(value, Tensor):
            if value._array.dtype.kind == "c":
                raise NotImplementedError(
                    f"{name} is not implemented for complex numbers ({value._array.dtype})"
                )
        elif isinstance(value, complex):
            raise NotImplementedError(f"{name} is not implemented for complex numbers ({value})")


def refuse_bool(name: str, *values: Any) -> None:
    """Raise if all values are boolean, for which ``name`` is not defined.

    Raises:
        NotImplementedError: as in PyTorch.
    """
    if result_dtype(*values).kind == "b":
        raise NotImplementedError(f"{name} is not implemented for bool")


def promote_types(first: np.dtype[Any], second: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of a result of two tensors with dimensions: integers never make floats wider."""
    chosen = _torch_integers([first, second])
    return np.promote_types(chosen[0], chosen[-1])


def operands(a: Any, b: Any, *, float_result: bool = False) -> tuple[Any, Any]:
    """Bring two operands to one dtype; Python scalars stay scalars.

    Args:
        float_result: integers become the default floating dtype (true division).

    Raises:
        TypeError: both are numbers, or one is something else than a Tensor, an array and a number.
    """
    if isinstance(a, Tensor):
        dtype = a._array.dtype
        if dtype.kind == "f":
            if type(b) is float or type(b) is int:
                return a, b
            if isinstance(b, Tensor) and b._array.dtype == dtype:
                return a, b
    a, b = as_operand(a), as_operand(b)
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        raise TypeError(f"one of two operands must be a Tensor, not {a!r} and {b!r}")
    dtype = result_dtype(a, b)
    if float_result and dtype.kind not in "fc":
        dtype = default_float()
    return _convert(a, dtype), _convert(b, dtype)


def real_tensors(name: str, a: Any, b: Any, *, float_result: bool = False) -> tuple[Tensor, Tensor]:
    """Two operands of ``name`` as Tensors of one dtype that is not complex; see ``operands``.

    Raises:
        TypeError: both are numbers, or one is something else than a Tensor, an array and a number.
        NotImplementedError: one is complex.
    """
    pair = operands(a, b, float_result=float_result)
    refuse_complex(name, *pair)
    dtype = next(x.dtype for x in pair if isinstance(x, Tensor))
    first, second = (x if isinstance(x, Tensor) else Tensor(np.asarray(x, dtype)) for x in pair)
    return first, second


def result_dtype(*values: Any) -> np.dtype[Any]:
    """The dtype of an elementwise result of Tensors and Python scalars."""
    best: np.dtype[Any] | None = None
    # From the weightiest kind of operand to the lightest.
    for dtypes in _by_weight(values):
        for dtype in dtypes[1:]:
            dtypes[0] = np.promote_types(dtypes[0], dtype)
        if dtypes and (best is None or _CATEGORY[dtypes[0].kind] > _CATEGORY[best.kind]):
            # A complex operand of less weight makes the result complex, but not less precise.
            is_precise = best is not None and best.kind == "f" and dtypes[0].kind == "c"
            best = np.result_type(best, np.complex64) if is_precise else dtypes[0]
    if best is None:
        raise TypeError("no operand to take a dtype from")
    return best


def _by_weight(values: tuple[Any, ...]) -> tuple[list[np.dtype[Any]], ...]:
    dimensioned, zero_d, scalars = [], [], []
    for value in values:
        if not isinstance(value, Tensor):
            scalars.append(DEFAULTS[_scalar_category(value)])
        elif value._array.ndim:
            dimensioned.append(value._array.dtype)
        else:
            zero_d.append(value._array.dtype)
    return _torch_integers(dimensioned), _torch_integers(zero_d), _torch_integers(scalars)


def _torch_integers(dtypes: list[np.dtype[Any]]) -> list[np.dtype[Any]]:
    """If there are floating or complex dtypes, they alone decide; then int64 does not count."""
    lowest = min(2, max((_CATEGORY[dtype.kind] for dtype in dtypes), default=0))
    return [dtype for dtype in dtypes if _CATEGORY[dtype.kind] >= lowest]


def _scalar_category(value: Any) -> int:
    if isinstance(value, bool):
        return 0
    if isinstance(value, int):
        return 1
    return 2 if isinstance(value, float) else 3


def _convert(value: Any, dtype: np.dtype[Any]) -> Any:
    return cast(value, dtype) if isinstance(value, Tensor) else wrapped(value, dtype)


def wrapped(value: Any, dtype: np.dtype[Any]) -> Any:
    """A Python number as an operand of ``dtype``: one that an integer cannot hold wraps around."""
    if dtype.kind not in "iu" or not isinstance(value, int):
        return value
    limits = np.iinfo(dtype)
    if limits.min <= value <= limits.max:
        return value
    return (value - int(limits.min)) % 2**limits.bits + int(limits.min)


def check_cast(dtype: DType | np.dtype[Any], tensor: Tensor) -> None:
    """Raise if a result of ``dtype`` may not be written into ``tensor``.

    Raises:
        RuntimeError: it is of a higher category (bool, integer, floating, complex).
    """
    dtype, have = np.dtype(dtype), tensor._array.dtype
    if not can_cast(dtype, have):
        raise RuntimeError(f"result type {dtype} can't be cast to the desired output type {have}")


def can_cast(dtype: np.dtype[Any], to: np.dtype[Any]) -> bool:
    """Whether ``to`` is of the category of ``dtype`` or a higher one (bool, integer, floating,
    complex)."""
    if dtype.kind == to.kind or to.kind == "c":
        return True
    return to.kind != "b" and _CATEGORY[dtype.kind] <= max(_CATEGORY[to.kind], 1)
