"""nightly: goes round the runs until its time is over, with seeds that were never run before.

One page has the sums: per run how many turns, what failed, and the seeds so far. The seeds of a
turn are written there before it begins, so that no night repeats them, however the last one ended.
Each turn is a process of its own.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from stress.run import minutes

#: The first seed of a page that does not exist yet, far from those of the tests.
FIRST_SEED = 400_000_000
#: A turn that takes so many seconds has failed.
TURN_S_MAX = 3600.0
#: The lines that are kept of a turn that fails.
LINES_KEPT = 60


class Kind(NamedTuple):
    """One kind of turn.

    Attributes:
        name: of the run.
        words: its options.
        seed: the option that takes the first seed; none for a run without.
        seeds: how many seeds a turn uses.
    """

    name: str
    words: tuple[str, ...] = ()
    seed: str = "--seed"
    seeds: int = 1


#: In this order; each takes one to five minutes on two cores.
KINDS = (
    Kind("simulation", ("--seeds", "5000", "--minutes", "50"), "--first", 5000),
    Kind("chaos", ("--kills", "50", "--coordinators", "3", "--minutes", "20")),
    Kind("calls", ("--kills", "50", "--coordinators", "3", "--minutes", "20")),
    Kind("fuzz"),
    Kind("files", ("--files", "20000")),
    Kind("functions", ("--programs", "500")),
    Kind("operators", ("--calls", "5000")),
    Kind("storm"),
    Kind("hosts", ("--kills", "20", "--frames", "20000", "--minutes", "20")),
    Kind("elastic", ("--kills", "8", "--minutes", "20")),
    *([Kind("cluster", ("--kills", "20", "--minutes", "20"))] if find_spec("ray") else []),
    Kind("soak", ("--backwards", "20000", "--minutes", "20")),
    Kind("oom", ("--rounds", "5"), ""),
    Kind("hostile", (), ""),
)


class Sums(NamedTuple):
    """What the page says of one run."""

    turns: int = 0
    failed: int = 0
    first: int = FIRST_SEED
    #: The next seed.
    upcoming: int = FIRST_SEED
    minutes: float = 0.0


class Turn(NamedTuple):
    """How a turn has ended."""

    passed: bool
    #: The last lines that it has printed.
    lines: list[str]


Perform = Callable[[list[str]], Turn]

_HEAD = """# Nights

The sums of `scripts/stress nightly`: it goes round the runs with seeds that no row has had.

| run | turns | failed | seeds | minutes |
|---|---|---|---|---|
"""
_ROW = re.compile(r"^\| (\w+) \| (\d+) \| (\d+) \| (?:(\d+) to (\d+)|-) \| ([\d.]+) \|$")
_FAILURES = "\n## What failed\n"


class Page:
    """The page of sums; every change is written at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.sums: dict[str, Sums] = {}
        table, _, self._failures = (path.read_text() if path.exists() else "").partition(_FAILURES)
        for row in map(_ROW.match, table.splitlines()):
            if row is not None:
                first, last = row[4] or FIRST_SEED, int(row[5] or FIRST_SEED - 1)
                self.sums[row[1]] = Sums(
                    int(row[2]), int(row[3]), int(first), last + 1, float(row[6])
                )

    def begin(self, kind: Kind) -> list[str]:
        """Take the seeds of a turn; the words of its command."""
        sums = self.sums.get(kind.name, Sums())
        words = [kind.name, *kind.words]
        if kind.seed:
            words += [kind.seed, str(sums.upcoming)]
            sums = sums._replace(upcoming=sums.upcoming + kind.seeds)
        self.sums[kind.name] = sums
        self._write()
        return words

    def end(self, kind: Kind, words: list[str], turn: Turn, took_s: float) -> None:
        """Count a turn."""
        sums = self.sums[kind.name]
        self.sums[kind.name] = sums._replace(
            turns=sums.turns + 1,
            failed=sums.failed + (not turn.passed),
            minutes=sums.minutes + took_s / 60,
        )
        if not turn.passed:
            when = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M}"
            said = "\n".join(f"    {line}" for line in turn.lines)
            self._failures += f"\n{when}, `scripts/stress {' '.join(words)}`:\n\n{said}\n"
        self._write()

    def _write(self) -> None:
        rows = "\n".join(_row(name, sums) for name, sums in self.sums.items())
        failures = _FAILURES + self._failures if self._failures else ""
        self._path.write_text(_HEAD + rows + "\n" + failures)


def _row(name: str, sums: Sums) -> str:
    seeds = f"{sums.first} to {sums.upcoming - 1}" if sums.upcoming > sums.first else "-"
    return f"| {name} | {sums.turns} | {sums.failed} | {seeds} | {sums.minutes:.1f} |"


def perform(words: list[str]) -> Turn:
    """Perform one turn in a process of its own."""
    command = [sys.executable, "-m", "stress", *words]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            timeout=TURN_S_MAX, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Turn(False, [f"had not ended after {TURN_S_MAX:g} s"])
    return Turn(done.returncode == 0, done.stdout.splitlines()[-LINES_KEPT:])


def run_night(
    page: Page,
    limit_s: float,
    kinds: tuple[Kind, ...] = KINDS,
    perform: Perform = perform,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Go round until ``limit_s`` are over; the last turn is finished. The number of failed turns.

    A night goes on with the kind that has had the fewest turns.
    """
    start, failed = clock(), 0
    while clock() - start < limit_s:
        kind = min(kinds, key=lambda one: page.sums.get(one.name, Sums()).turns)
        words, began = page.begin(kind), clock()
        turn = perform(words)
        page.end(kind, words, turn, clock() - began)
        failed += not turn.passed
        last = turn.lines[-1] if turn.lines else "nothing was printed"
        print(last if turn.passed else f"{kind.name}: FAILED: see the page", flush=True)
    return failed


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of ``scripts/stress nightly``."""
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--hours", type=minutes, metavar="H", help="how long; default: 8")
    length.add_argument("--minutes", type=minutes, metavar="M", help="how long")
    parser.add_argument(
        "--page", type=Path, default=Path("nightly.md"), metavar="FILE", help="the page of sums"
    )
    parser.add_argument(
        "--runs",
        type=lambda text: text.split(","),
        metavar="RUN,...",
        help="only these: " + ", ".join(kind.name for kind in KINDS),
    )


def nightly(options: argparse.Namespace) -> int:
    """Perform it; the exit status."""
    limit_s = 60 * (options.minutes or 60 * (options.hours or 8.0))
    kinds = tuple(kind for kind in KINDS if options.runs is None or kind.name in options.runs)
    if not kinds:
        print("nightly: no such run")
        return 2
    page = Page(options.page)
    failed = run_night(page, limit_s, kinds)
    print(f"nightly: {failed} turns failed; the sums are in {options.page}")
    return 1 if failed else 0
