"""What a Function's backward finds around it and the caller can change at any time: brought along.

Captured where a backward with Functions is handed over, of the calling thread; taken over by a
worker before it runs a task with Functions. Unlike ``environment``, which is for a worker's life.
What belongs to C libraries is not seen: floating-point modes, a time zone, the state of others.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from typing import Any, NamedTuple

import numpy as np


class Surroundings(NamedTuple):
    """All of it is plain data.

    Attributes:
        directory: the working directory; None if there is none any more.
        recursion_limit, int_digits: of the interpreter.
        decimal: the arguments of a ``decimal.Context``.
        locale: of all categories, in the words of ``locale.setlocale``; None: never looked at.
        buffer_size: of ufuncs (elements): it decides how sums of converted arrays are rounded.
        print_options: of NumPy, but for functions among them.
    """

    directory: str | None
    recursion_limit: int
    int_digits: int
    decimal: tuple[Any, ...] | None
    locale: str | None
    buffer_size: int
    print_options: dict[str, Any]


_last: tuple[Surroundings | None, bytes] = (None, b"")


def capture_surroundings() -> bytes:
    """Those of this thread, pickled (they travel from client to worker only)."""
    global _last
    known, data = _last
    found = _surroundings()
    if found != known:
        data = pickle.dumps(found)
        _last = found, data
    return data


def take_over_surroundings(data: bytes) -> None:
    """Make this thread's what ``capture_surroundings`` found in another process.

    Raises:
        OSError: the working directory cannot be entered.
    """
    found: Surroundings = pickle.loads(data)
    if found.directory is not None:
        os.chdir(found.directory)
    sys.setrecursionlimit(found.recursion_limit)
    sys.set_int_max_str_digits(found.int_digits)
    if found.decimal is not None:
        import decimal

        decimal.setcontext(decimal.Context(*found.decimal))
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
        None if decimal is None else decimal.getcontext().__reduce__()[1],
        None if locale is None else locale.setlocale(locale.LC_ALL),
        np.getbufsize(),
        {name: value for name, value in np.get_printoptions().items() if name not in _FUNCTIONS},
    )


#: Print options that are functions, which may not travel.
_FUNCTIONS = ("formatter", "override_repr")
