"""The limit of bare processes: the speed of processes that have nothing to manage.

Each already has its part of the branches, gets one byte through a pipe, computes, writes its
gradients where the caller can read them, and replies with one byte. No engine can be reliably
faster, so this shows how much of the other cores there is.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gil_work import Array, branch_input, spin

_ROOT = Path(__file__).resolve().parents[1]


class BareProcesses:
    """Processes with ``branches`` branches between them; a context manager.

    Args:
        branches: how many in all.
        loops: what each spins.
        elements: float32 elements of each gradient.
        processes: how many of them.
        passes: how often each branch spins.
    """

    def __init__(
        self, branches: int, loops: int, elements: int, processes: int = 2, passes: int = 1
    ) -> None:
        self._work, self._passes = (branches, loops, elements), passes
        cuts = [branches * number // processes for number in range(processes + 1)]
        self._parts = [range(*ends) for ends in pairwise(cuts)]
        nbytes = branches * elements * 4
        self._fd = os.memfd_create("benchmark-gradients")
        os.ftruncate(self._fd, nbytes)
        self._memory = mmap.mmap(self._fd, nbytes)
        self._gradients = np.frombuffer(self._memory, np.float32).reshape(branches, elements)
        self._start_all()

    def _start_all(self) -> None:
        self._children = [self._start(list(mine)) for mine in self._parts]
        for child in self._children:
            _read(child)  # it is ready

    def renew(self) -> None:
        """Other processes in their place."""
        self._end()
        self._start_all()

    def _start(self, mine: list[int]) -> subprocess.Popen[bytes]:
        branches, loops, elements = self._work
        setup = {
            "fd": self._fd,
            "shape": [branches, elements],
            "mine": mine,
            "loops": loops,
            "passes": self._passes,
        }
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bare_processes", json.dumps(setup)],
            pass_fds=(self._fd,),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            cwd=_ROOT,
        )

    def __enter__(self) -> BareProcesses:
        return self

    def __exit__(self, *exc: object) -> None:
        self._end()
        os.close(self._fd)

    def _end(self) -> None:
        """A child ends when its pipe does."""
        for child in self._children:
            _, _ = child.communicate()

    def run(self) -> None:
        """All branches once."""
        for child in self._children:
            self._write(child)
        for child in self._children:
            _read(child)

    def ping(self) -> None:
        """One byte to the first process and back, after its share of the work."""
        self._write(self._children[0])
        _read(self._children[0])

    @staticmethod
    def _write(child: subprocess.Popen[bytes]) -> None:
        assert child.stdin is not None
        child.stdin.write(b"g")

    def gradients(self) -> list[Array]:
        """What the last run computed, one per branch."""
        return list(self._gradients)


def _read(child: subprocess.Popen[bytes]) -> None:
    assert child.stdout is not None
    if child.stdout.read(1) != b"d":
        raise RuntimeError("a bare process has died; its message is above")


def _serve(setup: dict[str, Any]) -> None:
    """The child: branches in, gradients out, until the pipe closes."""
    rows, elements = setup["shape"]
    memory = mmap.mmap(setup["fd"], rows * elements * 4)
    gradients = np.frombuffer(memory, np.float32).reshape(rows, elements)
    held = [(branch_input(branch, elements), gradients[branch]) for branch in setup["mine"]]
    loops, passes = setup["loops"], setup["passes"]
    os.write(1, b"d")
    while os.read(0, 1):
        for x, gradient in held:
            for _ in range(passes):
                np.multiply(x, np.float32(spin(loops)), out=gradient)
        os.write(1, b"d")


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
