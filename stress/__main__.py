"""``scripts/stress RUN [options]``: performs one run and exits with 0 if it passed, else 1."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from stress.chaos import CHAOS
from stress.run import Run
from stress.simulation import SIMULATION

RUNS = (CHAOS, SIMULATION)


def main(arguments: Sequence[str] | None = None) -> int:
    """Perform the run that ``arguments`` name (default: ``sys.argv``)."""
    options = _parser().parse_args(arguments)
    run: Run = options.run
    verdict = run.perform(options)
    print(f"{run.name}: {'PASSED' if verdict.passed else 'FAILED'}: {verdict.figures}")
    return 0 if verdict.passed else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/stress", description=__doc__)
    runs = parser.add_subparsers(metavar="run", required=True)
    for run in RUNS:
        own = runs.add_parser(run.name, help=run.purpose, description=run.purpose)
        run.add_options(own)
        own.set_defaults(run=run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
