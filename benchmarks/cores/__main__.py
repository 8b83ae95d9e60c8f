"""``scripts/bench cores``: one backward with 1, 2, 4, ... workers, up to the machine's cores."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import machine
from benchmarks.awake import kept_awake
from benchmarks.cores.measurement import (
    Measured,
    Resources,
    check_program,
    counts_up_to,
    measure_program,
    resources,
)
from benchmarks.cores.page import page
from benchmarks.cores.programs import PROGRAMS
from benchmarks.disturbance import PATIENCE_S, QUICK_PATIENCE_S, Disturbance
from benchmarks.rounds import Effort
from benchmarks.scaling.calibration import calibrate
from benchmarks.scaling.validation import Backwards
from mpgrad.base.machine import available_cpus

_THOROUGH, _QUICK = Effort(5, warm_up_rounds=3), Effort(2, warm_up_rounds=1)
_BACKWARDS, _QUICK_BACKWARDS = Backwards(5, 7, 3), Backwards(2, 3, 1)
_LINES = ("processor", "memory", "system", "Python", "packages", "peers", "commit")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (default: ``sys.argv``) and return the exit code."""
    options = _parser().parse_args(arguments)
    counts = options.workers or counts_up_to(available_cpus())
    load, others = machine.load(), machine.OtherPrograms()
    found: dict[str, Measured] = {}
    watched: dict[int, Resources] = {}

    def text(processors: str) -> str:
        described = machine.describe()
        lines = {
            **{name: described[name] for name in _LINES},
            "load before": load,
            "used by others": f"{others.share():.0%} of the cores",
            "the processors": processors,
        }
        if options.quick:
            lines["rounds"] = "few: the figures are rough"
        return page(lines, found, watched, counts)

    patience_s = QUICK_PATIENCE_S if options.quick else PATIENCE_S
    with kept_awake() as processors, Disturbance(patience_s) as disturbance:
        for program in PROGRAMS:
            if options.programs and program.name not in options.programs:
                continue
            _say(f"{program.name}: {program.about}")
            effort = _QUICK if options.quick else _THOROUGH
            found[program.name] = measure_program(program, counts, effort, disturbance.sample)
            _save(options.write, text(processors))
        for count in counts:
            _say(f"start, idle use and memory of {count}")
            watched[count] = resources(count)
        _say("simulating")
        costs = calibrate()
        backwards = _QUICK_BACKWARDS if options.quick else _BACKWARDS
        for program in PROGRAMS:
            if program.name in found:
                for count, check in check_program(program, counts, costs, backwards):
                    _say(f"{program.name}, {count} simulated")
                    found[program.name].checks[count] = check
                    _save(options.write, text(processors))
    print(text(processors))
    return 0


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _save(path: Path | None, text: str) -> None:
    """What is there so far, if the time is not enough for all."""
    if path is not None:
        path.write_text(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench cores", description=__doc__)
    parser.add_argument(
        "programs",
        nargs="*",
        choices=[[], *(program.name for program in PROGRAMS)],
        metavar="program",
        help=f"any of {', '.join(program.name for program in PROGRAMS)} (default: all)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        nargs="+",
        metavar="N",
        help="these numbers of workers (default: 1, 2, 4, ... and all cores)",
    )
    parser.add_argument("--quick", action="store_true", help="few rounds, rough figures")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page there as well")
    return parser


if __name__ == "__main__":
    sys.exit(main())
