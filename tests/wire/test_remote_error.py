"""An exception on its way: type, arguments, attributes, both tracebacks; never a second error."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest

from mpgrad.errors import RemoteTraceback, SharedMemoryExhausted, WorkerLost
from mpgrad.wire.remote_error import decode_error, encode_error


class WantsArguments(ValueError):
    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code


class WithNew(Exception):
    def __new__(cls, *, name: str) -> WithNew:
        return super().__new__(cls)

    def __init__(self, *, name: str) -> None:
        super().__init__(name)


class Outer:
    class Inner(KeyError):
        pass


def travelled(error: BaseException) -> Any:
    try:
        raise error
    except BaseException as raised:
        return decode_error(encode_error(raised, "MulBackward0 on worker 1"))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("text", 3),
        KeyError("key"),
        Outer.Inner("inner"),
        WorkerLost("gone"),
        ZeroDivisionError(),
        KeyboardInterrupt(),
    ],
    ids=repr,
)
def test_type_and_arguments(error: BaseException) -> None:
    found = travelled(error)
    assert (type(found), found.args, str(found)) == (type(error), error.args, str(error))


@pytest.mark.parametrize(
    ("error", "names"),
    [
        (SystemExit(3), "code"),
        (FileNotFoundError(2, "No such file", "data.npz"), "errno strerror filename"),
        (UnicodeDecodeError("ascii", b"\xff", 0, 1, "ordinal"), "encoding object start end reason"),
        (ImportError("no module", name="thing", path="/p"), "name path msg"),
        (StopIteration(5), "value"),
        (WantsArguments(7, reason="because"), "code"),
        (SharedMemoryExhausted(3, 2, 1), "requested used limit"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value,
)
def test_attributes(error: BaseException, names: str) -> None:
    found = travelled(error)
    assert type(found) is type(error)
    assert str(found) == str(error)
    for name in names.split():
        assert getattr(found, name) == getattr(error, name)


def test_where_it_came_from() -> None:
    found = travelled(ValueError("x"))
    assert found.__notes__ == ["raised in MulBackward0 on worker 1"]
    assert isinstance(found.__cause__, RemoteTraceback)
    assert "raise error" in found.__cause__.text


def test_notes_of_its_own_come_first() -> None:
    error = ValueError("x")
    error.add_note("mine")
    assert travelled(error).__notes__ == ["mine", "raised in MulBackward0 on worker 1"]


def test_a_class_that_exists_in_no_module() -> None:
    class Local(ArithmeticError):
        pass

    found = travelled(Local("x"))
    assert isinstance(found, ArithmeticError)
    assert (type(found).__name__, found.args) == ("Local", ("x",))


def test_what_cannot_be_pickled_is_left_out() -> None:
    error = LookupError("has a lock")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    found = travelled(error)
    assert (type(found), str(found)) == (LookupError, "has a lock")


def test_a_class_that_cannot_be_made_becomes_a_runtime_error() -> None:
    found = travelled(WithNew(name="x"))
    assert type(found) is RuntimeError
    assert str(found) == f"{__name__}.WithNew: x"


def test_a_class_that_is_not_to_be_found_comes_by_value() -> None:
    gone = type("Gone", (ValueError,), {"__module__": "no.such.module"})
    found = travelled(gone("x"))
    assert type(found).__name__ == "Gone"
    assert isinstance(found, ValueError)
    assert str(found) == "x"


def test_a_class_that_cannot_be_had_becomes_a_runtime_error() -> None:
    members = {"__module__": "no.such.module", "lock": threading.Lock()}
    found = travelled(type("Gone", (ValueError,), members)("x"))
    assert type(found) is RuntimeError
    assert str(found) == "no.such.module.Gone: x"


class WithCode(Exception):
    """Cannot be made from its ``args``."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{code}: {why}")
        self.code = code


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


def test_members_of_a_group() -> None:
    inner = ExceptionGroup("inner", [WithCode(1, "first"), Frozen(2)])
    found = decode_error(encode_error(ExceptionGroup("outer", [inner, KeyError("k")]), "here"))
    assert isinstance(found, ExceptionGroup)
    assert repr(found) == (
        "ExceptionGroup('outer', [ExceptionGroup('inner', [WithCode('1: first'), Frozen(code=2)]), "
        "KeyError('k')])"
    )
    assert found.exceptions[0].exceptions[0].code == 1  # type: ignore[union-attr]


def test_one_that_may_not_be_changed() -> None:
    found = decode_error(encode_error(Frozen(3), "here"))
    assert (found, type(found.__cause__)) == (Frozen(3), RemoteTraceback)
