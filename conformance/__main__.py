"""python -m conformance: run PyTorch's autograd tests against mpgrad and say what passes."""

from __future__ import annotations

import argparse
import collections
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from conformance import page, source
from conformance.isolation import outcomes
from conformance.methods import Method, Outcome, all_methods, load, reasons, run

MODES = ("local", "process", "auto")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0: every method passes that is not said to be left, in every mode."""
    options = _parser().parse_args(arguments)
    path = options.file or source.autograd_tests()
    # Each method has a process; BLAS threads would only fight over the cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    module = load(path)
    methods = [m for m in all_methods() if options.only in f"{m.cls}.{m.name}"]
    modes = options.mode or MODES
    found = {}
    for mode in modes:
        chosen = functools.partial(_run, module, mode)
        found[mode] = _report(methods, mode, chosen, options)
    if options.write:
        page.write(methods, found, reasons())
    unexpected = page.unexpected(found, reasons())
    print(*unexpected, sep="\n")
    return 1 if unexpected else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="conformance", description=__doc__)
    add = parser.add_argument
    add("--mode", action="append", choices=MODES, help="one engine mode (default: all three)")
    add("--only", default="", metavar="TEXT", help="methods whose Class.name contains this")
    add(
        "--file",
        type=Path,
        metavar="PATH",
        help="PyTorch's test_autograd.py, if it is here already",
    )
    add("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    add("--timeout", type=float, default=60.0, metavar="SECONDS", help="for one method")
    add("--verbose", action="store_true", help="tracebacks, too")
    add("--write", action="store_true", help="write docs/evidence/conformance.md")
    return parser


def _run(module: object, mode: str, method: Method) -> Outcome:
    return run(module, method, mode)  # type: ignore[arg-type]


def _report(
    methods: Sequence[Method], mode: str, chosen: object, options: argparse.Namespace
) -> dict[Method, Outcome]:
    """Run ``methods`` in one mode; print those that do not pass, and how many do."""
    found = {}
    running = outcomes(methods, chosen, jobs=options.jobs, seconds=options.timeout)  # type: ignore[arg-type]
    for method, outcome in running:
        found[method] = outcome
        if outcome.status != "passed":
            print(f"{mode} {outcome.status} {method.cls}.{method.name}: {outcome.message[:200]}")
            if options.verbose:
                print(outcome.details)
    counts = collections.Counter(outcome.status for outcome in found.values())
    others = ", ".join(f"{n} {s}" for s, n in sorted(counts.items()) if s != "passed")
    print(
        f"{mode}: {counts['passed']} of {len(found)} pass; {others or 'none is left'}", flush=True
    )
    return found


if __name__ == "__main__":
    sys.exit(main())
