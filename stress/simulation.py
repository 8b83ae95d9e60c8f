"""simulation: many simulated engines with injected faults (``mpgrad.testing.World``)."""

from __future__ import annotations

import argparse

from mpgrad.testing import WorldFailure, world
from stress.run import Run, Verdict, count


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=count, default=5000, metavar="N", help="how many Worlds")
    parser.add_argument("--first", type=int, default=0, metavar="S", help="the first seed")


def _perform(options: argparse.Namespace) -> Verdict:
    last = options.first + options.seeds
    try:
        world.main(["--seeds", f"{options.first}:{last}"])
    except WorldFailure as failure:
        print(failure)
        return Verdict(False, str(failure).splitlines()[0])
    return Verdict(True, f"{options.seeds} worlds, seeds {options.first} to {last - 1}")


SIMULATION = Run(
    "simulation",
    "run simulated engines with faults at every step, checked by an exact oracle",
    _add_options,
    _perform,
)
