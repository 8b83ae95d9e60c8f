"""docs/evidence/semantics.md says what the tests show, and every row has a test or a reason."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.semantics.table import DOCUMENT, ROOT, Rows, problems

ROWS = Rows({"A": "first"}, {"A1": "one", "A2": "two", "A3": "three"}, {"A2": "why"}, frozenset())


def test_a_row_needs_a_test_or_a_reason() -> None:
    assert problems(ROWS, {"A1", "A3"}) == []
    assert problems(ROWS, {"A1"}) == ["A3 has neither a test nor a reason"]


def test_a_row_that_is_absent_has_no_test() -> None:
    assert problems(ROWS, {"A1", "A2", "A3"}) == ["A2 is said to be absent, but a test shows it"]


def test_a_test_names_rows_that_exist() -> None:
    assert problems(ROWS, {"A1", "A3", "A4"}) == ["a test shows A4, which is no row"]


def test_an_open_row_has_neither() -> None:
    rows = Rows(ROWS.groups, ROWS.rows, ROWS.absent, frozenset({"A2", "A3", "A9"}))
    assert problems(rows, {"A1"}) == [
        "A2 is said to be open, but it is not",
        "A9 of [open] is no row",
    ]


def test_the_rows_are_all_there() -> None:
    rows = Rows.read()
    sizes = {group: sum(row[0] == group for row in rows.rows) for group in rows.groups}
    assert list(sizes.values()) == [29, 23, 12, 18, 9, 10, 20, 30, 18, 19, 7, 8, 17, 9, 8, 3, 4, 7]
    for group, size in sizes.items():
        assert [r for r in rows.rows if r[0] == group] == [f"{group}{n + 1}" for n in range(size)]


@pytest.mark.long
@pytest.mark.slow
def test_the_document_is_what_the_tests_show() -> None:
    # Another process: collecting imports every test, under names of its own.
    code = (
        "from tests.semantics.table import *; rows, shown = Rows.read(), collect(); "
        "print(*problems(rows, shown), sep='\\n'); print('====');"
        "print(document(rows, shown), end='')"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr + run.stdout
    found, _, text = run.stdout.partition("====\n")
    assert not found.strip(), found
    assert text == DOCUMENT.read_text(), "run: python -m tests.semantics.table --write"
