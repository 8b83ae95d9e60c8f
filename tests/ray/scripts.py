"""Scripts that use a cluster, and what they print."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

from tests.leftovers import wait_until
from tests.ray.clusters import ENVIRONMENT, processes_with

#: Prints the digest of what ``work`` gives in ``local``, and on the cluster; ``between`` runs
#: between the passes.
FRAME = """
import hashlib, sys, warnings
import mpgrad as mg

def between():
    pass

def digest_of(arrays):
    return hashlib.sha256(b"".join([a.tobytes() for a in arrays])).hexdigest()

def hosts_of(engine):
    return engine._made.hosts

{work}

if __name__ == "__main__":
    with mg.Engine("local"):
        print("local", digest_of(work()), flush=True)
    with mg.Engine("process", cluster=sys.argv[1]) as engine:
        {between}
        print("hosts", digest_of(work()), flush=True)
        {after}
"""


def script_of(directory: Path, work: str, between: str = "", after: str = "") -> Path:
    path = directory / "script.py"
    path.write_text(FRAME.format(work=work, between=between.strip(), after=after))
    return path


def run(cluster: str, script: Path, variables: dict[str, str] | None = None) -> list[str]:
    """What it prints; all that it started has ended."""
    mark = uuid.uuid4().hex
    done = subprocess.run(
        [sys.executable, str(script), cluster],
        capture_output=True,
        text=True,
        check=False,
        timeout=60.0,
        env={**ENVIRONMENT, "MPGRAD_MARK_OF_TEST": mark, **(variables or {})},
    )
    assert done.returncode == 0, done.stderr
    wait_until(lambda: not processes_with(mark), 60.0)
    assert processes_with(mark) == []
    return done.stdout.splitlines()


class Begun:
    """A script that waits for a line, with the mark of all that it starts."""

    def __init__(self, cluster: str, script: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, str(script), cluster],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**ENVIRONMENT, "MPGRAD_MARK_OF_TEST": self.mark},
        )

    def until(self, text: str) -> list[str]:
        """Read until a line begins with ``text``."""
        assert self.process.stdout is not None
        found: list[str] = []
        while not (found and found[-1].startswith(text)):
            line = self.process.stdout.readline()
            assert line, self.process.communicate()[1]
            found.append(line.strip())
        return found

    def end(self, said: str = "") -> tuple[int, list[str], str]:
        output, errors = self.process.communicate(said, timeout=60.0)
        wait_until(lambda: not processes_with(self.mark), 60.0)
        assert processes_with(self.mark) == []
        return self.process.returncode, output.splitlines(), errors


def digests(lines: list[str]) -> dict[str, str]:
    return dict(line.split() for line in lines if line.startswith(("local ", "hosts ")))
