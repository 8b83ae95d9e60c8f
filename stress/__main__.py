"""``scripts/stress RUN [options]``: performs one run (or ``all``); exit status 0 if it passed."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from mpgrad.engine.blas import blas_limit
from stress.branches import BRANCHES
from stress.chaos import CALLS, CHAOS
from stress.cluster import CLUSTER
from stress.deep import DEEP
from stress.elastic import ELASTIC
from stress.files import FILES
from stress.functions import FUNCTIONS
from stress.fuzz import FUZZ
from stress.hostile import HOSTILE
from stress.hosts import HOSTS
from stress.nightly import add_options, nightly
from stress.oom import OOM
from stress.operators import OPERATORS
from stress.page import write_row
from stress.run import Run, seed_of
from stress.simulation import SIMULATION
from stress.soak import SOAK
from stress.storm import STORM
from stress.wide import WIDE

RUNS = (
    CHAOS, CALLS, SIMULATION, SOAK, STORM, FUZZ, FILES, DEEP, WIDE, OOM, OPERATORS, FUNCTIONS,
    BRANCHES, HOSTILE, HOSTS, ELASTIC, CLUSTER,
)  # fmt: skip
#: How long forms differ from the defaults, which are for a first look.
LONG = {
    "branches": ["--programs", "5000"],
    "calls": ["--kills", "1000", "--minutes", "20"],
    "chaos": ["--kills", "1000", "--minutes", "20"],
    "cluster": ["--kills", "200", "--minutes", "30"],
    "elastic": ["--kills", "100", "--minutes", "20"],
    "files": ["--files", "100000"],
    "functions": ["--programs", "10000"],
    "hosts": ["--kills", "100", "--frames", "100000", "--minutes", "10"],
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Perform the run that ``arguments`` name (default: ``sys.argv``)."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parser().parse_args(arguments)
    if options.run is nightly:
        return nightly(options)
    if options.run is not None:
        return 0 if _perform(options, shlex.join(["scripts/stress", *arguments])) else 1
    results = []
    for run in RUNS:
        words = [run.name, *LONG.get(run.name, [])]
        own = _parser().parse_args(words)
        own.write = options.write
        results.append(_perform(own, shlex.join(["scripts/stress", *words])))
    return 0 if all(results) else 1


def _perform(options: argparse.Namespace, command: str) -> bool:
    run: Run = options.run
    command = command.partition(" --write")[0]
    if getattr(options, "seed", 0) is None:
        options.seed = seed_of(options)
        command += f" --seed {options.seed}"
    # Forwards round by BLAS's number of threads, which a backward of another thread limits.
    with blas_limit(1):
        verdict = run.perform(options)
    print(f"{run.name}: {'PASSED' if verdict.passed else 'FAILED'}: {verdict.figures}", flush=True)
    if options.write is not None:
        write_row(options.write, run.name, verdict, command, [run.name for run in RUNS])
    return verdict.passed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/stress", description=__doc__)
    runs = parser.add_subparsers(metavar="run", required=True)
    for run in RUNS:
        own = runs.add_parser(run.name, help=run.purpose, description=run.purpose)
        run.add_options(own)
        _add_write(own)
        own.set_defaults(run=run)
    every = runs.add_parser("all", help="the long forms of all runs, one after another")
    _add_write(every)
    every.set_defaults(run=None)
    night = runs.add_parser("nightly", help="go round the runs for hours, with seeds never run")
    add_options(night)
    night.set_defaults(run=nightly)
    return parser


def _add_write(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="put the result into a page (give it last)"
    )


if __name__ == "__main__":
    sys.exit(main())
