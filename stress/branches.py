"""branches: random programs of maps, sums, forks and Modules; workers must give what a loop gives.

The oracle is the plain loop. It says whether a program is right, but for rounding: a sum of
gradients may be taken in another order. Local and any number of workers give the same bits, and
the same kind of error. A call may refuse what a loop allows, if it does so everywhere.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import math
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stress.branch_programs import branch_program
from stress.interpreters import results_of
from stress.run import Run, Verdict, count, progress_bar, seed_of

#: Programs of one interpreter, and differences that are shown.
OF_AN_INTERPRETER, PRINTED = 200, 40
MODES = ("plain", "local", "1", "2", "4")
#: What the plain loop gives differs at most so much: float64, sums in another order.
TOLERANCE = 1e-9
#: What differs from a plain loop by design: random numbers, and the order of output.
_OWN = frozenset({"drawn"})


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--programs", type=count, default=400, metavar="N", help="of each library")
    parser.add_argument("--seed", type=int, help="of the programs; default: drawn")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the first program")
    parser.add_argument(
        "--library",
        choices=("mpgrad", "torch"),
        help="of the tensors; default: both, torch if it is installed",
    )
    parser.add_argument(
        "--kills",
        type=int,
        default=0,
        metavar="N",
        help="workers to kill in each interpreter with workers; its programs are up to 200",
    )


def _perform(options: argparse.Namespace) -> Verdict:
    seed = seed_of(options)
    has_torch = importlib.util.find_spec("torch") is not None
    libraries = [options.library] if options.library else ["mpgrad", "torch"][: 1 + has_torch]
    print(f"branches: --seed {seed} --programs {options.programs} --kills {options.kills}")
    start, tally = time.monotonic(), collections.Counter[str]()
    reasons, found = collections.Counter[str](), list[str]()
    end = options.first + options.programs
    with progress_bar() as progress, ThreadPoolExecutor(2) as pool:
        bar = progress.add_task("programs", total=len(libraries) * options.programs)
        for library in libraries:
            for first in range(options.first, end, OF_AN_INTERPRETER):
                number = min(OF_AN_INTERPRETER, end - first)
                jobs = [
                    pool.submit(_results, library, mode, seed, first, number, options.kills)
                    for mode in MODES
                ]
                said = dict(zip(MODES, [job.result() for job in jobs], strict=True))
                for one in said.values():
                    tally["killed"] += one.pop(-1 - first, {}).get("killed", 0)
                for at in range(first, first + number):
                    program = branch_program(seed, at, library)
                    of_mode = {mode: said[mode].get(at) for mode in MODES}
                    judge = Judge(of_mode, program.has_own_numbers, bool(options.kills), library)
                    difference = judge.difference()
                    tally[judge.kind] += 1
                    reasons[judge.reason] += bool(judge.reason)
                    if difference:
                        found.append(f"{library}, program {at}: {difference}")
                        _show(found, program.source + program.alone)
                progress.update(bar, advance=number)
    for reason, times in reasons.most_common(PRINTED):
        print(f"refused {times} times: {reason}", flush=True)
    return Verdict(
        not found,
        f"{options.programs:,} programs of {' and of '.join(libraries)}, "
        f"{tally['equal']:,} as the plain loop, {tally['drawn']:,} with random numbers of their "
        f"own, {tally['failed']:,} failed alike, {tally['refused']:,} refused everywhere; "
        f"{tally['killed']:,} workers killed; {len(found)} differences; "
        f"{time.monotonic() - start:.0f} s",
    )


def _show(found: list[str], source: str) -> None:
    if len(found) <= PRINTED:
        print(found[-1], flush=True)
    if len(found) == 1:
        print(source, flush=True)


def _results(
    library: str, mode: str, seed: int, first: int, number: int, kills: int
) -> dict[int, Any]:
    """By program what it has said in a mode."""
    kills = kills if mode.isdecimal() else 0

    def words(first: int, number: int) -> list[str]:
        numbers = map(str, (seed, first, number, kills))
        return ["-m", "stress.branch_runs", library, mode, *numbers]

    path = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(path)}
    return results_of(words, first, number, environment)


class Judge:
    """Compares what a program has said in each mode.

    Args:
        results: of each mode; None: its interpreter has ended.
        has_own_numbers: whether the plain loop gives other numbers.
        are_killed: whether workers were killed: what they have printed may come twice.
        library: torch adds gradients leaf by leaf, so that an error may come before or after some.

    Attributes:
        kind: "equal", "drawn", "failed", "refused" or "differs".
        reason: of a refusal.
    """

    def __init__(
        self,
        results: dict[str, Any],
        has_own_numbers: bool,
        are_killed: bool = False,
        library: str = "mpgrad",
    ) -> None:
        self._results, self._has_own_numbers = results, has_own_numbers
        self._skipped = {"printed"} if are_killed else set[str]()
        self._adds_leaf_by_leaf = library == "torch"
        self.kind, self.reason = "differs", ""

    def difference(self) -> str:
        """How they differ, if they do without a word, in words."""
        for mode, one in self._results.items():
            if one is None:
                return f"no result of {mode}"
        said = {mode: one["said"] for mode, one in self._results.items()}
        plain, local = said.pop("plain"), said["local"]
        ended, loop = _end_of(local), _end_of(plain)
        if ended[1] != "well":  # the items after it may run or not
            self._skipped.add("printed")
            self._skipped |= {"grads", "leaves"} if self._adds_leaf_by_leaf else set()
        for mode, one in said.items():
            if words := self._differs(local, one):
                return f"local and {mode}: {words}"
        if ended[1] != "well":
            if loop[1] == "well":
                self.kind = "refused"
                self.reason = re.sub(r"\d+", "N", f"{ended[1]}: {ended[2][:90]}")
            elif loop[1] == ended[1]:
                self.kind = "failed"
            elif local.index(ended) <= plain.index(loop):
                self.kind = "refused"  # before the loop's own error
            else:
                return f"plain and local: {loop} and {ended}"
            return ""
        if loop[1] != "well":
            return f"plain and local: {loop} and {ended}"
        self.kind = "drawn" if self._has_own_numbers else "equal"
        if self._has_own_numbers:
            return ""
        self._skipped |= _OWN
        words = self._differs(plain, local, TOLERANCE)
        self.kind = "differs" if words else "equal"
        return f"plain and local: {words}" if words else ""

    def _differs(self, one: Any, other: Any, tolerance: float = 0.0) -> str:
        for (label, *here), (other_label, *there) in zip(one, other, strict=False):
            if label != other_label:
                return f"{label} and {other_label}"
            if label == "end":
                here, there = here[:1], there[:1]
            if label.endswith("without grad") and tolerance:
                here, there = map(_without_flags, (here, there))
            if label not in self._skipped and not _is_equal(here, there, tolerance):
                return f"{label}: {here} and {there}"
        return "" if len(one) == len(other) else "one says more"


def _end_of(said: Any) -> Any:
    return next(one for one in said if one[0] == "end")


def _without_flags(shown: Any) -> Any:
    """What was said without whether tensors require grad."""
    if isinstance(shown, list):
        return [_without_flags(one) for one in shown]
    if isinstance(shown, dict):
        return {
            key: one[:1] if key == "tensor" else _without_flags(one) for key, one in shown.items()
        }
    return shown


def _is_equal(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        if one == other:
            return math.copysign(1, one) == math.copysign(1, other) or tolerance > 0
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return all(_is_equal(a, b, tolerance) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return all(_is_equal(one[key], other[key], tolerance) for key in one)
    return type(one) is type(other) and bool(one == other)


BRANCHES = Run(
    "branches",
    "random programs of maps, sums and forks: local and workers give what a plain loop gives",
    _add_options,
    _perform,
)
