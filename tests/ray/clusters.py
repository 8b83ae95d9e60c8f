"""Ray clusters of two nodes on this machine, and what is left of a program that used one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.distributed.ranks import HANGS_S, ROOT
from tests.python_path import path_to

needs_ray = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.ray,
    pytest.mark.process,
    pytest.mark.slow,
]

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": path_to(ROOT),
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class TwoNodes:
    """A cluster of two nodes.

    Attributes:
        address: as ``ray.init`` takes it.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = self._read()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def order(self, what: str) -> None:
        """See ``two_nodes.py``; returns when it is done."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        self._read()


@contextmanager
def two_nodes() -> Iterator[TwoNodes]:
    """Start a cluster."""
    command = [sys.executable, str(Path(__file__).with_name("two_nodes.py"))]
    # Not below pytest's directories: Ray's sockets lie there, whose paths may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray") as directory:
        environment = {**ENVIRONMENT, "RAY_TMPDIR": directory}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as process:
            yield TwoNodes(process)
            process.communicate("", timeout=HANGS_S)


def processes_with(mark: str) -> list[int]:
    """Those whose environment has the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found
