"""A pytest plugin (``-p tests.durations``): ``build/durations.txt`` after a run of all tests.

First the seconds of each test file, then of each test that took a tenth of a second or more; the
longest come first. With several processes the sum is what they took together.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[1] / "build" / "durations.txt"
#: What scripts/test and scripts/test --all say after -m.
WHOLE = ("", "not long")
#: Shorter tests are in the sum of their file only.
SHORTEST_S = 0.1

_seconds: Counter[str] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    is_chosen = config.option.keyword or config.option.markexpr not in WHOLE
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not is_chosen
    # The processes of pytest-xdist pass on what they measure.
    if is_whole and not hasattr(config, "workerinput"):
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(text(_seconds))


def text(seconds: dict[str, float]) -> str:
    """The content of the file for these seconds, by test."""
    files: Counter[str] = Counter()
    for test, duration in seconds.items():
        files[test.partition("::")[0]] += duration
    long = Counter({test: s for test, s in seconds.items() if s >= SHORTEST_S})
    parts = (f"{sum(seconds.values()):9.1f} s  all", _lines(files), _lines(long))
    return "\n\n".join(parts) + "\n"


def _lines(seconds: Counter[str]) -> str:
    return "\n".join(f"{duration:9.1f} s  {name}" for name, duration in seconds.most_common())
