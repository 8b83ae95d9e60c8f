"""The limit of bare processes for perceptrons: each has some, gets a byte, runs both passes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from benchmarks.perceptron_arrays import Perceptrons


class BarePerceptrons:
    """Processes that have some of the perceptrons each; a context manager.

    Args:
        shape: all perceptrons.
        processes: how many processes there are.
    """

    def __init__(self, shape: Perceptrons, processes: int) -> None:
        self._shape, self._processes = shape, processes
        self._start()

    def _start(self) -> None:
        share = self._shape._replace(branches=self._shape.branches // self._processes)
        self._children = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.bare_perceptrons", json.dumps(share)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # as in workers
                cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
            )
            for _ in range(self._processes)
        ]
        self._wait()

    def renew(self) -> None:
        """Other processes in their place."""
        self._end()
        self._start()

    def run(self) -> None:
        """Both passes of all perceptrons."""
        for child in self._children:
            assert child.stdin is not None
            child.stdin.write(b"g")
        self._wait()

    def _wait(self) -> None:
        for child in self._children:
            assert child.stdout is not None
            if child.stdout.read(1) != b"d":
                raise RuntimeError("a bare process has died; its message is above")

    def _end(self) -> None:
        for child in self._children:
            child.communicate()

    def __enter__(self) -> BarePerceptrons:
        return self

    def __exit__(self, *exc: object) -> None:
        self._end()


def _serve(shape: Perceptrons) -> None:
    import mpgrad as mg
    from benchmarks.workloads.perceptrons import program

    work = program(shape, mg)
    with mg.Engine("local"):
        os.write(1, b"d")
        while os.read(0, 1):
            for leaf in work.leaves:
                leaf.grad = None
            work.forward().backward()
            os.write(1, b"d")


if __name__ == "__main__":
    _serve(Perceptrons(*json.loads(sys.argv[1])))
