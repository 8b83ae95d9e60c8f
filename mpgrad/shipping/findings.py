"""Survey: what a Function's backward reads, and whether all of that is unchanged."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mpgrad.shipping.constants import MISSING, same


@dataclass
class Survey:
    """What was found, with the values of that time; :meth:`is_current` compares them with now.

    Attributes:
        problems: why a worker's result could differ, in the order found; empty: it cannot.
        is_inner: the class is defined inside a function, which is the first of the problems.
        user_modules: names of the modules whose code must travel by value.
        module_reads: for each user module read as ``module.NAME``, (module, what was read).
        whole_modules: ids of user modules that are read in a way that hides what is used.
        forward_only: ids of functions that need not travel.
        bindings: (namespace, name, what it was bound to).
        functions: what could have been replaced in each function.
        settings: constants of installed modules, by module and name; they travel with the class.
        aliases: functions that an installed module holds under another name than their own: their
            own names, by module and name.
        cells: (a closure's variable, what it held).
        classes: (class, its bases, how many attributes it had).
    """

    problems: list[str] = field(default_factory=list)
    is_inner: bool = False
    user_modules: dict[str, types.ModuleType] = field(default_factory=dict)
    module_reads: dict[int, tuple[types.ModuleType, dict[str, Any]]] = field(default_factory=dict)
    whole_modules: set[int] = field(default_factory=set)
    forward_only: set[int] = field(default_factory=set)
    bindings: list[tuple[Mapping[str, Any], str, Any]] = field(default_factory=list)
    functions: list[FunctionState] = field(default_factory=list)
    settings: dict[tuple[str, str], Any] = field(default_factory=dict)
    aliases: dict[tuple[str, str], str] = field(default_factory=dict)
    cells: list[tuple[types.CellType, Any]] = field(default_factory=list)
    classes: list[tuple[type, tuple[type, ...], int]] = field(default_factory=list)

    @property
    def can_change_unseen(self) -> bool:
        """Whether it reads more than :meth:`is_current` compares."""
        return len(self.problems) > self.is_inner

    def is_current(self) -> bool:
        """Whether everything that was read is unchanged. The call takes microseconds."""
        return not self.what_changed()

    def what_changed(self) -> str:
        """The name of the first thing that has changed; empty if nothing has changed."""
        for namespace, name, value in self.bindings:
            now = namespace.get(name, MISSING)
            if now is not value and not same(now, value):
                return f"`{name}`"
        for function, code, defaults, kwdefaults, attributes in self.functions:
            if (
                function.__code__ is not code
                or len(vars(function)) != attributes
                or not same(function.__defaults__, defaults)
                or not same(keyword_defaults(function), kwdefaults)
            ):
                return f"{function.__qualname__}()"
        for cell, value in self.cells:
            now = cell_contents(cell)
            if now is not value and not same(now, value):
                return "a variable of a closure"
        for cls, bases, size in self.classes:
            if cls.__bases__ != bases or len(vars(cls)) != size:
                return cls.__qualname__
        return ""


class FunctionState(NamedTuple):
    """The parts of a function that can be replaced without replacing the function."""

    function: types.FunctionType
    code: types.CodeType
    defaults: tuple[Any, ...] | None
    kwdefaults: tuple[tuple[str, Any], ...]
    attributes: int

    @classmethod
    def of(cls, function: types.FunctionType) -> FunctionState:
        """The current state."""
        return cls(
            function,
            function.__code__,
            function.__defaults__,
            keyword_defaults(function),
            len(vars(function)),
        )


def cell_contents(cell: types.CellType) -> Any:
    """The value of a closure's variable, or MISSING."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def keyword_defaults(function: types.FunctionType) -> tuple[tuple[str, Any], ...]:
    """The defaults of keyword-only arguments, with their names."""
    return tuple((function.__kwdefaults__ or {}).items())


def line_of(function: types.FunctionType, line: int) -> str:
    """A line of a function, in words for a message."""
    return f"{function.__qualname__}() (line {line})"


def article(noun: str) -> str:
    """``noun`` with "a" or "an" before it."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
