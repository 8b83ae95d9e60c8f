"""Runs a script in several ranks by ``mpgrad run``, and gives what each of them printed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

#: Seconds after which a test has hung.
HANGS_S = 240.0


class Ran(NamedTuple):
    """What came of it."""

    code: int
    #: The lines of standard output, by rank.
    lines: dict[int, list[str]]
    errors: str


def run_ranks(directory: Path, source: str, ranks: int, *arguments: str, **environment: str) -> Ran:
    """Run ``source`` in that many ranks; ``arguments`` are those of ``mpgrad run``."""
    path = directory / "script.py"
    path.write_text(source)
    command = [sys.executable, "-m", "mpgrad", "run", "--nproc-per-node", str(ranks), *arguments]
    done = subprocess.run(
        [*command, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_S,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    lines = defaultdict(list)
    for line in done.stdout.splitlines():
        head, _, text = line.partition("] ")
        lines[int(head.removeprefix("[rank "))].append(text)
    return Ran(done.returncode, lines, done.stderr)
