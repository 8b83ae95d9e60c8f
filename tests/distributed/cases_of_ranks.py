"""Runs cases in which several ranks take part."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence


def run(cases: Sequence[Callable[[], None]]) -> None:
    """Run each case in this rank, and print how it went: the other ranks run it, too."""
    for case in cases:
        try:
            case()
        except BaseException:
            print(case.__name__, "failed:", traceback.format_exc().replace("\n", " | "))
        else:
            print(case.__name__, "passed")


def error_of(kind: type[BaseException], call: Callable[[], object]) -> str:
    """The text of the error that ``call`` has to raise."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")
