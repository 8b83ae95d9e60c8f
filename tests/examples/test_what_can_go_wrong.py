"""Each program of docs/guides/what_can_go_wrong.md gives the error that stands below it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.parallel import placing

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "what_can_go_wrong.md"
PROGRAMS = re.findall(
    r"^## (.*?)\n.*?```python\n(.*?)```\n```text\n(.*?)\n```", PAGE.read_text(), re.DOTALL | re.M
)


@pytest.fixture(scope="module", params=["local", "process"])
def engine(request: pytest.FixtureRequest) -> Iterator[mg.Engine]:
    with mg.Engine(request.param, cpu_workers=1) as engine:
        yield engine


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that other tests have left could change the directory, too; code is counted anew."""
    monkeypatch.setattr("mpgrad.wire.state_in_force._is_alone", lambda: True)
    monkeypatch.setattr(placing, "RUNS", placing.Runs())


def test_all_of_them_are_tried() -> None:
    assert len(PROGRAMS) == 10


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "error"), [one[1:] for one in PROGRAMS], ids=[p[0] for p in PROGRAMS]
)
def test_a_program(code: str, error: str, engine: mg.Engine) -> None:
    kind, _, words = error.partition(": ")
    with pytest.raises(Exception, match=re.escape(words)) as caught:
        exec(compile(code, "<page>", "exec"), {"__name__": "__main__", "mg": mg, "np": np})
    assert type(caught.value).__name__ == kind
