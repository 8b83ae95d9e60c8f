"""files: damaged and hostile files for ``mg.load``, in processes of their own.

Each is loaded and used as a program would, or refused with the error that is due; no process
dies, no file takes memory or processor time without end.
"""

from __future__ import annotations

import argparse
import collections
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from stress.run import Run, Verdict, count, progress_bar, seed_of

#: Files of one process, and seconds after which it is taken for stuck.
OF_A_PROCESS, STUCK_S = 2000, 900
#: Faults that are printed.
PRINTED = 40


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--files", type=count, default=10_000, metavar="N", help="how many")
    parser.add_argument("--seed", type=int, help="of the files; default: drawn")


def _perform(options: argparse.Namespace) -> Verdict:
    seed = seed_of(options)
    print(f"files: --seed {seed} --files {options.files}", flush=True)
    start = time.monotonic()
    tally: collections.Counter[str] = collections.Counter()
    with progress_bar() as progress:
        bar = progress.add_task("files", total=options.files)
        for number, said in _outcomes(seed, options.files):
            progress.advance(bar)
            word = said.partition(":")[0]
            tally[word] += 1
            if word == "fault" and tally[word] <= PRINTED:
                print(f"file {number}: {said}", flush=True)
    faults = options.files - tally["loaded"] - tally["refused"]
    return Verdict(
        not faults,
        f"{options.files:,} files, {tally['loaded']:,} loaded and used, {tally['refused']:,} "
        f"refused, {faults:,} faults; {time.monotonic() - start:.0f} s",
    )


def _outcomes(seed: int, files: int) -> Iterator[tuple[int, str]]:
    """The number of each file, and what came of it; the process of a fault is replaced."""
    first = 0
    while first < files:
        number = min(OF_A_PROCESS, files - first)
        lines = _lines([*map(str, (seed, first, number))])
        ended, *outcomes = lines
        yield from enumerate(outcomes, first)
        first += len(outcomes)
        if len(outcomes) < number:
            yield first, f"fault: the process ended: {ended}"
            first += 1


def _lines(words: list[str]) -> list[str]:
    """How a process ended, and what it said about each of its files."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "stress.file_loads", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=STUCK_S,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
    except subprocess.TimeoutExpired as stuck:
        output = stuck.stdout or b""
        text = output.decode() if isinstance(output, bytes) else output
        return [f"stuck for {STUCK_S} s", *_about(text)]
    ended = f"status {done.returncode} {done.stderr[-200:]!a}"
    return [ended, *_about(done.stdout)]


def _about(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.isdecimal()]


FILES = Run(
    "files",
    "damaged and hostile files: each loads and can be used, or is refused with a clear error",
    _add_options,
    _perform,
)
