"""docs/evidence/semantics.md: every row of ``rows.toml`` with the tests that pytest finds for it.

python -m tests.semantics.table            print it
python -m tests.semantics.table --write    write it to docs/evidence/semantics.md
python -m tests.semantics.table --open     print the rows that have no test and are not absent
"""

from __future__ import annotations

import contextlib
import io
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = Path(__file__).with_name("rows.toml")
DOCUMENT = ROOT / "docs" / "evidence" / "semantics.md"

_INTRODUCTION = """\
# What holds in mpgrad

This page lists the behaviours of PyTorch's autograd engine that a user of `backward()` relies on,
one row each, with the tests that show them. Most tests are *paired programs*: the same program runs
in `local`, in worker processes (same bits) and with PyTorch (same values, same errors); see
`tests/semantics/paired.py`.

`python -m tests.semantics.table --write` writes this page from `tests/semantics/rows.toml` and from
the tests that pytest collects; a test compares the two.
"""


@dataclass(frozen=True)
class Rows:
    """What ``rows.toml`` says."""

    groups: dict[str, str]
    rows: dict[str, str]
    absent: dict[str, str]
    open: frozenset[str]

    @classmethod
    def read(cls, path: Path = ROWS) -> Rows:
        data = tomllib.loads(path.read_text())
        still_open = frozenset(data["progress"]["open"].split())
        return cls(data["groups"], data["rows"], data["absent"], still_open)


@dataclass
class Shown:
    """A pytest plugin: which tests name which rows."""

    #: Row -> (file, function), each once however many parameters the test has, in pytest's order.
    tests: dict[str, dict[tuple[str, str], None]] = field(default_factory=dict)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for item in items:
            # A test that does not run, or is expected to fail, shows nothing.
            if item.get_closest_marker("skip") or item.get_closest_marker("xfail"):
                continue
            file = item.path.relative_to(ROOT).as_posix()
            for marker in item.iter_markers("row"):
                for row in marker.args:
                    self.tests.setdefault(row, {})[file, item.originalname] = None


def collect() -> dict[str, list[tuple[str, str]]]:
    """Row -> the tests that show it, as (file, function). Imports every test.

    Raises:
        RuntimeError: pytest could not collect the tests.
    """
    shown, output = Shown(), io.StringIO()
    with contextlib.redirect_stdout(output):
        status = pytest.main(
            ["--collect-only", "-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT), str(ROOT)],
            plugins=[shown],
        )
    if status != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest could not collect the tests:\n{output.getvalue()}")
    return {row: list(tests) for row, tests in shown.tests.items()}


def problems(rows: Rows, shown: Iterable[str]) -> list[str]:
    """What does not fit between the rows and the tests that name them, in words."""
    known, tested = rows.rows, set(shown)
    found = [f"a test shows {row}, which is no row" for row in tested if row not in known]
    for row in known:
        if row[0] not in rows.groups:
            found.append(f"{row} belongs to no group")
        if row in rows.absent and row in tested:
            found.append(f"{row} is said to be absent, but a test shows it")
        if row in rows.open and (row in rows.absent or row in tested):
            found.append(f"{row} is said to be open, but it is not")
        if row not in tested and row not in rows.absent and row not in rows.open:
            found.append(f"{row} has neither a test nor a reason")
    for name, listed in (("absent", rows.absent), ("open", rows.open)):
        found += [f"{row} of [{name}] is no row" for row in listed if row not in known]
    return sorted(found)


def document(rows: Rows, shown: dict[str, list[tuple[str, str]]]) -> str:
    """The text of docs/evidence/semantics.md."""
    total, here = len(rows.rows), sum(row in shown for row in rows.rows)
    open_rows = total - here - len(rows.absent)
    parts = [
        _INTRODUCTION,
        f"{total} rows: {here} shown by tests, {len(rows.absent)} not here with the reason"
        + (f", {open_rows} not shown yet.\n" if open_rows else ".\n"),
    ]
    for letter, title in rows.groups.items():
        parts += [f"## {letter}. {title}\n", "| row | what holds | shown by |", "|---|---|---|"]
        parts += [
            f"| {row} | {text} | {_evidence(row, rows, shown)} |"
            for row, text in rows.rows.items()
            if row[0] == letter
        ]
        parts.append("")
    return "\n".join(parts)


def _evidence(row: str, rows: Rows, shown: dict[str, list[tuple[str, str]]]) -> str:
    if row in rows.absent:
        return f"*Not here: {rows.absent[row]}.*"
    by_file: dict[str, list[str]] = {}
    for file, name in shown.get(row, ()):
        by_file.setdefault(file, []).append(f"`{name.removeprefix('test_')}`")
    return (
        "; ".join(
            f"[{file.removeprefix('tests/').removesuffix('.py')}](../../{file}): {', '.join(names)}"
            for file, names in by_file.items()
        )
        or "*not shown yet*"
    )


def main(arguments: list[str]) -> None:
    rows, shown = Rows.read(), collect()
    if arguments == ["--open"]:
        print(*(row for row in rows.rows if row not in shown and row not in rows.absent))
    elif arguments == ["--write"]:
        DOCUMENT.write_text(document(rows, shown))
    else:
        print(document(rows, shown), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
