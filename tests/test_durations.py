"""What is written of how long the tests took."""

from __future__ import annotations

from tests.durations import text


def test_files_and_then_tests_the_longest_first() -> None:
    seconds = {"a.py::one": 0.5, "a.py::two[x::y]": 2.25, "b.py::three": 3.0, "b.py::four": 0.04}
    assert text(seconds).splitlines() == [
        "      5.8 s  all",
        "",
        "      3.0 s  b.py",
        "      2.8 s  a.py",
        "",
        "      3.0 s  b.py::three",
        "      2.2 s  a.py::two[x::y]",
        "      0.5 s  a.py::one",
    ]
