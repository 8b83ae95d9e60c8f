"""StateFields: process state that a Function's backward may use and the caller may change.

They are captured on the calling thread when a graph with Functions is submitted, and a worker
takes them over before it runs a task with Functions. (``environment`` holds for a worker's whole
life.) The state of C libraries is not included: floating-point modes, a time zone, and so on.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec
import numpy as np

from mpgrad.base.dtype import DTYPES, default_float, set_default_dtype
from mpgrad.base.environ import (
    FIRST_ENVIRONMENT,
    Changes,
    changes_to_send,
    current_environment,
    set_environment,
    with_changes,
)
from mpgrad.base.print_options import OPTIONS
from mpgrad.errors import ProtocolError
from mpgrad.wire.code_pickles import class_that_came
from mpgrad.wire.environment import (
    FIRST_ARGUMENTS,
    added_path,
    current_arguments,
    current_directory,
    log_levels,
    set_added_path,
    set_arguments,
    set_log_levels,
)
from mpgrad.wire.packed_texts import optional_packed, optional_unpacked, pack_text, unpack_text

#: A command line with more bytes is sent only if it has changed.
ARGUMENTS_BYTES_MAX = 4096


class DecimalContext(msgspec.Struct, frozen=True, array_like=True):
    """The arguments of a ``decimal.Context`` without its flags; the traps are names."""

    prec: int
    rounding: str
    e_min: int
    e_max: int
    capitals: int
    clamp: int
    traps: tuple[str, ...]


class WarningFilter(msgspec.Struct, frozen=True, array_like=True):
    """One entry of ``warnings.filters``: patterns are text, the class is a module and a name."""

    action: str
    message: bytes | None
    category: tuple[bytes, bytes]
    module: bytes | None
    line: int


class StateFields(msgspec.Struct, frozen=True, array_like=True):
    """The state as plain data; bytes are texts of the system or of the user.

    Attributes:
        directory: the working directory; None if it does not exist.
        environment: what has changed in ``os.environ`` since ``FIRST_ENVIRONMENT``; None: gone.
        program_arguments: ``sys.argv``; None: ``FIRST_ARGUMENTS``.
        added_path: see ``environment.added_path``.
        log_levels: of the loggers that have one, by name; and what ``logging.disable`` was given.
        recursion_limit, int_digits: of the interpreter.
        decimal: the context; None if ``decimal`` is not imported.
        locale: of all categories, as ``locale.setlocale`` gives it; None if ``locale`` is not
            imported.
        buffer_size: of ufuncs (elements): it decides how sums of converted arrays are rounded.
        print_options: of NumPy, without those that are functions; texts as bytes.
        tensor_print_options: those of ``mg.set_printoptions``.
        default_dtype: the name of the dtype of Python floats in new tensors.
        special_errors: ``scipy.special.geterr()``; None if ``scipy.special`` is not imported.
        filters: of warnings, if one of them turns warnings into errors; else empty.
    """

    directory: bytes | None
    environment: Changes
    program_arguments: tuple[bytes, ...] | None
    added_path: tuple[tuple[bytes, ...], tuple[bytes, ...]]
    log_levels: tuple[dict[bytes, int], int]
    recursion_limit: int
    int_digits: int
    decimal: DecimalContext | None
    locale: str | None
    buffer_size: int
    print_options: dict[str, Any]
    tensor_print_options: dict[str, Any]
    default_dtype: str
    special_errors: dict[str, str] | None
    filters: tuple[WarningFilter, ...]


class CapturedState(NamedTuple):
    """The state around the user code of this thread.

    Attributes:
        data: the state, encoded.
        kept_here: what user code has set here and no other process can have, in words; empty:
            nothing.
        numpy_errors: see ``changed_numpy_errors``.
    """

    data: bytes
    kept_here: str
    numpy_errors: dict[str, str]


class _Seen(NamedTuple):
    """All of that as it is found, to be compared with what was found before; for the fields see
    ``StateFields``."""

    directory: bytes | None
    environment: dict[bytes, bytes]
    program_arguments: list[str] | None
    added_path: tuple[tuple[str, ...], tuple[str, ...]]
    log_levels: tuple[dict[str, int], int]
    recursion_limit: int
    int_digits: int
    #: The arguments of the thread's context, and of that of new threads.
    decimal: tuple[Any, ...] | None
    fresh_decimal: tuple[Any, ...] | None
    locale: str | None
    buffer_size: int
    #: ``np.geterr()``, ``np.get_printoptions()``: new dictionaries in each call.
    numpy_errors: Any
    print_options: Any
    tensor_print_options: dict[str, Any]
    default_dtype: str
    special_errors: dict[str, str] | None
    filters: list[Any]
    prints_unicode: bool


_last: tuple[_Seen, CapturedState] | None = None


def capture_state() -> CapturedState:
    """The state around the user code of this thread. Nearly always it is that of before."""
    global _last
    seen, last = _see(), _last
    if last is not None and last[0] == seen:
        return last[1]
    data = msgspec.msgpack.encode(_fields_of(seen))
    captured = CapturedState(data, _kept_here(seen), changed_numpy_errors(seen.numpy_errors))
    _last = seen, captured
    return captured


_NUMPY_ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}


def changed_numpy_errors(actions: Any) -> dict[str, str]:
    """How a thread handles floating-point errors, where that differs from NumPy's default.

    A worker cannot call the user's callback or order its printed lines: it warns instead.

    Args:
        actions: ``np.geterr()``.
    """
    return {
        kind: "warn" if action in ("call", "log", "print") else action
        for kind, action in actions.items()
        if action != _NUMPY_ERRORS[kind]
    }


def all_numpy_errors(changed: dict[str, str]) -> dict[str, str]:
    """The arguments of ``np.errstate`` for what ``changed_numpy_errors`` has found."""
    return {**_NUMPY_ERRORS, **changed}


def _kept_here(seen: _Seen) -> str:
    if not {"call", "log"}.isdisjoint(seen.numpy_errors.values()):
        return "what NumPy calls for floating-point errors (np.seterrcall)"
    if any(seen.print_options.get(name) for name in _FUNCTIONS):
        return "the functions that NumPy prints by (np.set_printoptions)"
    if seen.fresh_decimal is not None and _decimal_context(*seen.fresh_decimal) != _FRESH_DECIMAL:
        return "decimal.DefaultContext"
    return "" if seen.prints_unicode else "numpy.polynomial.set_default_printstyle"


def name_of_change(before: bytes, now: bytes) -> str:
    """The name of a difference between the ``data`` of two captured states; empty if there is none.
    A module that was imported in between and has its initial settings is no difference.
    """
    first, second = _decoder.decode(before), _decoder.decode(now)
    fresh = {"decimal": _FRESH_DECIMAL, "special_errors": None, "locale": second.locale}
    for name in StateFields.__struct_fields__:
        if name in ("added_path", "log_levels"):  # no result depends on them; imports change them
            continue
        old, new = getattr(first, name), getattr(second, name)
        if old is None and name in fresh:
            old = fresh[name]
            new = None if name == "special_errors" and set(new or ()) <= {"ignore"} else new
        if old != new:
            return f"the {name.replace('_', ' ')} of this process"
    return ""


def apply_state(data: bytes) -> None:
    """Apply the state that ``capture_state`` found in another process.

    Raises:
        OSError: the working directory cannot be entered.
        ProtocolError: the bytes are no state.
    """
    try:
        found = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"malformed captured state: {error}") from None
    if found.directory not in (None, current_directory()):
        os.chdir(os.fsdecode(found.directory))
    set_environment(with_changes(FIRST_ENVIRONMENT, found.environment))
    texts = found.program_arguments
    set_arguments(FIRST_ARGUMENTS if texts is None else [*map(unpack_text, texts)])
    first, last = [tuple(map(unpack_text, part)) for part in found.added_path]
    set_added_path(first, last)
    levels, disabled = found.log_levels
    set_log_levels({unpack_text(name): level for name, level in levels.items()}, disabled)
    sys.setrecursionlimit(found.recursion_limit)
    sys.set_int_max_str_digits(found.int_digits)
    if found.decimal is not None:
        import decimal

        prec, rounding, e_min, e_max, capitals, clamp, names = msgspec.structs.astuple(
            found.decimal
        )
        traps = [getattr(decimal, name) for name in names]
        decimal.setcontext(
            decimal.Context(prec, rounding, e_min, e_max, capitals, clamp, [], traps)
        )
    if found.locale is not None:
        import locale

        locale.setlocale(locale.LC_ALL, found.locale)
    np.setbufsize(found.buffer_size)
    np.set_printoptions(**_with_texts(found.print_options, bytes, unpack_text))
    vars(OPTIONS).update(found.tensor_print_options)
    set_default_dtype(DTYPES[np.dtype(found.default_dtype)])
    if found.special_errors is not None:
        is_as_imported = found.special_errors.items() <= _SPECIAL_ERRORS.items()
        if "scipy.special" in sys.modules or not is_as_imported:
            from scipy import special

            special.seterr(**found.special_errors)
    _set_filters(found.filters)


#: What ``scipy.special`` does about errors when it is imported, so that a worker need not import
#: it; older versions do not know all of them.
_SPECIAL_ERRORS = {
    **dict.fromkeys(
        (
            "singular",
            "underflow",
            "overflow",
            "slow",
            "loss",
            "no_result",
            "domain",
            "arg",
            "other",
        ),
        "ignore",
    ),
    "memory": "raise",
}


def _see() -> _Seen:
    """The state around this thread now."""
    # A module that is not imported has unchanged settings.
    modules = sys.modules
    decimal, locale = modules.get("decimal"), modules.get("locale")
    special, polynomials = modules.get("scipy.special"), modules.get("numpy.polynomial._polybase")
    return _Seen(
        current_directory(),
        current_environment(),
        current_arguments(),
        added_path(),
        log_levels(),
        sys.getrecursionlimit(),
        sys.get_int_max_str_digits(),
        None if decimal is None else decimal.getcontext().__reduce__()[1],
        None if decimal is None else decimal.DefaultContext.__reduce__()[1],
        None if locale is None else locale.setlocale(locale.LC_ALL),
        np.getbufsize(),
        np.geterr(),
        np.get_printoptions(),
        dict(vars(OPTIONS)),
        default_float().name,
        None if special is None else special.geterr(),
        list(warnings.filters),
        polynomials is None or polynomials.ABCPolyBase._use_unicode,
    )


def _fields_of(seen: _Seen) -> StateFields:
    return StateFields(
        seen.directory,
        changes_to_send(),
        _arguments_to_send(seen.program_arguments),
        (_packed(seen.added_path[0]), _packed(seen.added_path[1])),
        (
            {pack_text(name): level for name, level in seen.log_levels[0].items()},
            seen.log_levels[1],
        ),
        seen.recursion_limit,
        seen.int_digits,
        None if seen.decimal is None else _decimal_context(*seen.decimal),
        seen.locale,
        seen.buffer_size,
        {
            name: value
            for name, value in _with_texts(seen.print_options, str, pack_text).items()
            if name not in _FUNCTIONS
        },
        seen.tensor_print_options,
        seen.default_dtype,
        seen.special_errors,
        _filters(seen.filters),
    )


def _arguments_to_send(found: list[str] | None) -> tuple[bytes, ...] | None:
    if found is None:
        return None
    texts = _packed(found)
    is_long = sum(map(len, texts)) > ARGUMENTS_BYTES_MAX
    return None if is_long and found == FIRST_ARGUMENTS else texts


def _packed(texts: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(map(pack_text, texts))


def _filters(found: list[Any]) -> tuple[WarningFilter, ...]:
    if not any(action == "error" for action, *_ in found):
        return ()  # the client decides which warnings it shows
    return tuple(
        [
            WarningFilter(
                action,
                optional_packed(_text(message)),
                (pack_text(kind.__module__), pack_text(kind.__qualname__)),
                optional_packed(_text(module)),
                line,
            )
            for action, message, kind, module, line in found
        ]
    )


def _text(pattern: Any) -> str | None:
    return getattr(pattern, "pattern", pattern)


def _with_texts(options: dict[str, Any], kind: type, change: Callable[[Any], Any]) -> Any:
    """The same with each value of ``kind`` changed."""
    return {
        name: change(value) if isinstance(value, kind) else value for name, value in options.items()
    }


#: The filters that were set last, if one is for a class of the user's that has not come yet.
_incomplete: tuple[WarningFilter, ...] = ()


def complete_filters() -> None:
    """Set the caller's filters for classes that have come since."""
    if _incomplete:
        _set_filters(_incomplete)


def _set_filters(filters: tuple[WarningFilter, ...]) -> None:
    """Pass on every warning, except those that the caller's filters turn into errors."""
    global _incomplete
    _incomplete = ()
    warnings.resetwarnings()
    warnings.simplefilter("always")
    for found in reversed(filters):
        module, name = map(unpack_text, found.category)
        texts, where = optional_unpacked(found.message), optional_unpacked(found.module)
        kind = getattr(sys.modules.get(module), name, None) or class_that_came(module, name)
        if kind is None:
            _incomplete = filters
        if isinstance(kind, type):
            warnings.filters.insert(  # type: ignore[attr-defined]
                0,
                (
                    "error" if found.action == "error" else "always",
                    None if texts is None else re.compile(texts, re.IGNORECASE),
                    kind,
                    None if where is None else re.compile(where),
                    found.line,
                ),
            )


def _decimal_context(*parts: Any) -> DecimalContext:
    prec, rounding, e_min, e_max, capitals, clamp, _flags, traps = parts
    names = tuple([signal.__name__ for signal in traps])
    return DecimalContext(prec, rounding, e_min, e_max, capitals, clamp, names)


#: The context of a process that has just imported ``decimal``.
_FRESH_DECIMAL = DecimalContext(
    28, "ROUND_HALF_EVEN", -999999, 999999, 1, 0,
    ("InvalidOperation", "DivisionByZero", "Overflow"),
)  # fmt: skip
_decoder = msgspec.msgpack.Decoder(StateFields)

#: Print options that are functions, which cannot be sent.
_FUNCTIONS = ("formatter", "override_repr")
