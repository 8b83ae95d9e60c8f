"""simulation: very many simulated engines with injected faults (``simulation.World``)."""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing import get_context

from mpgrad.base import machine
from simulation import WorldFailure
from simulation.many_worlds import Tally, run_worlds
from stress.run import Run, Verdict, count, minutes, progress_bar

#: The number of Worlds that one process runs before it reports.
CHUNK = 100
#: Seeds are drawn below this.
SEED_MAX = 10**9


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=count, default=200_000, metavar="N", help="how many Worlds")
    parser.add_argument("--first", type=int, metavar="S", help="the first seed; default: drawn")
    parser.add_argument("--minutes", type=minutes, default=20.0, metavar="M", help="at most")
    parser.add_argument(
        "--processes",
        type=count,
        default=machine.available_cpus(),
        metavar="P",
        help="side by side",
    )


def _perform(options: argparse.Namespace) -> Verdict:
    drawn = random.SystemRandom().randrange(SEED_MAX)
    first = drawn if options.first is None else options.first
    print(f"simulation: --first {first} --seeds {options.seeds}", flush=True)
    start = time.monotonic()
    tally, failure = _run_all(options, first, start + 60 * options.minutes)
    figures = f"{tally.worlds:,} worlds, seeds {first} to {first + options.seeds - 1}"
    if failure is not None:
        # The last line is the command that repeats it.
        print(failure)
        return Verdict(False, f"{figures}, then: {failure.splitlines()[0]}")
    print(*tally.lines(), sep="\n")
    is_complete = tally.worlds == options.seeds
    cut = "" if is_complete else f", {options.seeds - tally.worlds:,} not run for want of time"
    seconds = time.monotonic() - start
    return Verdict(is_complete, f"{figures}{cut}, 0 violations, {seconds:.0f} s")


def _run_all(options: argparse.Namespace, first: int, deadline: float) -> tuple[Tally, str | None]:
    """The tally of all Worlds until the first failure or the deadline, and that failure."""
    tally = Tally()
    chunks = _chunks(first, options.seeds)
    with (
        progress_bar() as progress,
        ProcessPoolExecutor(options.processes, get_context("spawn"), _be_patient) as pool,
    ):
        bar = progress.add_task("worlds", total=options.seeds)
        running: set[Future[Tally | str]] = set()
        while time.monotonic() < deadline:
            for chunk in islice(chunks, 2 * options.processes - len(running)):
                running.add(pool.submit(_run_chunk, chunk))
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for result in (future.result() for future in done):
                if isinstance(result, str):
                    pool.shutdown(wait=False, cancel_futures=True)
                    return tally, result
                tally.update(result)
                progress.update(bar, completed=tally.worlds)
        pool.shutdown(wait=True, cancel_futures=True)
    return tally, None


def _chunks(first: int, seeds: int) -> Iterator[range]:
    for start in range(first, first + seeds, CHUNK):
        yield range(start, min(start + CHUNK, first + seeds))


def _run_chunk(seeds: range) -> Tally | str:
    try:
        return run_worlds(seeds)
    except WorldFailure as failure:
        return str(failure)  # its causes contain objects that cannot be pickled
    finally:
        gc.collect()


def _be_patient() -> None:
    """Switch the collector off: Worlds are full of cycles, but a chunk's garbage is small."""
    gc.disable()


SIMULATION = Run(
    "simulation",
    "run simulated engines with faults at every step, checked by an exact oracle",
    _add_options,
    _perform,
)
