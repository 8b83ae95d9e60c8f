"""Surroundings: process state that a Function's backward may use and the caller may change.

They are captured on the calling thread when a graph with Functions is handed over, and a worker
takes them over before it runs a task with Functions. (``environment`` holds for a worker's whole
life.) The state of C libraries is not included: floating-point modes, a time zone, and so on.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

import msgspec
import numpy as np

from mpgrad.errors import ProtocolError


class DecimalContext(msgspec.Struct, frozen=True, array_like=True):
    """The arguments of a ``decimal.Context``, its signals by name."""

    prec: int
    rounding: str
    e_min: int
    e_max: int
    capitals: int
    clamp: int
    flags: tuple[str, ...]
    traps: tuple[str, ...]


class Surroundings(msgspec.Struct, frozen=True, array_like=True):
    """The surroundings as plain data.

    Attributes:
        directory: the working directory; None if it does not exist.
        recursion_limit, int_digits: of the interpreter.
        decimal: None if ``decimal`` was never imported.
        locale: of all categories, as ``locale.setlocale`` returns it; None: unchanged.
        buffer_size: of ufuncs, in elements: it decides how sums of converted arrays are rounded.
        print_options: of NumPy, without those that are functions.
    """

    directory: str | None
    recursion_limit: int
    int_digits: int
    decimal: DecimalContext | None
    locale: str | None
    buffer_size: int
    print_options: dict[str, Any]


_last: tuple[Surroundings | None, bytes] = (None, b"")


def capture_surroundings() -> bytes:
    """The surroundings of this thread, encoded."""
    global _last
    known, data = _last
    found = _surroundings()
    if found != known:
        data = msgspec.msgpack.encode(found)
        _last = found, data
    return data


def take_over_surroundings(data: bytes) -> None:
    """Apply surroundings that ``capture_surroundings`` found in another process.

    Raises:
        OSError: the working directory cannot be entered.
        ProtocolError: the bytes are no surroundings.
    """
    try:
        found = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"malformed surroundings: {error}") from None
    if found.directory is not None:
        os.chdir(found.directory)
    sys.setrecursionlimit(found.recursion_limit)
    sys.set_int_max_str_digits(found.int_digits)
    if found.decimal is not None:
        import decimal

        *numbers, flags, traps = msgspec.structs.astuple(found.decimal)
        signals = [[getattr(decimal, name) for name in names] for names in (flags, traps)]
        decimal.setcontext(decimal.Context(*numbers, *signals))
    if found.locale is not None:
        import locale

        locale.setlocale(locale.LC_ALL, found.locale)
    np.setbufsize(found.buffer_size)
    np.set_printoptions(**found.print_options)


def _surroundings() -> Surroundings:
    directory = None
    with contextlib.suppress(OSError):
        directory = os.getcwd()
    # A module that is not imported has unchanged settings.
    decimal, locale = sys.modules.get("decimal"), sys.modules.get("locale")
    return Surroundings(
        directory,
        sys.getrecursionlimit(),
        sys.get_int_max_str_digits(),
        None if decimal is None else _decimal_context(*decimal.getcontext().__reduce__()[1]),
        None if locale is None else locale.setlocale(locale.LC_ALL),
        np.getbufsize(),
        {name: value for name, value in np.get_printoptions().items() if name not in _FUNCTIONS},
    )


def _decimal_context(*parts: Any) -> DecimalContext:
    *numbers, flags, traps = parts
    names = [tuple([signal.__name__ for signal in signals]) for signals in (flags, traps)]
    return DecimalContext(*numbers, *names)


_decoder = msgspec.msgpack.Decoder(Surroundings)

#: Print options that are functions, which cannot be sent.
_FUNCTIONS = ("formatter", "override_repr")
