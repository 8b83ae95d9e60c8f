"""Times as people read them, wherever mpgrad shows one."""

from __future__ import annotations

import re

import pytest

import mpgrad as mg
from mpgrad.base.duration_text import duration
from mpgrad.engine.choice import Experience, Prediction
from mpgrad.engine.explanation import ExplainedNode, Explanation


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0.0, "0 us"),
        (0.25, "0.25 us"),
        (7.0, "7 us"),
        (83.24, "83.2 us"),
        (99.96, "100 us"),
        (999.4, "999 us"),
        (999.6, "1 ms"),
        (4_805.0, "4.8 ms"),
        (111_983.0, "112 ms"),
        (999_600.0, "1 s"),
        (4_812_000.0, "4.81 s"),
        (754_321_000.0, "754 s"),
        (7_543_210_000.0, "7543 s"),
    ],
)
def test_three_digits_and_a_unit(microseconds: float, text: str) -> None:
    assert duration(microseconds) == text


def test_the_choice_of_a_mode_is_told_in_such_times() -> None:
    choice = Experience().choose(Prediction(240_100.0, 111_983.0), has_workers=True)
    assert choice.reason == "workers would take about 112 ms, this process 240 ms"


def explanation() -> Explanation:
    nodes = (
        ExplainedNode("SumBackward0", 0, "worker", 5.8, "an operator"),
        ExplainedNode("SolveBackward", 1, "worker", 1_234_567.0, "a Function"),
    )
    return Explanation("process", "as told", 1_234_572.8, 111_983.0, nodes, ((0, 1),))


def test_an_explanation_has_such_times_everywhere() -> None:
    found = explanation()
    assert str(found).splitlines()[0] == (
        "2 nodes in 2 tasks, 1.23 s of work, critical path 112 ms"
    )
    for text in (str(found), found.table(), found._repr_html_(), found.to_svg(), found.to_dot()):
        assert "1.23 s" in text
        assert "5.8 us" in text
        assert not re.search(r"\d{4,} us|\d{4,}\.\d+ ms", text)


def test_every_prompt_shows_what_print_shows() -> None:
    """Without ``print``, Python and IPython showed the fields of a dataclass on one line."""
    found = explanation()
    assert repr(found) == str(found)
    with mg.Engine("local") as engine:
        statistics = engine.statistics()
    assert repr(statistics) == str(statistics)
    assert repr(statistics).splitlines()[0].split() == ["mode", "local"]
