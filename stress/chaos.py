"""chaos: workers die at random instants while a training runs; no bit of it may change."""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

import mpgrad as mg
from mpgrad.testing.leftovers import Leftovers, left_since
from stress.load import Training
from stress.run import Run, Verdict, count, minutes

#: Steps after which the training starts again from the same weights.
STEPS = 12
#: Seconds between two kills: often shorter than a worker needs to start, or a step to finish.
PAUSES_S = (0.02, 0.6)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=count, default=20, metavar="N", help="workers to kill")
    parser.add_argument("--seed", type=int, help="of instants and victims; default: drawn")
    parser.add_argument("--minutes", type=minutes, default=2.0, metavar="M", help="at most")
    parser.add_argument("--workers", type=count, default=2, metavar="W", help="CPU workers")


def _perform(options: argparse.Namespace) -> Verdict:
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"chaos: --seed {seed} --kills {options.kills} --workers {options.workers}", flush=True)
    with mg.Engine("local"):
        expected = _fingerprints(seed)
    with mg.Engine("process", cpu_workers=1):
        Training(seed).step()  # opens what this process keeps open
    before = Leftovers.now()
    tally = _train_under_fire(options, seed, expected)
    left = left_since(before)
    passed = not (tally.wrong or tally.errors or left) and tally.restarts == tally.kills > 0
    return Verdict(passed, f"{tally.figures()}, {left or 'nothing'} left")


def _fingerprints(seed: int) -> list[str]:
    training = Training(seed)
    return [training.step() for _ in range(STEPS)]


@dataclass
class Tally:
    """What happened. Times are seconds of each step: while nobody was killed, and in the storm."""

    kills: int = 0
    restarts: int = 0
    wrong: int = 0
    errors: list[str] = field(default_factory=list)
    calm: list[float] = field(default_factory=list)
    stormy: list[float] = field(default_factory=list)

    def figures(self) -> str:
        calm_s = statistics.median(self.calm or [0.0])
        lost_s = (sum(self.stormy) - calm_s * len(self.stormy)) / max(self.kills, 1)
        words = [
            f"{self.kills} kills ({self.restarts} workers restarted)",
            f"{len(self.calm) + len(self.stormy)} backwards",
            f"{self.wrong} wrong gradients",
            f"{1000 * lost_s:.0f} ms lost per kill (a calm step takes {1000 * calm_s:.0f} ms)",
        ]
        if self.errors:
            words.append(f"{len(self.errors)} errors, the first: {self.errors[0]}")
        return ", ".join(words)


def _train_under_fire(options: argparse.Namespace, seed: int, expected: list[str]) -> Tally:
    tally = Tally()
    deadline = time.monotonic() + 60 * options.minutes
    with mg.Engine("process", cpu_workers=options.workers) as engine:
        _train(seed, expected, tally, tally.calm)
        killer = _Killer(engine, seed, options.kills)
        killer.start()
        while killer.is_alive() and time.monotonic() < deadline:
            _train(seed, expected, tally, tally.stormy, killer)
        killer.stop()
        # Whatever the last kill left behind shows here.
        _train(seed, expected, tally, tally.calm)
        tally.kills, tally.restarts = killer.kills, engine.statistics().restarts
    return tally


def _train(
    seed: int,
    expected: list[str],
    tally: Tally,
    seconds: list[float],
    killer: _Killer | None = None,
) -> None:
    """The whole training, or as much of it as the killer lives for."""
    training = Training(seed)
    for number, fingerprint in enumerate(expected):
        if killer is not None and not killer.is_alive():
            return
        start = time.perf_counter()
        try:
            found = training.step()
        except Exception as error:
            tally.errors.append(f"step {number}: {type(error).__name__}: {error}")
            return
        seconds.append(time.perf_counter() - start)
        if found != fingerprint:
            tally.wrong += 1
            return


class _Killer(threading.Thread):
    """Sends SIGKILL to one worker after another."""

    def __init__(self, engine: mg.Engine, seed: int, kills: int) -> None:
        super().__init__(name="killer")
        self._engine, self._random, self._wanted = engine, random.Random(seed), kills
        self._stop_asked = threading.Event()
        self.kills = 0

    def run(self) -> None:
        while self.kills < self._wanted:
            if self._stop_asked.wait(self._random.uniform(*PAUSES_S)):
                return
            workers = self._engine.worker_pids()
            if not workers:
                continue
            with suppress(ProcessLookupError):
                os.kill(self._random.choice(workers), signal.SIGKILL)
                self.kills += 1

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()


CHAOS = Run(
    "chaos",
    "kill workers at random while a training runs, and compare every gradient bit for bit",
    _add_options,
    _perform,
)
