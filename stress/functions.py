"""functions: random Functions that read and change state; workers must give what ``local`` gives.

The oracle is ``local`` in an interpreter of its own. An error that says why is no silent
difference; another gradient is, and so is something else that is left behind.
"""

from __future__ import annotations

import argparse
import collections
import os
import re
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stress.interpreters import results_of
from stress.run import Run, Verdict, count, progress_bar, seed_of

#: Programs of one interpreter.
OF_AN_INTERPRETER = 250
#: Differences that are printed.
PRINTED = 40

#: A package as pip installs it, whose settings change at run time.
_PACKAGE = """
import collections, contextvars, functools, itertools, os, types

def restore():
    global SCALE, QUEUE, counter
    SCALE = 10.0
    OPTIONS["scale"] = TABLE["scale"] = config.scale = 10.0
    Settings.scale = space.scale = by_default.k = 10.0
    by_default.__defaults__ = (10.0,)
    QUEUE, counter = collections.deque([10.0]), itertools.count()
    var.set(10.0)
    set_closure(10.0)
    HANDLERS.clear()
    Model.run = _run
    cached.cache_clear()

OPTIONS, TABLE, HANDLERS = {}, {}, []
space = types.SimpleNamespace()
var = contextvars.ContextVar("var", default=10.0)

class Settings:
    def scaled(self):
        return self.scale

def by_default(x=0.0):
    return x

def by_environment():
    return float(os.environ.get("FUZZ", "1"))

def by_process():
    return os.getpid()

def handled():
    return len(HANDLERS)

def closure():
    n = 10.0
    def get():
        return n
    def put(value):
        nonlocal n
        n = value
    return get, put

get_closure, set_closure = closure()

def __getattr__(name):
    if name == "computed":
        return SCALE
    raise AttributeError(name)

class Config:
    scale = 10.0

    def set(self, value):
        self.scale = value

config = Config()

class Model:
    pass

def _run(self):
    return 2.0

def set_scale(value):
    global SCALE
    SCALE = value

def set_option(value):
    OPTIONS["scale"] = value

def scaled(x):
    return x * SCALE

@functools.lru_cache
def cached(x):
    return x * SCALE

def optional(x):
    return x * OPTIONS["scale"]

def configured(x):
    return x * config.scale

restore()
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--programs", type=count, default=1000, metavar="N", help="how many")
    parser.add_argument("--seed", type=int, help="of the programs; default: drawn")
    parser.add_argument(
        "--check", choices=("off", "sample", "all"), default="off", help="Engine(check=...)"
    )


def _perform(options: argparse.Namespace) -> Verdict:
    seed = seed_of(options)
    print(f"functions: --seed {seed} --programs {options.programs}", flush=True)
    start = time.monotonic()
    tally: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    found: list[str] = []
    with progress_bar() as progress, tempfile.TemporaryDirectory() as base:
        environment = _environment(base)
        bar = progress.add_task("programs", total=options.programs)
        for first in range(0, options.programs, OF_AN_INTERPRETER):
            number = min(OF_AN_INTERPRETER, options.programs - first)
            with ThreadPoolExecutor(2) as pool:
                here, there = pool.map(
                    lambda mode: _results(mode, options.check, seed, first, number, environment),  # noqa: B023
                    ("local", "process"),
                )
            for at in range(first, first + number):
                found += _compare(at, here.get(at), there.get(at), tally, reasons)
            progress.update(bar, completed=first + number)
    print(*found[:PRINTED], sep="\n", flush=True)
    for reason, times in reasons.most_common(PRINTED):
        print(f"refused {times} times: {reason}", flush=True)
    return Verdict(
        not found,
        f"{options.programs:,} programs, {tally['backwards']:,} backwards, {tally['sent']:,} "
        f"Functions run by workers; {len(found)} silent differences; {tally['refused']:,} refused "
        f"by workers with an error, {tally['failed']:,} failed in both; "
        f"{time.monotonic() - start:.0f} s",
    )


def _compare(
    at: int,
    here: Any,
    there: Any,
    tally: collections.Counter[str],
    reasons: collections.Counter[str],
) -> list[str]:
    """How the two results of a program differ, if they do, in words."""
    if here is None or there is None:
        return [f"program {at}: no result {'of local' if here is None else 'of workers'}"]
    tally["sent"] += there["sent"]
    for step, (expected, got) in enumerate(zip(here["result"], there["result"], strict=False)):
        tally["backwards"] += 1
        if expected[0] == got[0] == "error":
            tally["failed"] += 1
        elif got[0] == "error":
            tally["refused"] += 1
            reasons[re.sub(r"\w*\d+_\d+", "...", f"{got[1]}: {got[2]}")] += 1
        elif expected != got:
            what = "gradient" if expected[0] != got[0] else "state"
            how = f"{expected} here, {got} on workers"
            return [f"program {at}, backward {step}: another {what}: {here['kinds']}: {how}"]
    return []


def _results(
    mode: str, check: str, seed: int, first: int, number: int, environment: dict[str, str]
) -> dict[int, Any]:
    """By program what came of it; one that kills its interpreter has no result."""

    def words(first: int, number: int) -> list[str]:
        numbers = map(str, (seed, first, number))
        return ["-m", "stress.function_runs", mode, check, *numbers]

    return results_of(words, first, number, environment)


def _environment(base: str) -> dict[str, str]:
    """With the package installed, and strings hashed alike: else no oracle is possible."""
    installed = Path(sysconfig.get_path("purelib", "posix_user", {"userbase": base}))
    installed.mkdir(parents=True)
    (installed / "settings_for_fuzz.py").write_text(_PACKAGE)
    path = [str(Path(__file__).parents[1]), str(installed), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONUSERBASE": base,
        "PYTHONHASHSEED": "7",
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
    }


FUNCTIONS = Run(
    "functions",
    "random Functions that read and change state of every kind: workers give what local gives",
    _add_options,
    _perform,
)
