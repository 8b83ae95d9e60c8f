"""Which dtype comes of two values: all pairs of dtypes, of tensors with and without dimensions, and
of Python's numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from tests.torch_outcomes import Of

DTYPES = {
    "bool": "b",
    "uint8": "u1",
    "int8": "i1",
    "int16": "i2",
    "int32": "i4",
    "int64": "i8",
    "float16": "f2",
    "float32": "f4",
    "float64": "f8",
    "complex64": "c8",
    "complex128": "c16",
    # NumPy has none: it is said to be the next larger one.
    "complex32": "c8",
}
NUMBERS = (True, 2, 2.5, 1 + 2j)

#: What is tried, by name: functions of the library that give one of two values.
FUNCTIONS: dict[str, Callable[[Any], Callable[[Any, Any], Any]]] = {
    name: lambda T, name=name: getattr(T, name)  # type: ignore[misc]
    for name in (
        *("add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "pow", "atan2"),
        *("maximum", "minimum", "fmax", "eq", "lt", "ge", "logical_and", "bitwise_and"),
        *("bitwise_xor", "xlogy", "hypot", "copysign", "logaddexp"),
        *("isclose", "matmul", "outer", "result_type"),
    )
}
FUNCTIONS |= {
    "div trunc": lambda T: lambda a, b: T.div(a, b, rounding_mode="trunc"),
    "div floor": lambda T: lambda a, b: T.div(a, b, rounding_mode="floor"),
    "a + b": lambda T: lambda a, b: a + b,
    "a - b": lambda T: lambda a, b: a - b,
    "a / b": lambda T: lambda a, b: a / b,
    "a // b": lambda T: lambda a, b: a // b,
    "a % b": lambda T: lambda a, b: a % b,
    "a ** b": lambda T: lambda a, b: a**b,
    "a & b": lambda T: lambda a, b: a & b,
    "a < b": lambda T: lambda a, b: a < b,
    "a @ b": lambda T: lambda a, b: a @ b,
    "a += b": lambda T: lambda a, b: a.add_(b),
    "a -= b": lambda T: lambda a, b: a.sub_(b),
    "a *= b": lambda T: lambda a, b: a.mul_(b),
    "a /= b": lambda T: lambda a, b: a.div_(b),
    "a **= b": lambda T: lambda a, b: a.pow_(b),
    "a &= b": lambda T: lambda a, b: a.bitwise_and_(b),
    "a[0] = b": lambda T: _assigned,
    "where": lambda T: lambda a, b: T.where(T.tensor(True), a, b),
    "cat": lambda T: lambda a, b: T.cat([a, b]),
    "stack": lambda T: lambda a, b: T.stack([a, b]),
    "clamp min": lambda T: lambda a, b: T.clamp(a, min=b),
    "lerp": lambda T: lambda a, b: T.lerp(a, b, 0.5),
    "addcmul": lambda T: lambda a, b: T.addcmul(a, a, b),
    "masked_fill": lambda T: lambda a, b: T.masked_fill(a, T.tensor(True), b),
    "full_like": lambda T: lambda a, b: T.full_like(a, b),
    "mse_loss": lambda T: lambda a, b: T.nn.functional.mse_loss(a, b),
}


def _assigned(a: Any, b: Any) -> Any:
    a[0] = b
    return a


def _values(library: Any) -> dict[str, Callable[[], Any]]:
    """By its word, what makes each value anew."""
    values: dict[str, Callable[[], Any]] = {}
    for name, word in list(DTYPES.items())[:-1]:
        dtype = getattr(library, name)
        values[f"{word}[2]"] = lambda dtype=dtype: library.ones(2, dtype=dtype)
        values[f"{word}[]"] = lambda dtype=dtype: library.ones((), dtype=dtype)
    return values | {str(number): lambda number=number: number for number in NUMBERS}


def _word(result: Any) -> str:
    dtype = str(getattr(result, "dtype", result))
    return DTYPES.get(dtype.rpartition(".")[2], type(result).__name__)


def table(library: Any, function: Callable[[Any, Any], Any]) -> dict[str, str]:
    """By the word of the left value a line: for each right one the dtype, or the error's class."""
    values = _values(library)
    found = {}
    for left, make_left in values.items():
        words = []
        for right, make_right in values.items():
            if "[" not in left + right:
                continue
            try:
                with warnings.catch_warnings(), np.errstate(all="ignore"):
                    warnings.simplefilter("ignore")
                    words.append(_word(function(make_left(), make_right())))
            except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
                words.append("-")
        found[left] = " ".join(words)
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_dtype_is_pytorchs(name: str, of_torch: Of) -> None:
    here = table(mg, FUNCTIONS[name](mg))
    for oracle, there in of_torch(lambda torch: table(torch, FUNCTIONS[name](torch))):
        right = list(_values(mg))
        wrong = [
            f"{left}, {right[at]}: {mine} in place of {theirs}"
            for left, line in there.items()
            for at, (mine, theirs) in enumerate(zip(here[left].split(), line.split(), strict=True))
            if mine != theirs and theirs != "-"
        ]
        assert wrong == [], f"{oracle}: {wrong}"
