"""storm: many threads and many client processes call ``backward()`` at once.

``python -m stress.storm SEED BACKWARDS`` is one of those processes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import mpgrad as mg
from mpgrad.engine.blas import blas_limit
from stress.load import Training
from stress.run import Run, Verdict, count, minutes, progress_bar, seed_of
from tests.leftovers import Leftovers, left_since

#: The number of different trainings; threads and processes share them: each is computed once.
TRAININGS = 5


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=count, default=50, metavar="T", help="of one client")
    parser.add_argument("--clients", type=count, default=10, metavar="C", help="processes")
    parser.add_argument("--backwards", type=count, default=10, metavar="N", help="of each of them")
    parser.add_argument("--seed", type=int, help="of the values; default: drawn")
    parser.add_argument("--minutes", type=minutes, default=10.0, metavar="M", help="at most")


def _perform(options: argparse.Namespace) -> Verdict:
    seed = seed_of(options)
    print(
        f"storm: --seed {seed} --threads {options.threads} --clients {options.clients} "
        f"--backwards {options.backwards}",
        flush=True,
    )
    expected = [fingerprints(seed + number, options.backwards) for number in range(TRAININGS)]
    with mg.Engine("process", cpu_workers=1):
        Training(seed).step()  # opens what this process keeps open
    before = Leftovers.now()
    start = time.monotonic()
    with mg.Engine("process") as engine, progress_bar() as progress:
        bar = progress.add_task("backwards", total=options.backwards * options.threads)
        clients = [_Client(seed, options, number) for number in range(options.clients)]
        everybody = threading.Barrier(options.threads)
        deadline = start + 60 * options.minutes

        def train(number: int) -> list[str]:
            training = Training(seed + number % TRAININGS)
            found: list[str] = []
            everybody.wait()
            while len(found) < options.backwards and time.monotonic() < deadline:
                found.append(training.step())
                progress.advance(bar)
            return found

        with ThreadPoolExecutor(options.threads) as pool:
            try:
                of_threads = list(pool.map(train, range(options.threads)))
            except KeyboardInterrupt:
                deadline = 0.0  # the threads stop after their current backward
                raise
        of_clients = [client.fingerprints(deadline) for client in clients]
        failed = engine.statistics().failed
    seconds = time.monotonic() - start
    left = left_since(before)
    of_all = [*enumerate(of_threads), *enumerate(of_clients)]
    wrong = sum(found != expected[number % TRAININGS] for number, found in of_all)
    of_clients_wrong = sum(
        found != expected[number % TRAININGS] for number, found in enumerate(of_clients)
    )
    done = sum(len(found) for _, found in of_all)
    return Verdict(
        not (wrong or failed or left),
        f"{options.threads} threads and {options.clients} client processes at once, {done:,} "
        f"backwards in {seconds:.0f} s, {wrong} of {len(of_all)} trainings wrong or unfinished "
        f"({of_clients_wrong} of them in client processes), "
        f"{failed} backwards failed, {left or 'nothing'} left",
    )


def fingerprints(seed: int, steps: int, mode: str = "local") -> list[str]:
    """The fingerprints of a whole training."""
    with mg.Engine(mode):
        training = Training(seed)
        return [training.step() for _ in range(steps)]


class _Client:
    """A client process with its own engine."""

    def __init__(self, seed: int, options: argparse.Namespace, number: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "stress.storm", str(seed + number % TRAININGS),
             str(options.backwards)],
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def fingerprints(self, deadline: float) -> list[str]:
        """Its result; empty if it failed or is late."""
        try:
            printed, _ = self._process.communicate(timeout=max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return []
        return printed.split() if self._process.returncode == 0 else []


STORM = Run(
    "storm",
    "many threads and many client processes call backward() at once: right gradients, no leftovers",
    _add_options,
    _perform,
)

if __name__ == "__main__":
    with blas_limit(1):
        print(*fingerprints(int(sys.argv[1]), int(sys.argv[2]), "process"), sep="\n")
