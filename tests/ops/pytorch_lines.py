"""Lines of code for both libraries, and whether what they give is the same.

``pytorch_lines.txt`` has one line of code each, in which ``T`` is the library and ``F`` its
``nn.functional``; the last statement of a line is what it gives.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

LINES = Path(__file__).with_name("pytorch_lines.txt")

#: How closely values agree, by dtype; those of other dtypes are equal.
TOLERANCES = {"float16": 2e-3, "float32": 2e-5, "complex64": 2e-5}


def lines() -> list[str]:
    """The lines of code, without headings and blank lines."""
    found = LINES.read_text().splitlines()
    return [line for line in found if line and not line.startswith("#")]


def outcome(library: Any, line: str) -> Any:
    """What ``line`` gives with ``library`` as ``T``, in the words of JSON."""
    found = result(library, line)
    return {"error": _class_of(found)} if isinstance(found, Exception) else described(found)


def result(library: Any, line: str) -> Any:
    """What ``line`` gives with ``library`` as ``T``, or the exception."""
    *statements, last = line.split("; ")
    names: dict[str, Any] = {"T": library, "F": library.nn.functional}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for statement in statements:
                exec(statement, names)
            return eval(last, names)
        except Exception as error:
            return error


def _class_of(error: Exception) -> str:
    """The class of ``error``; of one that only a library has, the builtin that it is made from."""
    return next(kind.__name__ for kind in type(error).mro() if kind.__module__ == "builtins")


def described(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value.replace("mpgrad.", "").replace("torch.", "")
    if isinstance(value, complex):
        return [value.real, value.imag]
    if hasattr(value, "detach"):
        array = value.detach().numpy()
        values = [described(item) for item in array.reshape(-1).tolist()]
        return {"dtype": str(array.dtype), "shape": list(array.shape), "values": values}
    if isinstance(value, tuple | list):
        return [described(item) for item in value]
    return described(str(value))


def agree(here: Any, there: Any) -> bool:
    """Whether two outcomes say the same, up to rounding."""
    if isinstance(there, dict) and "dtype" in there:
        if not isinstance(here, dict) or {**here, "values": 0} != {**there, "values": 0}:
            return False
        close = TOLERANCES.get(there["dtype"], 1e-12)
        pairs = zip(_flat(here["values"]), _flat(there["values"]), strict=True)
        return all(_agree_numbers(a, b, close) for a, b in pairs)
    if isinstance(there, list):
        return (
            isinstance(here, list)
            and len(here) == len(there)
            and all(agree(a, b) for a, b in zip(here, there, strict=True))
        )
    if isinstance(there, float) and isinstance(here, float):
        return _agree_numbers(here, there, 1e-6)
    return type(here) is type(there) and bool(here == there)


def _flat(values: list[Any]) -> list[Any]:
    return [part for item in values for part in (item if isinstance(item, list) else [item])]


def _agree_numbers(here: float, there: float, close: float) -> bool:
    if here != here or there != there:
        return here != here and there != there
    return here == there or abs(here - there) <= close * abs(there)
