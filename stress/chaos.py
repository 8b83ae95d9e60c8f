"""chaos: workers and coordinators die at random instants during a training; no bit may change.

The test checks these promises: the engine recovers from the death of a worker without the user's
help, even if workers die again and again while they start. After the death of a coordinator, the
engine runs the backward again (``recover="all"``) unless a hook or a Function has already run in
this process, or four of them have died meanwhile; then it raises CoordinatorLost, no gradient has
changed, and the training repeats the step.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from dataclasses import dataclass, field
from functools import partial

import mpgrad as mg
from mpgrad.engine.execution import RECOVERIES_MAX
from mpgrad.errors import CoordinatorLost
from stress.killer import Killer
from stress.load import BothPasses, Training
from stress.run import Run, Verdict, count, minutes
from tests.leftovers import Leftovers, left_since

#: Steps after which the training starts again from the same weights.
STEPS = 12
#: By default, one coordinator is killed per this many workers.
WORKERS_PER_COORDINATOR = 20


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=count, default=20, metavar="N", help="workers to kill")
    parser.add_argument(
        "--coordinators",
        type=int,
        metavar="N",
        help=f"coordinators to kill; default: one per {WORKERS_PER_COORDINATOR} workers",
    )
    parser.add_argument("--seed", type=int, help="of instants and victims; default: drawn")
    parser.add_argument("--minutes", type=minutes, default=2.0, metavar="M", help="at most")
    parser.add_argument("--workers", type=count, default=2, metavar="W", help="CPU workers")


def _perform(name: str, load: type[Training], options: argparse.Namespace) -> Verdict:
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    if options.coordinators is None:
        options.coordinators = options.kills // WORKERS_PER_COORDINATOR
    print(
        f"{name}: --seed {seed} --kills {options.kills} --coordinators {options.coordinators} "
        f"--workers {options.workers}",
        flush=True,
    )
    with mg.Engine("local"):
        expected = _fingerprints(load, seed)
    with mg.Engine("process", cpu_workers=1):
        load(seed).step()  # opens what this process keeps open
    before = Leftovers.now()
    tally = _train_under_fire(options, load, seed, expected)
    left = left_since(before)
    passed = not (tally.wrong or tally.errors or left or tally.unreplaced) and tally.kills > 0
    return Verdict(passed, f"{tally.figures()}, {left or 'nothing'} left")


def _fingerprints(load: type[Training], seed: int) -> list[str]:
    training = load(seed)
    return [training.step() for _ in range(STEPS)]


@dataclass
class Tally:
    """The events of a run. Times are seconds of each step."""

    kills: int = 0
    starting: int = 0
    coordinators: int = 0
    templates: int = 0
    #: Backwards that the engine ran again, and steps that the training repeated.
    recovered: int = 0
    repeated: int = 0
    #: Kills without a following restart; known only if no coordinator died, which counts them.
    unreplaced: int = 0
    wrong: int = 0
    errors: list[str] = field(default_factory=list)
    #: Steps without kills, steps with kills, and steps in which a coordinator died.
    calm: list[float] = field(default_factory=list)
    stormy: list[float] = field(default_factory=list)
    revived: list[float] = field(default_factory=list)

    def figures(self) -> str:
        steps = len(self.calm) + len(self.stormy) + len(self.revived)
        calm_ms = 1000 * statistics.median(self.calm or [0.0])
        words = [
            f"{self.kills} workers killed ({self.starting} of them while they started)",
            f"{self.templates} templates of workers killed",
            f"{self.coordinators} coordinators killed ({self.recovered} backwards run again by the "
            f"engine, {self.repeated} steps by the training after the CoordinatorLost that is due "
            "when hooks have run, or four have died)",
            f"{steps} backwards",
            f"{self.wrong} wrong gradients",
            f"{_lost_ms(self.stormy, self.kills, calm_ms):.0f} ms lost per worker, "
            f"{_lost_ms(self.revived, self.coordinators, calm_ms):.0f} ms per coordinator "
            f"(a calm step takes {calm_ms:.0f} ms)",
        ]
        if self.unreplaced:
            words.append(f"{self.unreplaced} workers were not replaced")
        if self.errors:
            words.append(f"{len(self.errors)} errors, the first: {self.errors[0]}")
        return ", ".join(words)


def _lost_ms(seconds: list[float], deaths: int, calm_ms: float) -> float:
    return (1000 * sum(seconds) - calm_ms * len(seconds)) / max(deaths, 1)


def _train_under_fire(
    options: argparse.Namespace, load: type[Training], seed: int, expected: list[str]
) -> Tally:
    tally = Tally()
    deadline = time.monotonic() + 60 * options.minutes
    recover = "all" if options.coordinators else "worker"
    with mg.Engine("process", cpu_workers=options.workers, recover=recover) as engine:
        _train(load(seed), expected, tally)
        killer = Killer(engine, random.Random(seed), options.kills, options.coordinators)
        killer.start()
        while killer.is_alive() and time.monotonic() < deadline:
            _train(load(seed), expected, tally, killer)
        killer.stop()
        # Effects of the last kill show here.
        _train(load(seed), expected, tally)
        tally.kills, tally.starting = killer.workers, killer.starting
        tally.coordinators, tally.templates = killer.coordinators, killer.templates
        figures = engine.statistics()
        tally.recovered = figures.recoveries
        if not killer.coordinators:
            tally.unreplaced = killer.workers - figures.restarts
    return tally


def _train(
    training: Training, expected: list[str], tally: Tally, killer: Killer | None = None
) -> None:
    """The whole training, or as much of it as runs while the killer is alive."""
    died = 0 if killer is None else killer.coordinators
    for number, fingerprint in enumerate(expected):
        if killer is not None and not killer.is_alive():
            break
        if killer is not None:
            killer.step_begins()
        start = time.perf_counter()
        try:
            found = training.step(partial(_is_due, killer, died))
        except Exception as error:
            tally.errors.append(f"step {number}: {type(error).__name__}: {error}")
            break
        seconds = time.perf_counter() - start
        if killer is None:
            tally.calm.append(seconds)
        else:
            (tally.stormy if killer.coordinators == died else tally.revived).append(seconds)
            died = killer.coordinators
        if found != fingerprint:
            tally.wrong += 1
            break
    tally.repeated += training.repeated


def _is_due(killer: Killer | None, died: int, error: Exception) -> bool:
    """Whether the death of a coordinator may cause this error, when so many had ``died`` before."""
    if not isinstance(error, CoordinatorLost) or killer is None:
        return False
    return error.has_run_user_code or killer.coordinators - died > RECOVERIES_MAX


CHAOS = Run(
    "chaos",
    "kill workers and coordinators at random while a training runs; compare every gradient bitwise",
    _add_options,
    partial(_perform, "chaos", Training),
)
CALLS = Run(
    "calls",
    "as chaos, with branches that workers run forward, too: maps, sums, forks",
    _add_options,
    partial(_perform, "calls", BothPasses),
)
