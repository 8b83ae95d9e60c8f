"""Disturbance: detects that the processors are slowed down from outside.

On a virtual machine two processors may be two threads of one core, or share it with another guest,
for milliseconds or minutes. A loop then takes nearly twice as long while the system reports an idle
machine. So a short loop runs on two processors at once before and after each sample, and the sample
is taken again if the loop took much longer than usual. The value of the sample itself does not
matter, and all contenders are treated alike.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from mpgrad.base.machine import available_cpus

_ROOT = Path(__file__).resolve().parents[1]
#: Rounds of one loop, about 0.3 ms, and the number of loops for a median.
_ROUNDS, _LOOPS = 30_000, 3
#: The factor from which the processors count as slowed down; two threads of one core differ from
#: two cores by a factor of 1.8.
SLOWED = 1.35
#: The maximum number of times that a sample is taken; and the total time that all samples of a run
#: may wait before they are taken in any case. (The last figure is for quick runs.)
_TRIES, PATIENCE_S, QUICK_PATIENCE_S = 6, 600.0, 30.0
#: The time that one sample waits for an undisturbed moment, and the time between two checks.
_WAIT_S, _LOOK_EVERY_S = 10.0, 0.02


class Disturbance:
    """A context manager; while it is open, a second process sleeps until it is asked to probe.

    Args:
        patience_s: the total time in which samples may wait and be taken again.

    Attributes:
        repeated: the number of samples that were taken again.
        counted: the number of samples that count although the processors were slowed down.
        undisturbed: the number of other samples.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self.repeated = self.counted = self.undisturbed = 0
        self._patience_s = patience_s
        self._usual_s = float("inf")
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Disturbance:
        if available_cpus() > 1:
            here, there = socket.socketpair()
            with there:
                self._child = subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.disturbance", str(there.fileno())],
                    pass_fds=(there.fileno(),),
                    cwd=_ROOT,
                )
            self._connection = Connection(here.detach())
            self._connection.recv_bytes()  # it is ready
            for _ in range(_LOOPS):
                self.is_slowed()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._child is not None:
            self._connection.close()
            self._child.wait()

    def is_slowed(self) -> bool:
        """Probe; a machine with one processor has nothing to probe."""
        if self._child is None:
            return False
        self._connection.send_bytes(b"probe")
        mine_s = _loop_s()
        slowest_s = max(mine_s, float(self._connection.recv_bytes()))
        self._usual_s = min(self._usual_s, slowest_s)
        return slowest_s > SLOWED * self._usual_s

    def wait(self) -> bool:
        """Wait for an undisturbed moment; False if none came."""
        end = time.monotonic() + min(_WAIT_S, self._patience_s)
        while self.is_slowed():
            if time.monotonic() >= end:
                return False
            time.sleep(_LOOK_EVERY_S)
        return True

    def sample(self, take: Callable[[], float]) -> float:
        """The result of ``take``, undisturbed if possible."""
        for attempt in range(_TRIES):
            started = time.monotonic()
            is_calm = self.wait()
            waited_s = time.monotonic() - started
            seconds = take()
            if is_calm and not self.is_slowed():
                self._patience_s -= waited_s
                self.undisturbed += 1
                return seconds
            self._patience_s -= time.monotonic() - started
            if self._patience_s <= 0 or attempt == _TRIES - 1:
                break
            self.repeated += 1
        self.counted += 1
        return seconds

    def __str__(self) -> str:
        count = self.undisturbed + self.counted
        return (
            f"{self.repeated} of {count} samples taken again; {self.counted} count although the "
            "processors were slowed down"
        )


def _loop_s() -> float:
    """Seconds of a loop that depends only on the speed of the processor."""
    took = []
    for _ in range(_LOOPS):
        start = time.perf_counter()
        for _ in range(_ROUNDS):
            pass
        took.append(time.perf_counter() - start)
    return median(took)


def _serve(connection: Connection) -> None:
    """The second process: one loop for each message, until the connection closes."""
    connection.send_bytes(b"ready")
    while True:
        try:
            connection.recv_bytes()
            connection.send_bytes(repr(_loop_s()).encode())
        except (EOFError, OSError):
            break


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
