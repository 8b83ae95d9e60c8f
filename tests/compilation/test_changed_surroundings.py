"""What a compiled function has read outside of its arguments may change: it must notice."""

from __future__ import annotations

import builtins
import math
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
import mpgrad.nn.functional as F
from mpgrad import nn

pytestmark = pytest.mark.filterwarnings("ignore::mpgrad.errors.PerformanceWarning")

SCALE = 2.0
NESTED: dict[str, Any] = {"a": {"b": [1.0, 2.0]}}
WEIGHT = mg.tensor(np.ones(4, np.float32), requires_grad=True)


class Holder:
    factor = 2.0

    def times(self, x: Any) -> Any:
        return x * self.factor

    @property
    def twice(self) -> float:
        return self.factor * 2

    @staticmethod
    def plus(x: Any) -> Any:
        return x + 1


class Other(Holder):
    def times(self, x: Any) -> Any:
        return x * 0


class Slotted:
    __slots__ = ("factor",)
    factor: float


class Scaled(nn.Module):
    scale = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.linear(x) * self.scale


def helper(x: Any) -> Any:
    return x * SCALE


def with_default(x: Any, factors: list[float] = [2.0]) -> Any:  # noqa: B006
    return x * factors[0]


def with_keyword(x: Any, *, factor: float = 2.0) -> Any:
    return x * factor


def absolute(x: Any) -> Any:
    return abs(x)


def or_three(x: Any) -> Any:
    try:
        return x * HOLDER.unknown  # type: ignore[attr-defined]
    except AttributeError:
        return x * 3


def or_three_globally(x: Any) -> Any:
    try:
        return x * UNKNOWN  # type: ignore[name-defined]
    except NameError:
        return x * 3


def by_import(x: Any) -> Any:
    import changing_module  # type: ignore[import-not-found]

    return x * changing_module.factor


def zero(*values: Any) -> Any:
    return values[-1] * 0


HOLDER, SLOTTED, MODULE, MODULE_OF_OURS = Holder(), Slotted(), Scaled(), nn.Linear(4, 4)
CHANGING = types.ModuleType("changing_module")
HERE = sys.modules[__name__]

#: By name: the function, and (object, attribute, value) that is set between two calls.
ATTRIBUTES: dict[str, tuple[Callable[[Any], Any], Any, str, Any]] = {
    "a global of a function that is called": (helper, HERE, "SCALE", 3.0),
    "an attribute of a class": (lambda x: HOLDER.times(x), Holder, "factor", 5.0),
    "an attribute that hides it": (lambda x: HOLDER.times(x), HOLDER, "factor", 7.0),
    "one that a property reads": (lambda x: x * HOLDER.twice, HOLDER, "factor", 7.0),
    "one that a name as text reads": (lambda x: x * getattr(HOLDER, "fac" + "tor"), Holder,
                                      "factor", 5.0),
    "one that was not there": (or_three, HOLDER, "unknown", 5.0),
    "one that is asked for": (lambda x: x * (2 if hasattr(HOLDER, "unknown") else 3), HOLDER,
                              "unknown", 5.0),
    "how many there are": (lambda x: x * (1 + len(vars(HOLDER))), HOLDER, "unknown", 5.0),
    "a slot": (lambda x: x * SLOTTED.factor, SLOTTED, "factor", 4.0),
    "a method": (lambda x: HOLDER.times(x), Holder, "times", zero),
    "a method of one object": (lambda x: HOLDER.times(x), HOLDER, "times", zero),
    "a static method": (lambda x: HOLDER.plus(x), Holder, "plus", staticmethod(zero)),
    "the class of an object": (lambda x: HOLDER.times(x), HOLDER, "__class__", Other),
    "an attribute of the class of a Module": (lambda x: MODULE(x), Scaled, "scale", 9.0),
    "an attribute of a Module": (lambda x: MODULE(x), MODULE, "scale", 9.0),
    "the forward of a Module": (lambda x: MODULE(x), MODULE, "forward", zero),
    "the forward of one of ours": (lambda x: MODULE_OF_OURS(x), MODULE_OF_OURS, "forward", zero),
    "the code of a function": (helper, helper, "__code__", (lambda x: x * 11).__code__),
    "the defaults of a function": (with_default, with_default, "__defaults__", ([8.0],)),
    "a name that hides a builtin": (absolute, HERE, "abs", zero),
    "a builtin": (absolute, builtins, "abs", zero),
    "a name that was not there": (or_three_globally, HERE, "UNKNOWN", 5.0),
    "a constant of the standard library": (lambda x: x * math.pi, math, "pi", 0.0),
    "a function of ours": (lambda x: F.relu(x), F, "relu", zero),
    "the same by another name": (lambda x: mg.tanh(x), mg, "tanh", zero),
    "a module that is imported inside": (by_import, CHANGING, "factor", 7.0),
    "the data of a tensor": (lambda x: x * WEIGHT, WEIGHT, "data", mg.full((4,), 3.0)),
    "whether a tensor requires grad": (lambda x: x * WEIGHT, WEIGHT, "requires_grad", False),
}  # fmt: skip

#: By name: the function, and (container, key, value).
ITEMS: dict[str, tuple[Callable[[Any], Any], Any, Any, Any]] = {
    "an item of a list in a dict": (lambda x: x * NESTED["a"]["b"][1], NESTED["a"]["b"], 1, 5.0),
    "how many keys there are": (lambda x: x * len(NESTED), NESTED, "c", 3),
    "an item of a default": (with_default, with_default.__defaults__[0], 0, 4.0),  # type: ignore[index]
    "a default of a keyword": (with_keyword, with_keyword.__kwdefaults__, "factor", 8.0),
    "the environment": (lambda x: x * float(os.environ.get("CHANGES", "1")), os.environ,
                        "CHANGES", "5"),
    "what globals() says": (lambda x: x * (2 if "UNKNOWN" in globals() else 3), vars(HERE),
                            "UNKNOWN", 5.0),
}  # fmt: skip


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    SLOTTED.factor, CHANGING.factor = 1.5, 2.0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "changing_module", CHANGING)
    yield
    WEIGHT.requires_grad_(True).grad = None


def results(function: Callable[[Any], Any], change: Callable[[], object]) -> list[Any]:
    """What calls before and after ``change`` give, with their gradients."""
    found = []
    for call in range(6):
        if call == 3:
            change()
        x = mg.tensor(np.arange(4, dtype=np.float32) - 1.5, requires_grad=True)
        y = function(x)
        (y.sum() * 2).backward()
        assert x.grad is not None
        found.append((y.tolist(), x.grad.tolist(), y.requires_grad, WEIGHT.grad is None))
        WEIGHT.grad = None
    return found


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute(name: str) -> None:
    function, holder, attribute, value = ATTRIBUTES[name]
    both = []
    for called in (function, mg.compile(function)):
        with pytest.MonkeyPatch.context() as patch:
            both.append(results(called, lambda p=patch: p.setattr(
                holder, attribute, value, raising=False)))  # fmt: skip
    assert both[0] == both[1]
    assert both[0][2] != both[0][3]


@pytest.mark.parametrize("name", ITEMS)
def test_an_item(name: str) -> None:
    function, container, key, value = ITEMS[name]
    both = []
    for called in (function, mg.compile(function)):
        before = container[key] if isinstance(container, list) else container.get(key)
        try:
            both.append(results(called, lambda: container.__setitem__(key, value)))
        finally:
            if before is None:
                del container[key]
            else:
                container[key] = before
    assert both[0] == both[1]
    assert both[0][2] != both[0][3]


@pytest.mark.parametrize("hooked", ["one of the user's", "one of ours", "one inside"])
def test_a_hook_of_a_module(hooked: str) -> None:
    theirs, ours = Scaled(), nn.Linear(4, 4)
    module = {"one of the user's": theirs, "one of ours": ours, "one inside": theirs.linear}[hooked]
    function = mg.compile(lambda x: ours(theirs(x)))
    found = results(function, lambda: module.register_forward_hook(zero))
    assert found[2] != found[3]


def test_these_functions_are_compiled() -> None:
    for name in ("an attribute of a class", "the forward of a Module", "a function of ours"):
        results(mg.compile(ATTRIBUTES[name][0], fullgraph=True), bool)
