"""What PyTorch gives for the tests' programs: recorded, so that it is the oracle without PyTorch.

    python -m tests.torch_outcomes --write

runs the programs with PyTorch and writes ``tests/outcomes/``: a file for each test module, an entry
for each test. A test asks its fixture ``of_torch`` for the outcome of its program, and compares
with what was recorded and, where PyTorch is installed, with what it gives now.
"""

from __future__ import annotations

import importlib
import json
import sys
from ast import literal_eval
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

TESTS = Path(__file__).resolve().parent
RECORDED = TESTS / "outcomes"
#: Of more elements than this every 11th, 101st or 1009th is recorded: primes meet all columns.
LARGEST, STEPS = 100, (1, 11, 101, 1009)
COMMAND = "python -m tests.torch_outcomes --write"


@dataclass(frozen=True)
class Seen:
    """A tensor, an array or an error, in a form that both libraries share.

    ``note`` is for those who read a recorded outcome: nothing is compared with it. ``step``: values
    are every so-manieth element only, in C order.
    """

    kind: str
    text: str
    values: Any = None
    note: str = ""
    step: int = 1

    def __repr__(self) -> str:
        return f"<{self.kind} {self.text} {self.values if self.values is not None else ''}>"


class Of(Protocol):
    """``of(program)`` yields the oracle's name and its outcome, of one oracle or two."""

    def __call__(self, program: Callable[[Any], Any], /) -> Iterator[tuple[str, Any]]: ...


@pytest.fixture
def of_torch(request: pytest.FixtureRequest) -> Of:
    """Yield what ``program(torch)`` gives: as it was recorded and, if torch is there, as it is.

    A program returns plain data: numbers, text, None, arrays, ``Seen``, in lists (tuples become
    lists) and dictionaries.
    """
    file = request.path.relative_to(TESTS).with_suffix(".json")
    name = request.node.name

    def outcomes(program: Callable[[Any], Any], /) -> Iterator[tuple[str, Any]]:
        torch, recorder = find_torch(), _recorder_of(request.config)
        now = None if torch is None else _as_lists(program(torch))
        if recorder is not None:
            recorder.record(file, name, now)
        elif name in (recorded := read(RECORDED / file)):
            yield "torch, recorded", decode(recorded[name])
        else:
            pytest.fail(f"what torch gives is not recorded: {COMMAND}")
        if torch is not None:
            yield "torch", now

    return outcomes


@cache
def find_torch() -> Any:
    """The module, or None.

    It has one thread: several wait for each other in each call, and take 7 times the processor time
    of one for small arrays.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    torch.set_num_threads(1)
    return torch


@cache
def read(path: Path) -> dict[str, Any]:
    """The entries of one file; none if it is not there."""
    return json.loads(path.read_text()) if path.exists() else {}


# ----------------------------------------------------------------------------- as text


def encode(value: Any) -> Any:
    """``value`` as what JSON can hold.

    Raises:
        TypeError: a value of a type that is not meant for an outcome.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {"items": [[encode(key), encode(item)] for key, item in value.items()]}
    if isinstance(value, np.ndarray):
        return {"numpy": f"{value.dtype} {value.shape}", "values": _words(value)}
    if isinstance(value, Seen):
        fields = {value.kind: value.text}
        if value.values is not None:
            elements, step = value.values.reshape(-1), value.step
            if step == 1:
                fitting = (step for step in STEPS if elements.size <= step * LARGEST)
                step = next(fitting, STEPS[-1])
                elements = elements[::step]
            fields |= {"values": _words(elements)} | ({"step": step} if step > 1 else {})
        return fields | ({"note": value.note} if value.note else {})
    raise TypeError(f"an outcome cannot hold {type(value).__name__}: {value!r}")


def decode(text: Any) -> Any:
    """The value that :func:`encode` wrote."""
    if isinstance(text, list):
        return [decode(item) for item in text]
    if not isinstance(text, dict):
        return text
    if "complex" in text:
        return complex(*text["complex"])
    if "items" in text:
        return {decode(key): decode(item) for key, item in text["items"]}
    (kind, description), *others = text.items()
    fields = dict(others)
    if "values" in fields:
        dtype, _, rest = description.partition(" ")
        fields["values"] = _array(fields["values"], np.dtype(dtype))
        if "step" not in fields:
            shape = literal_eval(rest[: rest.index(")") + 1])
            fields["values"] = fields["values"].reshape(shape)
    return fields["values"] if kind == "numpy" else Seen(kind, description, **fields)


def _words(array: np.ndarray[Any, Any]) -> str:
    """The elements in C order, each with the fewest digits that give the same bits."""
    return " ".join(str(element).strip("()") for element in array.reshape(-1))


def _array(words: str, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    if dtype == np.bool_:
        return np.array([word == "True" for word in words.split()], dtype)
    return np.array([dtype.type(word) for word in words.split()], dtype)


def _as_lists(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_as_lists(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_lists(item) for key, item in value.items()}
    return value


# ----------------------------------------------------------------------------- writing


class Recorder:
    """A pytest plugin that keeps what torch gives."""

    def __init__(self) -> None:
        self.outcomes: dict[Path, dict[str, Any]] = {}

    def record(self, file: Path, name: str, outcome: Any) -> None:
        """Note the outcome of one test.

        Raises:
            RuntimeError: the test has one already, or it would not be read as it was written.
        """
        text = encode(outcome)
        if json.dumps(encode(decode(json.loads(json.dumps(text))))) != json.dumps(text):
            raise RuntimeError(f"{file}: {name} would not be read as it is written")
        if name in self.outcomes.setdefault(file, {}):
            raise RuntimeError(f"{file}: {name} asks twice")
        self.outcomes[file][name] = text

    def write(self) -> None:
        """Put everything in place of the files that are there."""
        for old in RECORDED.rglob("*.json"):
            old.unlink()
        for file, entries in self.outcomes.items():
            path = RECORDED / file
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = [
                f"{json.dumps(name)}: {json.dumps(entries[name], indent=0)}"
                for name in sorted(entries)
            ]
            path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _recorder_of(config: pytest.Config) -> Recorder | None:
    plugins = config.pluginmanager.get_plugins()
    return next((plugin for plugin in plugins if isinstance(plugin, Recorder)), None)


def main(arguments: list[str]) -> int:
    if arguments != ["--write"] or find_torch() is None:
        print(f"usage, where torch is installed: {COMMAND}", file=sys.stderr)
        return 2
    recorder = Recorder()
    options = ["-q", "-p", "no:cacheprovider", "-m", "torch and not process"]
    status = pytest.main([*options, str(TESTS)], plugins=[recorder])
    if status == pytest.ExitCode.OK:
        recorder.write()
    return status


if __name__ == "__main__":
    # The module that the tests import: what they make must be of the types that it knows.
    sys.exit(importlib.import_module("tests.torch_outcomes").main(sys.argv[1:]))
