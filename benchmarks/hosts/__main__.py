"""``scripts/bench hosts``: measure, and print the tables; ``--write`` puts them into the page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import machine
from benchmarks.awake import kept_awake
from benchmarks.hosts.measurement import QUICK, THOROUGH, as_json, measure
from benchmarks.hosts.page import replaced, tables

PAGE = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "hosts.md"
#: What matters to these figures.
_LINES = ("processor", "memory", "system", "Python", "packages", "peers", "commit")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="scripts/bench hosts", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, rough figures")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample")
    options = parser.parse_args()
    load, others = machine.load(), machine.OtherPrograms()
    with kept_awake() as processors:
        found = measure(QUICK if options.quick else THOROUGH)
    described = machine.describe()
    text = tables(
        found,
        {
            **{name: described[name] for name in _LINES},
            "load before": load,
            "load after": machine.load(),
            "used by others": f"{others.share():.0%} of the cores",
            "the processors": processors,
        },
        is_quick=options.quick,
    )
    print(text)
    if options.json is not None:
        options.json.write_text(as_json(found) + "\n")
    if options.write:
        PAGE.write_text(replaced(PAGE.read_text(), text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
