"""operators: odd arguments for every operator, in child processes that must not crash."""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import signal
import subprocess
import sys
import time

from stress.operator_calls import BESIDE
from stress.run import Run, Verdict, count, progress_bar, seed_of

#: The number of calls of one child: a crash loses the tally of the calls before it.
OF_A_CHILD = 5000
#: Seconds after which a child is taken for stuck; it needs a tenth of it.
STUCK_S = 1800
#: What a child's tensors may take in shared memory.
ARENA = "1G"
#: Notes of each kind that are printed.
PRINTED = 40


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calls", type=count, default=100_000, metavar="N", help="how many")
    parser.add_argument("--seed", type=int, help="of the calls; default: drawn")
    parser.add_argument(
        "--beside-torch", action="store_true", help="compare with PyTorch, where it is installed"
    )


def _perform(options: argparse.Namespace) -> Verdict:
    seed = seed_of(options)
    print(f"operators: --seed {seed} --calls {options.calls}", flush=True)
    tally: collections.Counter[str] = collections.Counter()
    notes: dict[str, list[str]] = collections.defaultdict(list)
    crashes: list[str] = []
    theirs: list[str] = []
    start = time.monotonic()
    with progress_bar() as progress:
        bar = progress.add_task("calls", total=options.calls)
        first = 0
        while first < options.calls:
            number = min(OF_A_CHILD, options.calls - first)
            status, output = _child(seed, first, number, beside_torch=options.beside_torch)
            if status == 0:
                found = json.loads(output.splitlines()[-1])
                tally.update(found["tally"])
                for kind, lines in found["notes"].items():
                    notes[kind] += lines
                first += number
            else:
                crashed, is_beside = _last_call(output)
                (theirs if is_beside else crashes).append(f"call {crashed} (exit status {status})")
                first = crashed + 1
            progress.update(bar, completed=first)
    for kind, lines in notes.items():
        print(f"{kind}: {len(lines)}", *lines[:PRINTED], sep="\n    ", flush=True)
    wrong = len(crashes) + tally["bare"] + tally["differs"] + tally["other bits"]
    beside = (
        f" beside PyTorch {tally['agree']:,} agree, {tally['differs']:,} differ without a word, "
        f"{tally['left']:,} for a reason that is listed, "
        f"{tally['of two minds']:,} where PyTorch differs from itself, "
        f"{len(theirs)} crash in PyTorch, {tally['accepted here only']:,} are accepted here only, "
        f"{tally['refused here only']:,} refused here only, {tally['other class']:,} raise "
        "another class;"
        if options.beside_torch
        else ""
    )
    return Verdict(
        not wrong,
        f"{options.calls:,} calls, {tally['returned']:,} returned and {tally['raised']:,} raised; "
        f"{len(crashes)} crashes{': ' + ', '.join(crashes[:5]) if crashes else ''}; "
        f"{tally['bare']:,} bare messages of NumPy's;{beside} {tally['in process']:,} repeated in "
        f"workers, {tally['other bits']:,} with other bits; {time.monotonic() - start:.0f} s",
    )


def _child(seed: int, first: int, number: int, *, beside_torch: bool) -> tuple[int, str]:
    words = ["-m", "stress.operator_calls", *map(str, (seed, first, number)), "--in-process"]
    try:
        done = subprocess.run(
            [sys.executable, *words, *(["--beside-torch"] if beside_torch else [])],
            stdout=subprocess.PIPE,
            env={**os.environ, "MPGRAD_SHM_LIMIT": ARENA},
            timeout=STUCK_S,
            check=False,
        )
    except subprocess.TimeoutExpired as stuck:
        return -signal.SIGALRM, (stuck.stdout or b"").decode()
    return done.returncode, done.stdout.decode()


def _last_call(output: str) -> tuple[int, bool]:
    """The number of the call that a child was at, and whether PyTorch performed it.

    Raises:
        RuntimeError: it came to none.
    """
    calls = re.findall(rf"^(\d+)( {BESIDE})?$", output, re.MULTILINE)
    if not calls:
        raise RuntimeError(f"a child ended before its first call: {output[-500:]}")
    number, beside = calls[-1]
    return int(number), bool(beside)


OPERATORS = Run(
    "operators",
    "odd arguments for every operator: no crash, no bare message of NumPy's, the bits of local",
    _add_options,
    _perform,
)
