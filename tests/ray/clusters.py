"""Ray clusters on this machine, and what is left of a program that used one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.distributed.ranks import HANGS_S, ROOT
from tests.python_path import path_to

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": path_to(ROOT),
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class Nodes:
    """A cluster.

    Attributes:
        address: as ``ray.init`` takes it.
        mark: in the environment of all its processes.
    """

    def __init__(self, process: subprocess.Popen[str], mark: str) -> None:
        self._process, self.mark = process, mark
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
def two_nodes(count: int = 2) -> Iterator[Nodes]:
    """Start a cluster, of two nodes or of more."""
    command = [sys.executable, str(Path(__file__).with_name("two_nodes.py")), str(count)]
    # Not below pytest's directories: Ray's sockets lie there, whose paths may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray") as directory:
        environment = {**ENVIRONMENT, "RAY_TMPDIR": directory}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as process:
            yield Nodes(process, f"RAY_TMPDIR={directory}")
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
