"""ArrayProgram: notes what is called on arrays while it is computed, as straight-line source.

Whoever computes gets ArrayProxies in place of arrays: each holds a real array and the name that it
has in the source. What they cannot do as a name alone (give a number, a truth, a list) is *read*:
the program does not hold for other values then, and whoever made it decides what happens.
"""

from __future__ import annotations

import functools
import keyword
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec

import numpy as np

from mpgrad.arrays.cpu.array_proxies import ArrayProxy, NumberProxy
from mpgrad.base.thread_state import PerThread

P = ParamSpec("P")

#: Functions that look at shapes, dtypes and memory only: what they give is no value of an array.
_OF_STRUCTURE = frozenset(
    {
        *("may_share_memory", "shares_memory", "shape", "ndim", "size", "result_type", "can_cast"),
        *("iscomplexobj", "isrealobj", "min_scalar_type", "common_type"),
    }
)
#: Functions whose results have a shape that follows from values.
_OF_DATA_SHAPE = frozenset(
    {
        *("nonzero", "flatnonzero", "argwhere", "unique", "extract", "compress", "trim_zeros"),
        *("setdiff1d", "union1d", "intersect1d", "setxor1d", "bincount", "histogram", "repeat"),
        *("array_equal", "array_equiv", "allclose"),
    }
)
#: Functions that write into their first argument.
_WRITING = frozenset(
    {"copyto", "put", "place", "putmask", "put_along_axis", "fill_diagonal", "assign_index"}
)
#: Attributes that say how an array lies, and nothing of what is in it.
_STRUCTURE = frozenset(
    {"shape", "dtype", "ndim", "size", "nbytes", "itemsize", "strides", "flags", "ctypes"}
)
#: Attributes that are further views.
_VIEWS = frozenset({"T", "mT", "real", "imag"})
#: Methods that give values away.
_READS = frozenset(
    {"item", "tolist", "tobytes", "tofile", "dump", "dumps", "nonzero", "data", "flat", "repeat"}
)

_LITERALS = frozenset({bool, int, str, type(None), type(Ellipsis)})
#: What a name gets that several things have.
_SUFFIX = re.compile(r"_\d+$")
_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


class Unreadable(Exception):
    """A value was asked for that is known only when the program runs."""


class ArrayProgram:
    """Source that computes again what was computed, of whatever values.

    Attributes:
        lines: the statements so far.
        known: what their free names stand for.
        is_given_up: nothing is noted any more; what ArrayProxies compute are real arrays again.
    """

    def __init__(self, known: dict[str, Any] | None = None) -> None:
        self.lines: list[str] = []
        self.known: dict[str, Any] = {} if known is None else known
        self.is_given_up = False
        #: Their programs' objects stay alive: so no other one can get their ids.
        self._names: dict[int, tuple[str, Any]] = {}
        self._count = 0
        #: The bytes of each result.
        self.nbytes: dict[str, int] = {}

    def read(self, what: str) -> None:
        """A value is asked for. What returns lets it be read.

        Raises:
            Unreadable: always; programs that go on without source say otherwise.
        """
        raise Unreadable(what)

    # ------------------------------------------------------------------ names

    def named(self, array: Any, name: str) -> Any:
        """``array``, which the source knows under ``name``."""
        return ArrayProxy(self, array, name)

    def bound(self, value: Any, hint: str = "c") -> str:
        """A name for an object that is the same in each run."""
        found = self._names.get(id(value))
        if found is None:
            plain = hint if _NAME.fullmatch(hint) and not keyword.iskeyword(hint) else "c"
            name = plain
            while name in self.known and self.known[name] is not value:
                self._count += 1
                name = f"{plain}_{self._count}"
            self.known[name] = value
            found = self._names[id(value)] = name, value
        return found[0]

    def fresh(self) -> str:
        """A name that nothing has."""
        self._count += 1
        return f"t{self._count}"

    def write(self, line: str) -> None:
        """One more statement."""
        if not self.is_given_up:
            self.lines.append(line)

    def text(self, value: Any) -> str:
        """``value`` as an expression."""
        kind = type(value)
        if kind is ArrayProxy or kind is NumberProxy:
            return str(value._name)
        if kind in _LITERALS or (kind is float and value - value == 0):
            return "..." if value is Ellipsis else repr(value)
        if kind is tuple:
            inside = ", ".join([self.text(item) for item in value])
            return f"({inside}{',' if len(value) == 1 else ''})"
        if kind is list:
            return f"[{', '.join([self.text(item) for item in value])}]"
        if kind is dict:
            items = [f"{self.text(key)}: {self.text(item)}" for key, item in value.items()]
            return f"{{{', '.join(items)}}}"
        if kind is slice:
            ends = (value.start, value.stop, value.step)
            return f"slice({', '.join([self.text(end) for end in ends])})"
        if kind is np.ndarray:
            self.admit(value)
        hint = getattr(value, "__name__", None) or getattr(value, "name", "c")
        return self.bound(value, str(hint))

    def admit(self, array: Any) -> None:
        """An array that no call has given is used as it is."""

    # ------------------------------------------------------------------ calls

    def call(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any], text: str) -> Any:
        """Call ``function`` now, and note that under the name ``text``."""
        name = _SUFFIX.sub("", text.rpartition(".")[2])
        if name in _OF_STRUCTURE:
            return function(*_plain(args), **_plain(kwargs))
        if name in _OF_DATA_SHAPE or (name == "where" and len(args) == 1):
            self.read(f"{name}() (its result's shape follows from values)")
        written = [kwargs["out"]] if kwargs.get("out") is not None else []
        written += [args[0]] if name in _WRITING and args else []
        if any(type(target) is np.ndarray for target in _flat(written)):
            self.read(f"{name}() writes into an array that is not known")
        value = TRACING.paused(function, args, kwargs)
        if self.is_given_up:
            return value
        parts = [self.text(value) for value in args]
        parts += [f"{key}={self.text(value)}" for key, value in kwargs.items()]
        expression = f"{text}({', '.join(parts)})"
        if written:
            self.write(expression)
            return next((a for a in _flat(written) if _plain(a) is value), None)
        return self.result(expression, value, (*args, *kwargs.values()))

    def result(self, expression: str, value: Any, given: Sequence[Any] = ()) -> Any:
        """What ``expression`` gives: ``value``, now. One of the arrays ``given`` stays that one."""
        if self.is_given_up:
            return value
        for array in _flat(given):
            if type(array) is ArrayProxy and array._value is value:
                return array
        if value is None:
            self.write(expression)
            return None
        if isinstance(value, np.ndarray | np.generic):
            name = self.fresh()
            self.nbytes[name] = value.nbytes
            self.write(f"{name} = {expression}")
            return ArrayProxy(self, value, name)
        if isinstance(value, tuple | list):
            return self._several(expression, value)
        self.read(f"{expression.partition('(')[0]}() gives {type(value).__name__}")
        return value

    def _several(self, expression: str, values: Any) -> Any:
        if not all(value is None or isinstance(value, np.ndarray | np.generic) for value in values):
            self.read(f"{expression.partition('(')[0]}() gives {type(values).__name__}")
            return values
        names = [self.fresh() for _ in values]
        self.nbytes.update(
            (name, 0 if value is None else value.nbytes)
            for name, value in zip(names, values, strict=True)
        )
        self.write(f"{', '.join(names)}{',' if len(names) == 1 else ''} = {expression}")
        made = [
            None if value is None else ArrayProxy(self, value, name)
            for value, name in zip(values, names, strict=True)
        ]
        return made if isinstance(values, list) else tuple(made)

    # ------------------------------------------------------------------ what ArrayProxies ask for

    def attribute(self, array: ArrayProxy, name: str) -> Any:
        """``array.name``."""
        if name in _STRUCTURE:
            return getattr(array._value, name)
        if name == "base":  # whether there is one is all that can be asked
            return None if array._value.base is None else Ellipsis
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(array._value, name)
        if name in _VIEWS:
            return self.result(f"{array._name}.{name}", value, (array,))
        if name in _READS or not callable(value):
            self.read(f".{name}")
            return value

        def method(*args: Any, **kwargs: Any) -> Any:
            return self.call(value, args, kwargs, f"{array._name}.{name}")

        return method

    def item(self, array: ArrayProxy, key: Any) -> Any:
        """``array[key]``."""
        self.check_key(key)
        value = array._value[_plain(key)]
        return self.result(f"{array._name}[{self.text(key)}]", value, (array,))

    def set_item(self, array: ArrayProxy, key: Any, value: Any) -> None:
        """``array[key] = value``."""
        self.check_key(key)
        array._value[_plain(key)] = _plain(value)
        self.write(f"{array._name}[{self.text(key)}] = {self.text(value)}")

    def check_key(self, key: Any) -> None:
        """Refuse a key whose result has a shape that depends on values."""
        for item in _flat((key,)):
            if type(item) is ArrayProxy and item.dtype.kind == "b":
                self.read("a boolean mask as an index")

    def ufunc(self, function: Any, method: str, inputs: Any, kwargs: dict[str, Any]) -> Any:
        """``__array_ufunc__``."""
        out = kwargs.pop("out", None)
        if out is not None:
            kwargs["out"] = out[0] if len(out) == 1 else out
        text = self.bound(function, function.__name__)
        if method == "__call__":
            return self.call(function, inputs, kwargs, text)
        return self.call(getattr(function, method), inputs, kwargs, f"{text}.{method}")


def _plain(value: Any) -> Any:
    """``value`` with arrays and numbers in place of those that are traced."""
    kind = type(value)
    if kind is ArrayProxy or kind is NumberProxy:
        return value._value
    if kind is tuple or kind is list:
        return kind([_plain(item) for item in value])
    if kind is dict:
        return {key: _plain(item) for key, item in value.items()}
    if kind is slice:
        return slice(_plain(value.start), _plain(value.stop), _plain(value.step))
    return value


plain = _plain


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if type(value) in (tuple, list):
            yield from _flat(value)
        else:
            yield value


# ---------------------------------------------------------------------- the program of a thread


class _Mine(PerThread):
    program: Any = None
    is_paused = False


class Tracing:
    """The program that each thread traces.

    Attributes:
        entered: how many threads do; nearly always 0, and then nobody need ask which one it is on.
    """

    def __init__(self) -> None:
        self.entered = 0
        self._mine = _Mine()

    def program(self) -> Any:
        """What this thread traces now; None while it does not."""
        return None if self._mine.is_paused else self._mine.program

    @contextmanager
    def into(self, program: Any) -> Iterator[None]:
        """This thread traces ``program`` inside."""
        self.entered += 1
        before, self._mine.program = self._mine.program, program
        try:
            yield
        finally:
            self._mine.program = before
            self.entered -= 1

    def paused(self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Call ``function`` of real arrays, of which nothing is noted."""
        before, self._mine.is_paused = self._mine.is_paused, True
        try:
            return function(*_plain(args), **_plain(kwargs))
        finally:
            self._mine.is_paused = before


TRACING = Tracing()


def value_check(check: Callable[P, None]) -> Callable[P, None]:
    """``check``, which gets arrays and raises where their values are wrong: programs do it, too."""

    @functools.wraps(check)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        program = TRACING.program() if TRACING.entered else None
        if program is None:
            check(*args, **kwargs)
        else:
            program.call(check, args, kwargs, program.bound(check, check.__name__))

    return checked
