"""Every operator that is here gives what PyTorch gives on the samples of PyTorch's database.

Without PyTorch the calls are tried that were recorded; with it all of them are, and what differs
stands in ``left.toml`` with its reason.
"""

from __future__ import annotations

import builtins
from functools import cache
from typing import Any

import pytest

import mpgrad as mg
from tests.operator_database import database, page, recorded
from tests.operator_database.comparison import arrays_of, attempt, derivatives, difference
from tests.operator_database.database import function_named, plain_function
from tests.operator_database.verdict import TIES, judge
from tests.torch_outcomes import find_torch

VERDICTS, CALLS = recorded.read()
NAMES = [verdict.name for verdict in VERDICTS if verdict.is_here]
REASONS = page.reasons()


@cache
def entries() -> dict[str, list[Any]]:
    return database.entries()


@pytest.mark.parametrize("name", NAMES)
def test_it_gives_what_was_recorded(name: str) -> None:
    function = plain_function(mg, name)
    known = REASONS.get(name, {})
    for call in recorded.unpacked(CALLS[name]):
        args, kwargs = call["args"], call["kwargs"]

        def run(args: Any = args, kwargs: Any = kwargs) -> Any:
            given, named = recorded.for_library((args, kwargs), mg)
            return arrays_of(function(*given, **named))

        found = attempt(run)
        if "error" in call:
            expected = getattr(builtins, call["error"])
            assert isinstance(found, expected) or "errors" in known, f"{call}: {found!r}"
            continue
        values = not database.is_random(name, kwargs)
        text = difference(found, call["result"], values=values, ties=name in TIES)
        if not text and "gradient" in call:
            given = recorded.for_library((args, kwargs), mg)
            gradient = attempt(lambda given=given: derivatives(mg, function, given, 1))
            text = difference(gradient, call["gradient"])
        assert not text or known, f"{args}, {kwargs}: {text}"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of PyTorch, as in tests/operator_database/__main__.py
@pytest.mark.parametrize("name", NAMES)
def test_it_does_what_pytorch_does(name: str) -> None:
    torch = find_torch()
    if torch is None:
        pytest.skip("PyTorch is not installed")
    torch.manual_seed(0)
    verdict = judge(mg, torch, name, entries()[name])
    assert page.unexpected([verdict], {name: REASONS.get(name, {})}) == []


def test_the_page_says_what_was_found() -> None:
    text = page.DOCUMENT.read_text()
    version = text.partition("beside PyTorch ")[2].partition("\n")[0].rstrip(".")
    assert text == page.text(VERDICTS, version), "python -m tests.operator_database --write"


def test_nothing_is_said_to_be_missing_that_is_here() -> None:
    missing = [verdict.name for verdict in VERDICTS if not verdict.is_here]
    found = [name for name in missing if function_named(mg, name) is not None]
    assert found == [], "python -m tests.operator_database --write"


def test_each_difference_has_a_reason() -> None:
    assert page.unexpected([v for v in VERDICTS if v.is_here], REASONS) == []
