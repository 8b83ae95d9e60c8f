"""Which methods of PyTorch's test file are run, and how one of them is run in this process."""

from __future__ import annotations

import ast
import sys
import tomllib
import traceback
import types
import unittest
from pathlib import Path
from typing import Any, NamedTuple

import mpgrad as mg
from conformance.harness import TestCase, given
from conformance.stand_in import MissingName, torch_stands_for_mpgrad

_FOLDER = Path(__file__).resolve().parent


class Method(NamedTuple):
    """One test method; ``group`` is what it is about."""

    cls: str
    name: str
    group: str


class Outcome(NamedTuple):
    """What became of a method: ``passed``, ``missing`` (a name), ``failed`` or ``crashed``."""

    status: str
    message: str = ""
    details: str = ""


def all_methods() -> list[Method]:
    """Those of ``methods.toml``, in its order."""
    table = tomllib.loads((_FOLDER / "methods.toml").read_text())
    return [
        Method(cls, f"test_{name}", group)
        for cls, groups in table.items()
        for group, names in groups.items()
        for name in names.split()
    ]


def reasons() -> dict[str, str]:
    """Of each method that does not pass, by its name, why."""
    return tomllib.loads((_FOLDER / "left.toml").read_text())


def load(path: Path) -> types.ModuleType:
    """PyTorch's test file as a module in which ``torch`` is mpgrad."""
    module = types.ModuleType("test_autograd")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    TestCase.expected_folder = path.parent / "expect"
    tree = ast.parse(path.read_text(), str(path))
    # Its last lines collect further files of PyTorch's.
    tree.body = [part for part in tree.body if not _imports_tests(part)]
    with torch_stands_for_mpgrad(given):
        exec(compile(tree, str(path), "exec"), vars(module))
    return module


def _imports_tests(part: ast.stmt) -> bool:
    return isinstance(part, ast.ImportFrom) and (part.module or "").startswith("autograd.")


def run(module: types.ModuleType, method: Method, mode: str) -> Outcome:
    """Run one method, with each of its arguments, in ``mg.Engine(mode)``."""
    test_class = getattr(module, method.cls, None)
    test = getattr(test_class, method.name, None)
    if test_class is None or test is None:
        return Outcome("failed", "the test file has no such method")
    with torch_stands_for_mpgrad(given), mg.Engine(mode):
        for arguments in getattr(test, "variants", [{}]):
            outcome = _run_once(test_class, method.name, test, arguments)
            if outcome.status != "passed":
                return outcome
    return Outcome("passed")


def _run_once(test_class: type[Any], name: str, test: Any, arguments: dict[str, Any]) -> Outcome:
    def bound(self: Any) -> Any:
        return test(self, **arguments)

    # A class of its own, so that setUp and tearDown run around it; it is no expected failure.
    one = type(
        test_class.__name__, (test_class,), {name: bound, "__module__": test_class.__module__}
    )
    result = _Result()
    one(name).run(result)
    if result.error is None:
        return Outcome("passed")
    missing = _missing(result.error)
    text = "".join(traceback.format_exception(result.error))
    if missing is not None:
        return Outcome("missing", missing, text)
    return Outcome("failed", f"{type(result.error).__name__}: {result.error}", text)


class _Result(unittest.TestResult):
    """Keeps what the test raised."""

    error: BaseException | None = None

    def addError(self, test: Any, err: Any) -> None:
        self.error = err[1]

    def addFailure(self, test: Any, err: Any) -> None:
        self.error = err[1]

    def addSkip(self, test: Any, reason: str) -> None:
        self.error = RuntimeError(f"skipped: {reason}")


def _missing(error: BaseException | None) -> str | None:
    while error is not None:
        if isinstance(error, MissingName):
            return str(error)
        error = error.__cause__ or error.__context__
    return None


def describe(error: BaseException) -> Outcome:
    """The outcome of a method whose run raised outside of the test."""
    return Outcome("failed", f"{type(error).__name__}: {error}", traceback.format_exc())
