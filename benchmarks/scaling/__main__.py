"""``scripts/simulate``: record, measure, simulate, print; ``--write`` makes the page."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import machine
from benchmarks.awake import kept_awake
from benchmarks.scaling.calibration import calibrate
from benchmarks.scaling.experiments import (
    GPU_BATCH,
    cpu_outcomes,
    gpu_outcomes,
    repeated_shares,
    saturation_outcomes,
)
from benchmarks.scaling.networks import NETWORKS
from benchmarks.scaling.page import ASKED_OF, ASKED_WORKERS, Results, draw, page
from benchmarks.scaling.recording import record
from benchmarks.scaling.validation import validate

#: Further runs of the networks with a target: the figures vary with the machine.
REPEATS = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (default: ``sys.argv``) and return the exit code."""
    options = _parser().parse_args(arguments)
    with kept_awake() as processors:
        results = _measure(options.networks)
    results.machine["the processors"] = processors
    picture = "" if options.write is None else draw(results, options.write)
    text = page(results, picture)
    print(text)
    if options.write is not None:
        options.write.write_text(text)
    return 0


def _measure(names: Sequence[str]) -> Results:
    """Measure these networks; all of them if none is named."""
    start = time.perf_counter()
    chosen = [n for n in NETWORKS if not names or n.name in names]
    results = Results(machine.describe(), calibrate())
    results.checks = validate(results.costs)
    results.saturation = saturation_outcomes(results.costs)
    for network in chosen:
        print(f"recording {network.name}: {network.about}", file=sys.stderr, flush=True)
        recording = record(network)
        results.about[network.name] = network.about
        results.cpu[network.name] = cpu_outcomes(recording, results.costs)
        results.gpu[network.name] = gpu_outcomes(recording, results.costs, GPU_BATCH)
        if network.name in ASKED_OF:
            # The table's own run is one more of them.
            shares = repeated_shares(network, ASKED_WORKERS, REPEATS)
            shares += [
                found.share_of_bound
                for found in results.cpu[network.name]
                if found.workers == ASKED_WORKERS
            ]
            results.asked[network.name] = shares
    results.seconds = time.perf_counter() - start
    return results


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__)
    parser.add_argument(
        "networks",
        nargs="*",
        choices=[[], *(network.name for network in NETWORKS)],
        metavar="network",
        help=f"any of {', '.join(repr(network.name) for network in NETWORKS)} (default: all)",
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page there as well")
    return parser


if __name__ == "__main__":
    sys.exit(main())
