"""Survey: what a Function's backward reads, and whether all of that is unchanged."""

from __future__ import annotations

import abc
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mpgrad.calls.custom_functions.constants import MISSING, is_importable, same
from mpgrad.calls.custom_functions.contents import KeptContent, described_in, fingerprint
from mpgrad.calls.custom_functions.process_state import is_installed_namespace, is_known_namespace
from mpgrad.calls.custom_functions.remedies import Obstacle, Remedy, remedy_of


@dataclass
class Survey:
    """What was found, with the values of that time; :meth:`is_current` compares them with now.

    Attributes:
        is_promised: the class has ``run_on = "worker"``: workers import all installed packages.
        problems: why a worker's result could differ, in the order found; empty: it cannot.
        debugger: where it calls one, in words; such a problem is in ``problems``, too.
        user_modules: names of the modules whose code must travel by value.
        module_reads: for each user module read as ``module.NAME``, (module, the names).
        whole_modules: ids of user modules that are read in a way that hides which names are used.
        forward_only: ids of functions that need not be sent.
        bindings: (namespace, name, the value then).
        states: (what reads it, an object, what it read then, the object in words): parts of code
            and closures, which can be replaced without another name.
        code: the functions and classes.
        settings: constants in installed modules, by module and name, which are sent along.
        expected: containers and renamed functions of installed modules, by module and name, as
            ``described`` then. Workers have their own, which must be equal.
        contents: arrays and sparse matrices that are read, and what was in them.
        values: other values that travel as copies, with their readers in words.
        kept: their fingerprint.
        sets_attributes: whether the code sets attributes, perhaps of functions and classes.
        reached: ids of objects that are equal to nothing but themselves.
    """

    is_promised: bool = False
    problems: list[Obstacle] = field(default_factory=list)
    debugger: str = ""
    user_modules: dict[str, types.ModuleType] = field(default_factory=dict)
    module_reads: dict[int, tuple[types.ModuleType, dict[str, Any]]] = field(default_factory=dict)
    whole_modules: set[int] = field(default_factory=set)
    forward_only: set[int] = field(default_factory=set)
    bindings: list[tuple[Mapping[str, Any], str, Any]] = field(default_factory=list)
    states: list[tuple[Callable[[Any], Any], Any, Any, str]] = field(default_factory=list)
    code: list[types.FunctionType | type] = field(default_factory=list)
    settings: dict[tuple[str, str], Any] = field(default_factory=dict)
    expected: dict[tuple[str, str], str | bytes] = field(default_factory=dict)
    contents: list[KeptContent] = field(default_factory=list)
    values: list[tuple[Any, str]] = field(default_factory=list)
    kept: bytes = b""
    reached: frozenset[int] = frozenset()
    sets_attributes: bool = False

    def add(self, text: str, remedy: Remedy = Remedy.TOLD) -> None:
        """Note a problem."""
        self.problems.append(Obstacle(text, remedy))

    def note(self, read: Callable[[Any], Any], owner: Any, words: str) -> Any:
        """Compare what ``read(owner)`` gives from now on; return what it gives now."""
        now = read(owner)
        self.states.append((read, owner, now, words))
        return now

    def note_code(self, code: types.FunctionType | type) -> None:
        """Compare the parts of a function or class."""
        self.code.append(code)
        self.note(class_state if isinstance(code, type) else function_state, code, _called(code))

    @property
    def can_change_unseen(self) -> bool:
        """Whether it reads more than :meth:`is_current` compares."""
        return bool(self.problems)

    def is_imported(self, namespace: Mapping[str, Any]) -> bool:
        """Whether workers import a module themselves; the code of all others travels by value."""
        return (
            is_installed_namespace(namespace) if self.is_promised else is_known_namespace(namespace)
        )

    def is_imported_name(self, value: Any) -> bool:
        """Whether workers find ``value`` under its name in such a module."""
        module = sys.modules.get(getattr(value, "__module__", None) or "")
        return module is not None and self.is_imported(vars(module)) and is_importable(value)

    def label_of(self, array: Any) -> str:
        """Who reads ``array`` or a sparse matrix whose content is compared."""
        return next((found.label for found in self.contents if found[0] is array), "")

    def readers(self) -> str:
        """Who reads the values, in words."""
        labels = dict.fromkeys(label for _, label in self.values if label)
        return " or ".join(labels) or "an attribute of its code"

    def fingerprint(self) -> bytes:
        """That of the values as they are now."""
        if not self.values:
            return b""
        return fingerprint([value for value, _ in self.values], self.contents)

    def is_current(self) -> bool:
        """Whether everything that was read is unchanged. The call takes microseconds."""
        return not self.what_changed()

    def what_changed(self) -> str:
        """The name of the first thing that has changed; empty if nothing has changed."""
        for namespace, name, value in self.bindings:
            now = namespace.get(name, MISSING)
            if now is not value and not same(now, value):
                return f"`{name}`"
        for read, owner, value, words in self.states:
            if not same(read(owner), value):
                return words
        for content in self.contents:
            if not content.is_current():
                return "an array"
        for (module, name), before in self.expected.items():
            if described_in(module, name) != before:
                return f"{module}.{name}"
        if self.fingerprint() != self.kept:
            return self.readers()
        return ""


def _called(code: types.FunctionType | type) -> str:
    return code.__qualname__ if isinstance(code, type) else f"{code.__qualname__}()"


def function_state(function: types.FunctionType) -> tuple[Any, ...]:
    """The parts of a function that can be replaced without replacing the function."""
    keywords = tuple((function.__kwdefaults__ or {}).items())
    return function.__code__, function.__defaults__, keywords, len(vars(function))


def class_state(cls: type) -> tuple[Any, ...]:
    """The bases of a class, and how many attributes, members and registered subclasses it has,
    without what pickle notes."""
    own = vars(cls)
    members = len(own.get("_member_map_", ())) + len(own.get("_value2member_map_", ()))
    number = len(own) - ("__slotnames__" in own) + members + len(registered_in(cls))
    return cls.__bases__, number


def registered_in(cls: type) -> list[type]:
    """The classes that ``cls``, an abstract base class, counts as subclasses by ``register()``."""
    if "_abc_impl" not in vars(cls):
        return []
    found = [reference() for reference in abc._get_dump(cls)[0]]  # type: ignore[attr-defined]
    return [other for other in found if other is not None]


def cell_contents(cell: types.CellType) -> Any:
    """The value of a closure's variable, or MISSING."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def line_of(function: types.FunctionType, line: int) -> str:
    """A line of a function, in words for a message."""
    return f"{function.__qualname__}() (line {line})"


def what_can_change(value: Any) -> str:
    """What ``value`` is, and why it does not travel."""
    noun = article(type(value).__name__)
    if remedy_of(value) is Remedy.DRAWS:
        return f"{noun}, which draws random numbers"
    return f"{noun}, which cannot be copied faithfully"


def article(noun: str) -> str:
    """``noun`` with "a" or "an" before it."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
