"""Gradients of all operators have the same bits in ``local`` and in ``process``, and when their
graph is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.engine.local import COMPILED_FROM_USE
from tests.operator_database import database, recorded
from tests.operator_database.comparison import attempt, derivatives
from tests.operator_database.database import plain_function

VERDICTS, CALLS = recorded.read()
#: The calls are divided, so that none of the tests takes long.
PARTS = 4


def _calls() -> Iterator[tuple[str, dict[str, Any]]]:
    """The recorded calls that have gradients."""
    for name, packed in CALLS.items():
        for call in recorded.unpacked(packed):
            if call.get("gradient") is not None and not database.is_random(name, call["kwargs"]):
                yield name, call


def _bits(name: str, call: dict[str, Any]) -> Any:
    given = recorded.for_library((call["args"], call["kwargs"]), mg)
    gradients = attempt(lambda: derivatives(mg, plain_function(mg, name), given, 1))
    if gradients is None or isinstance(gradients, Exception):
        return repr(gradients)
    return [None if x is None else (x.dtype, x.shape, x.tobytes()) for x in gradients]


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_every_operators_gradients_have_the_bits_of_local(part: int) -> None:
    tried, wrong = 0, []
    with mg.Engine("process") as engine:
        for name, call in islice(_calls(), part, None, PARTS):
            found = _bits(name, call)
            with mg.Engine("local"):
                expected = _bits(name, call)
            tried += 1
            if found != expected:
                wrong.append((name, call["args"]))
        in_workers = engine.statistics().backwards_process
    assert wrong == []
    assert tried > 1000 / PARTS
    assert in_workers > 0.9 * tried


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_a_compiled_graph_has_the_bits_of_the_first_step(part: int) -> None:
    wrong = []
    with mg.Engine("local") as engine:
        for name, call in islice(_calls(), part, None, PARTS):
            first, *later = [_bits(name, call) for _ in range(COMPILED_FROM_USE + 2)]
            if any(bits != first for bits in later):
                wrong.append((name, call["args"]))
        assert engine.statistics().compiled_graphs > 0
    assert wrong == []
