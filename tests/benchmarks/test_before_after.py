"""The comparison of two checkouts: here of this one with itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.process
def test_a_checkout_beside_itself():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.before_after", ".", str(ROOT), "wide", "--rounds", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    times, ratio, counts = [
        [line for line in done.stdout.splitlines() if part in line]
        for part in (" ms (", "before / after: ", " tasks; ")
    ]
    assert len(times) == len(counts) == 2
    assert len(ratio) == 1
    for line in counts:
        # One row for the client, the coordinator and each worker.
        assert len(re.findall(r"\[\d[\d.]*, \d[\d.]*\]", line)) == 5, line
