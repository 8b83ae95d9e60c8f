"""Which argument of a call is of a wrong type: looked for after the call has failed, by the
annotations of the function, so that calls that succeed pay nothing."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from mpgrad.base.dtype import DType
from mpgrad.recording.tensors.of_pytorch import kind_of, mend
from mpgrad.recording.tensors.tensor import Tensor


def wrong_argument(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> TypeError | None:
    """PyTorch's error for the first argument that is of another type than ``function`` says."""
    named = _parameters(function)
    given = [(at, *parameter) for at, parameter in enumerate(named, 1)][: len(args)]
    values = [*args[: len(given)], *(kwargs[name] for name, _ in named if name in kwargs)]
    given += [(0, name, kinds) for name, kinds in named if name in kwargs]
    for (at, name, kinds), value in zip(given, values, strict=True):
        if kinds and not any(_KINDS[kind](value) for kind in kinds):
            where = f"'{name}' (position {at})" if at else f"'{name}'"
            return TypeError(
                f"{function.__name__}(): argument {where} must be "
                f"{_WORDS.get(kinds[0], kinds[0])}, not {kind_of(value)}{mend(value)}"
            )
    return None


@functools.cache
def _parameters(function: Callable[..., Any]) -> list[tuple[str, tuple[str, ...]]]:
    """The parameters that can be given by position, with the kinds of values that they take."""
    found = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            break
        found.append((parameter.name, _kinds_of(parameter.name, str(parameter.annotation))))
    return found


def _kinds_of(name: str, annotation: str) -> tuple[str, ...]:
    """The kinds that an annotation names; none if it says too little."""
    if annotation == "Any":
        return _OF_NAMES.get(name, ())
    kinds = tuple(re.split(r" \| (?![^\[]*\])", annotation))
    return kinds if all(kind in _KINDS for kind in kinds) else ()


def _is_int(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.ndim == 0 and value.dtype.kind in "iu"
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | complex | np.generic) or (
        isinstance(value, Tensor) and value.ndim == 0
    )


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray | np.generic)


def _are_ints(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(v is None or _is_int(v) for v in value)


_KINDS: dict[str, Callable[[Any], bool]] = {
    "Tensor": _is_tensor,
    "Number": _is_number,
    "dtype": lambda value: isinstance(value, DType | np.dtype | type | str),
    "None": lambda value: value is None,
    "int": _is_int,
    "float": _is_number,
    "bool": lambda value: isinstance(value, bool | np.bool_),
    "str": lambda value: isinstance(value, str),
    "Sequence[Tensor]": lambda value: (
        isinstance(value, tuple | list) and all(map(_is_tensor, value))
    ),
    "Sequence[Tensor | None]": lambda value: isinstance(value, tuple | list),
    **dict.fromkeys(
        ("Sequence[int]", "tuple[int]", "tuple[int, int]", "Pair", "Triple"), _are_ints
    ),
}
_WORDS = {
    **dict.fromkeys(("Sequence[int]", "tuple[int]", "Pair", "Triple"), "tuple of ints"),
    "Sequence[Tensor]": "tuple of Tensors",
}
#: What parameters of these names take where nothing else is said.
_OF_NAMES = {
    **dict.fromkeys(("input", "other"), ("Tensor", "Number")),
    "dtype": ("dtype", "None"),
    **dict.fromkeys(
        ("dim", "dims", "size", "shape", "s", "shifts"), ("int", "Sequence[int]", "None")
    ),
    **dict.fromkeys(
        ("kernel_size", "stride", "padding", "dilation", "output_size"),
        ("int", "Sequence[int]", "None", "str"),
    ),
    **dict.fromkeys(
        ("start", "end", "step", "value", "fill_value", "exponent", "min", "max", "q", "tol"),
        ("Number", "Tensor", "None"),
    ),
}
