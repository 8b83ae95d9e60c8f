"""ArrayProxy and NumberProxy: stand in for an array or a number while a program is traced."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np


class ArrayProxy:
    """A real array, and its name in the program that notes what becomes of it.

    It passes for an ``ndarray`` where Python asks what it is; NumPy's functions give what they do
    with it to the program, and what wants its memory or its values is told to the program, too.
    """

    __slots__ = ("_name", "_program", "_value")
    __array_priority__ = 2000
    #: For ``isinstance``; a ArrayProxy is known by its ``type``.
    __class__ = property(lambda self: np.ndarray)

    def __init__(self, program: Any, value: Any, name: str) -> None:
        self._program, self._value, self._name = program, value, name

    def __getattr__(self, name: str) -> Any:
        return self._program.attribute(self, name)

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return self._program.ufunc(function, method, inputs, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return self._program.call(
            function, args, kwargs, self._program.bound(function, function.__name__)
        )

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self._program.read("conversion to a NumPy array")
        return np.asarray(self._value, dtype)

    def __getitem__(self, key: Any) -> Any:
        return self._program.item(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._program.set_item(self, key, value)

    def __len__(self) -> int:
        return len(self._value)

    def __iter__(self) -> Any:
        return iter([self[at] for at in range(len(self._value))])

    def __contains__(self, value: Any) -> bool:
        self._program.read("in")
        return value in self._value

    def __repr__(self) -> str:
        self._program.read("repr()")
        return repr(self._value)

    def __format__(self, spec: str) -> str:
        self._program.read("format()")
        return format(self._value, spec)

    __hash__ = object.__hash__


class NumberProxy:
    """A Python number that is read anew in each run: a learning rate, a count of steps."""

    __slots__ = ("_name", "_program", "_value")
    #: For ``isinstance``, as above.
    __class__ = property(lambda self: type(self._value))

    def __init__(self, program: Any, value: Any, name: str) -> None:
        self._program, self._value, self._name = program, value, name

    __hash__ = object.__hash__


#: Python's operators: as an expression of two names, and as a function.
_OPERATORS: dict[str, tuple[str, Callable[..., Any]]] = {
    "add": ("+", operator.add),
    "sub": ("-", operator.sub),
    "mul": ("*", operator.mul),
    "truediv": ("/", operator.truediv),
    "floordiv": ("//", operator.floordiv),
    "mod": ("%", operator.mod),
    "pow": ("**", operator.pow),
}
_OF_ARRAYS: dict[str, tuple[str, Callable[..., Any]]] = {
    **_OPERATORS,
    "matmul": ("@", operator.matmul),
    "and": ("&", operator.and_),
    "or": ("|", operator.or_),
    "xor": ("^", operator.xor),
    "lshift": ("<<", operator.lshift),
    "rshift": (">>", operator.rshift),
    "eq": ("==", operator.eq),
    "ne": ("!=", operator.ne),
    "lt": ("<", operator.lt),
    "le": ("<=", operator.le),
    "gt": (">", operator.gt),
    "ge": (">=", operator.ge),
}
_IN_PLACE = {f"i{name}": getattr(operator, f"i{name}") for name in [*_OPERATORS, "matmul"]} | {
    "iand": operator.iand,
    "ior": operator.ior,
    "ixor": operator.ixor,
}
_ALONE: dict[str, tuple[str, Callable[..., Any]]] = {
    "neg": ("-", operator.neg),
    "pos": ("+", operator.pos),
    "invert": ("~", operator.invert),
}
_READS: dict[str, Callable[..., Any]] = {
    "__bool__": bool,
    "__int__": int,
    "__float__": float,
    "__complex__": complex,
    "__index__": operator.index,
}


def _value_of(other: Any) -> Any:
    return other._value if type(other) in (ArrayProxy, NumberProxy) else other


def _binary(sign: str, function: Callable[..., Any], *, reflected: bool = False) -> Any:
    def method(self: Any, other: Any) -> Any:
        program = self._program
        a, b = (other, self) if reflected else (self, other)
        if type(self) is NumberProxy and type(other) is ArrayProxy:
            return NotImplemented  # the array's own method knows both
        expression = f"{program.text(a)} {sign} {program.text(b)}"
        value = function(_value_of(a), _value_of(b))
        if type(self) is NumberProxy:
            return program.number(f"({expression})", value)
        return program.result(expression, value, (self,))

    return method


def _in_place(sign: str, function: Callable[..., Any]) -> Any:
    def method(self: Any, other: Any) -> Any:
        program = self._program
        expression = f"{self._name} {sign}= {program.text(other)}"
        if self._name in program.known:  # which a function may not assign to
            name = program.bound(function, function.__name__)
            expression = f"{name}({self._name}, {program.text(other)})"
        value = function(self._value, _value_of(other))
        if value is not self._value:  # a scalar of NumPy is made anew
            program.read("an in-place operator on a scalar")
        if program.is_given_up:
            return value
        program.write(expression)
        return self

    return method


def _alone(sign: str, function: Callable[..., Any]) -> Any:
    def method(self: Any) -> Any:
        return self._program.result(f"{sign}{self._name}", function(self._value), (self,))

    return method


def _reading(name: str, function: Callable[..., Any]) -> Any:
    def method(self: Any) -> Any:
        self._program.read(f"{function.__name__}()")
        return function(self._value)

    return method


def _comparison(function: Callable[..., Any]) -> Any:
    def method(self: Any, other: Any) -> Any:
        self._program.read("a comparison of a number that changes from step to step")
        return function(self._value, _value_of(other))

    return method


def _complete() -> None:
    for name, (sign, function) in _OF_ARRAYS.items():
        setattr(ArrayProxy, f"__{name}__", _binary(sign, function))
        if name not in ("eq", "ne", "lt", "le", "gt", "ge"):
            reflected = _binary(sign, function, reflected=True)
            setattr(ArrayProxy, f"__r{name}__", reflected)
        else:
            setattr(NumberProxy, f"__{name}__", _comparison(function))
    for name, (sign, function) in _OPERATORS.items():
        setattr(NumberProxy, f"__{name}__", _binary(sign, function))
        setattr(NumberProxy, f"__r{name}__", _binary(sign, function, reflected=True))
    for name, function in _IN_PLACE.items():
        setattr(ArrayProxy, f"__{name}__", _in_place(_OF_ARRAYS[name[1:]][0], function))
    for name, (sign, function) in _ALONE.items():
        setattr(ArrayProxy, f"__{name}__", _alone(sign, function))
    for name, function in _READS.items():
        setattr(ArrayProxy, name, _reading(name, function))
        setattr(NumberProxy, name, _reading(name, function))


_complete()
