"""What PyTorch gives for samples of its database, kept so that a machine without it tests them.

``recorded.json`` holds of each operator that is here the verdict (see ``verdict``) and a few calls:
their arguments, and what PyTorch gives. Arrays are bytes, so that no digit is lost.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.operator_database import database
from tests.operator_database.comparison import Call, arrays_of, attempt, derivatives, difference
from tests.operator_database.database import (
    CannotBeHad,
    converted,
    function_for,
    is_wrapped,
    plain_function,
)
from tests.operator_database.verdict import Verdict

FILE = Path(__file__).with_name("recorded.json")

#: Calls of each entry in float64 and in each other dtype, wrong ones, and elements of their arrays.
RECORDED_MOST, RECORDED_FEW, RECORDED_WRONG, LARGEST = 3, 1, 4, 700
#: Dtypes that NumPy has no arrays of.
WITHOUT_NUMPY = ("bfloat16", "complex32")
DTYPES = ("float32", "complex128", "int64", "bool")


def calls_of(torch: Any, name: str, entries: list[Any]) -> Iterator[dict[str, Any]]:
    """The calls that are kept, each with what PyTorch gives."""
    for entry in entries:
        for sample in database.samples(entry, torch.float64, RECORDED_MOST):
            yield from _recorded(torch, name, entry, sample, has_gradient=entry.supports_autograd)
        for dtype in DTYPES:
            for sample in database.samples(entry, getattr(torch, dtype), RECORDED_FEW):
                yield from _recorded(torch, name, entry, sample, has_gradient=False)
        for at, sample in enumerate(database.wrong_arguments(entry)):
            if at < RECORDED_WRONG:
                yield from _recorded(torch, name, entry, sample, has_gradient=False)


def _recorded(
    torch: Any, name: str, entry: Any, sample: Call, *, has_gradient: bool
) -> Iterator[dict[str, Any]]:
    function = plain_function(torch, name)
    if "out" in sample[1]:
        return
    try:
        args, kwargs = converted(sample, torch, torch)
        text = {"args": encode(plain(args)), "kwargs": encode(plain(kwargs))}
        found = attempt(lambda: function(*args, **kwargs))
        if is_wrapped(entry) and not _is_the_same(torch, name, entry, sample, found):
            return
        if isinstance(found, Exception):
            found = {"error": builtin_class(found)}
        else:
            found = {"result": encode(arrays_of(found))}
            if has_gradient and not database.is_random(name, kwargs):
                again = converted(sample, torch, torch)
                gradient = attempt(lambda: derivatives(torch, function, again, 1))
                if not isinstance(gradient, Exception):
                    found["gradient"] = encode(gradient)
    except (CannotBeHad, TypeError):
        return
    yield {**text, **found}


def _is_the_same(torch: Any, name: str, entry: Any, sample: Call, found: Any) -> bool:
    """Whether the function that the entry has around the operator gives what the operator gave."""
    args, kwargs = converted(sample, torch, torch)
    wrapped = attempt(lambda: function_for(torch, torch, name, entry)(*args, **kwargs))
    if isinstance(found, Exception) or isinstance(wrapped, Exception):
        return False
    return not difference(arrays_of(found), arrays_of(wrapped))


def plain(value: Any) -> Any:
    """Arguments with arrays in place of tensors: lists stay lists, which is another index."""
    if isinstance(value, list | tuple):
        return type(value)(plain(item) for item in value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return arrays_of(value)


def builtin_class(error: BaseException) -> str:
    """The name of the first of Python's own classes that ``error`` is of."""
    return next(kind.__name__ for kind in type(error).mro() if kind.__module__ == "builtins")


def write(
    verdicts: list[Verdict], calls: dict[str, list[dict[str, Any]]], *, keep: bool = False
) -> None:
    """Keep them, a line for each operator; ``keep``: and those of others that were kept."""
    lines = json.loads(FILE.read_text()) if keep else {}
    for verdict in verdicts:
        entry: dict[str, Any] = {"is_here": verdict.is_here}
        if verdict.is_here:
            entry |= {"tried": verdict.tried, "right": verdict.right, "differs": verdict.differs}
            packed = zlib.compress(json.dumps(calls[verdict.name]).encode(), 9)
            entry["calls"] = base64.b85encode(packed).decode()
        lines[verdict.name] = entry
    text = ",\n".join(f"{json.dumps(name)}: {json.dumps(lines[name])}" for name in sorted(lines))
    FILE.write_text("{\n" + text + "\n}\n")


def read() -> tuple[list[Verdict], dict[str, str]]:
    """The verdicts, and the packed calls by operator."""
    entries = json.loads(FILE.read_text())
    packed = {name: entry.pop("calls") for name, entry in entries.items() if "calls" in entry}
    return [Verdict(name, **entry) for name, entry in entries.items()], packed


def unpacked(calls: str) -> list[dict[str, Any]]:
    """The calls of one operator, with arrays."""
    return [
        {key: value if key in ("error", "point") else decode(value) for key, value in call.items()}
        for call in json.loads(zlib.decompress(base64.b85decode(calls)))
    ]


def encode(value: Any) -> Any:
    """``value`` as what JSON can hold.

    Raises:
        CannotBeHad: it is of a type that no call is recorded with, or large.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, np.ndarray):
        if value.size > LARGEST or value.dtype.kind not in "biufc":
            raise CannotBeHad(f"{value.size} elements")
        data = base64.b85encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": data, "dtype": value.dtype.str, "shape": list(value.shape)}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [encode(item) for item in value]}
    if isinstance(value, dict):
        return {"items": {key: encode(item) for key, item in value.items()}}
    if type(value).__name__ == "dtype":
        name = str(value).removeprefix("torch.")
        if name in WITHOUT_NUMPY:
            raise CannotBeHad(name)
        return {"name": name}
    raise CannotBeHad(type(value).__name__)


def decode(text: Any) -> Any:
    """The value that :func:`encode` wrote; a dtype as its name in ``Named``."""
    if isinstance(text, list):
        return [decode(item) for item in text]
    if not isinstance(text, dict):
        return text
    if "float" in text:
        return float.fromhex(text["float"])
    if "complex" in text:
        return complex(*(float.fromhex(part) for part in text["complex"]))
    if "array" in text:
        data = base64.b85decode(text["array"])
        return np.frombuffer(data, text["dtype"]).reshape(text["shape"]).copy()
    if "tuple" in text:
        return tuple(decode(item) for item in text["tuple"])
    if "items" in text:
        return {key: decode(item) for key, item in text["items"].items()}
    return Named(text["name"])


class Named(str):
    """The name of a dtype of the library."""

    __slots__ = ()


def for_library(value: Any, library: Any) -> Any:
    """``value`` with tensors of ``library`` in place of arrays."""
    if isinstance(value, np.ndarray):
        return library.from_numpy(value.copy())
    if isinstance(value, Named):
        return getattr(library, value)
    if isinstance(value, list | tuple):
        return type(value)(for_library(item, library) for item in value)
    if isinstance(value, dict):
        return {key: for_library(item, library) for key, item in value.items()}
    return value
