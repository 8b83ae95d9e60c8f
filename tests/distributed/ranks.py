"""Runs a script in several ranks by ``mpgrad run``, and gives what each of them printed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.python_path import path_to

ROOT = Path(__file__).parents[2]

#: Seconds after which a test has hung.
HANGS_S = 550.0


class Ran(NamedTuple):
    """What came of it."""

    code: int
    #: The lines of standard output, by rank.
    lines: dict[int, list[str]]
    errors: str


def run_ranks(
    directory: Path,
    source: str,
    ranks: int,
    *arguments: str,
    script_arguments: Sequence[str] = (),
    **environment: str,
) -> Ran:
    """Run ``source`` in that many ranks; ``arguments`` are those of ``mpgrad run``."""
    path = directory / "script.py"
    path.write_text(source)
    command = [sys.executable, "-m", "mpgrad", "run", "--nproc-per-node", str(ranks), *arguments]
    done = subprocess.run(
        [*command, str(path), *script_arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_S,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path_to(ROOT), **environment},
    )
    lines = defaultdict(list)
    for line in done.stdout.splitlines():
        head, _, text = line.partition("] ")
        lines[int(head.removeprefix("[rank "))].append(text)
    return Ran(done.returncode, lines, done.stderr)


def rank_environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What ``mpgrad run`` would set for a rank that the user starts, of those at 127.0.0.1."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
