"""What a Function's backward finds around it and the caller can change at any time: brought along.

Captured where a backward with Functions is handed over, of the calling thread; taken over by a
worker before it runs a task with Functions. Unlike ``environment``, which is for a worker's life.
What belongs to C libraries is not seen: floating-point modes, a time zone, the state of others.
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
    """All of it is plain data.

    Attributes:
        directory: the working directory; None if there is none any more.
        recursion_limit, int_digits: of the interpreter.
        decimal: None: never imported.
        locale: of all categories, in the words of ``locale.setlocale``; None: the same.
        buffer_size: of ufuncs (elements): it decides how sums of converted arrays are rounded.
        print_options: of NumPy, but for functions among them.
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
    """Those of this thread, encoded."""
    global _last
    known, data = _last
    found = _surroundings()
    if found != known:
        data = msgspec.msgpack.encode(found)
        _last = found, data
    return data


def take_over_surroundings(data: bytes) -> None:
    """Make this thread's what ``capture_surroundings`` found in another process.

    Raises:
        OSError: the working directory cannot be entered.
        ProtocolError: the bytes are none.
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
    # What was not imported was not changed.
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

#: Print options that are functions, which may not travel.
_FUNCTIONS = ("formatter", "override_repr")
