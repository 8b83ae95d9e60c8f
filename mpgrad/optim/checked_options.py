"""Options of optimizers and schedulers: each must be of the type that the constructor's annotation
names. A text, an array, None or nan in place of a number would fail far away, or not at all."""

from __future__ import annotations

import functools
import inspect
import math
import reprlib
import types
from collections.abc import Iterable
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from mpgrad.recording.tensors.tensor import Tensor


def check_options(kind: type, options: dict[str, Any]) -> None:
    """Check values by their names.

    Args:
        kind: the class that the options are of, which the error names.
        options: values by the names of the constructor's arguments; other names are not checked.

    Raises:
        TypeError: a value is of another type than the annotation says.
        ValueError: a number is nan, or there are more or fewer numbers than wanted.
    """
    hints = _hints(kind)
    for name, value in options.items():
        if name in hints:
            _check(f"{kind.__name__}: {name}", hints[name], value)


def check_arguments(kind: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """``check_options`` for the arguments of a constructor; it raises by itself where they do not
    fit its parameters."""
    try:
        bound = inspect.signature(kind.__init__).bind(None, *args, **kwargs)  # type: ignore[misc]
    except TypeError:
        return
    check_options(kind, bound.arguments)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """The annotations of the library's own constructors: a user's may mean what they like."""
    for base in kind.__mro__:
        if "__init__" in vars(base) and base.__module__.startswith("mpgrad."):
            return get_type_hints(vars(base)["__init__"])
    return {}


def _check(where: str, hint: Any, value: Any) -> None:
    choices = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and type(None) in choices:
        return
    lists = [choice for choice in choices if get_origin(choice) in (tuple, list, Iterable)]
    if lists and (len(choices) == 1 or isinstance(value, tuple | list)):
        _check_items(where, lists[0], value)
        return
    for wanted, fits in (_SCALARS[choice] for choice in choices if choice in _SCALARS):
        if _is_number(value) and math.isnan(value):
            raise ValueError(f"{where} must be {wanted}, not nan")
        if not fits(value):
            raise TypeError(f"{where} must be {wanted}, not {_in_words(value)}")


def _check_items(where: str, hint: Any, value: Any) -> None:
    """Check the items of ``tuple[a, b]``, ``list[a]`` or ``Iterable[a]``."""
    hints = get_args(hint)
    if hints[0] not in (int, float) and not isinstance(hints[0], types.UnionType):
        return
    is_tuple = get_origin(hint) is tuple
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__") or np.ndim(value) > 1:
        words = f"{len(hints)} numbers" if is_tuple else "a list of numbers"
        raise TypeError(f"{where} must be {words}, not {_in_words(value)}")
    if not isinstance(value, tuple | list | np.ndarray):
        return
    if is_tuple and len(value) != len(hints):
        raise ValueError(f"{where} must be {len(hints)} numbers, but there are {len(value)}")
    for index, item in enumerate(value):
        _check(f"{where}[{index}]", hints[index if is_tuple else 0], item)


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype.kind in "iuf"
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    """Whether it is a whole number; ``30.0`` is one, as in PyTorch."""
    return _is_number(value) and (math.isinf(value) or int(value) == value)


_SCALARS = {
    float: ("a number", _is_number),
    int: ("an integer", _is_integer),
    bool: ("True or False", lambda value: isinstance(value, bool | np.bool_) or value in (0, 1)),
}


def _in_words(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, Tensor | np.ndarray):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    return f"{type(value).__name__} ({reprlib.repr(value)})"
