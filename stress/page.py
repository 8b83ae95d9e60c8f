"""The page of results, ``docs/evidence/reliability.md``: each run replaces its row."""

from __future__ import annotations

import datetime
import platform
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mpgrad.base import machine
from stress.run import Verdict

_HEAD = """# Reliability

These are the results of `scripts/stress`. This command runs all of its programs in about two
hours and writes their rows:

    scripts/stress all --write docs/evidence/reliability.md

`scripts/stress RUN --write FILE` runs one; `scripts/stress --help` explains each. Every run has a
limit of time and count, prints the seed that repeats it, and ends with exit status 0 or 1. Short
forms of all runs are tests (`tests/stress`). `docs/maintainers/guarantees.md` explains what happens
when a process dies.
"""
_TABLE = "| run | verdict | figures | command | date, machine |\n|---|---|---|---|---|\n"
_ROW = re.compile(r"^\| (\w+) \| (?:PASSED|FAILED) \|.*$", re.MULTILINE)


def write_row(path: Path, name: str, verdict: Verdict, command: str, order: Sequence[str]) -> None:
    """Put the result of run ``name`` into the page; keep other rows and the text below them.

    Args:
        path: the page; it is made if it does not exist.
        name: of the run.
        verdict: its result.
        command: the command that repeats it.
        order: names of all runs, in the order of the rows.
    """
    text = path.read_text() if path.exists() else ""
    found = list(_ROW.finditer(text))
    rows = {match[1]: match[0] for match in found}
    below = text[found[-1].end() :] if found else "\n"
    where = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {_machine()}"
    result = "PASSED" if verdict.passed else "FAILED"
    figures = verdict.figures.replace("|", "/")
    rows[name] = f"| {name} | {result} | {figures} | `{command}` | {where} |"
    ordered = [rows[known] for known in order if known in rows]
    path.write_text("\n".join([_HEAD, _TABLE + "\n".join(ordered)]) + below)


def _machine() -> str:
    return ", ".join(
        [
            f"{machine.available_cpus()} cores of {_processor()}",
            f"Linux {platform.release()}",
            f"Python {platform.python_version()}",
            f"NumPy {np.__version__}",
        ]
    )


def _processor() -> str:
    found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()
