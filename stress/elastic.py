"""elastic: ranks of an elastic program are killed at random instants, again and again.

Three ranks train with ``elastic.run`` (``elastic_program``), and ``mpgrad run`` starts those that
die again: while they start, meet, restore and train. The promises: all end with the bits of a run
in which nobody died, in time, and nothing is left.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from stress.run import Run, Verdict, count, minutes, progress_bar
from tests.leftovers import Leftovers, left_since

PROGRAM = Path(__file__).with_name("elastic_program.py")
RANKS, STEPS = 3, 400
#: Deaths in one program, and seconds between two of them, at most.
DEATHS_MAX, LIFE_S = 8, 4.0
#: Seconds from the last death to the end of all, at most.
END_S = 120.0


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=count, default=10, metavar="N", help="ranks to kill")
    parser.add_argument("--seed", type=int, help="of instants, victims, values; default: drawn")
    parser.add_argument("--minutes", type=minutes, default=5.0, metavar="M", help="at most")


def _perform(options: argparse.Namespace) -> Verdict:
    chance = random.Random(options.seed)
    print(f"elastic: --seed {options.seed} --kills {options.kills}", flush=True)
    before, deadline = Leftovers.now(), time.monotonic() + 60 * options.minutes
    killed = programs = 0
    faults: list[str] = []
    with progress_bar() as progress:
        bar = progress.add_task("kills", total=options.kills)
        while killed < options.kills and time.monotonic() < deadline:
            seed = chance.randrange(10**6)
            deaths = min(chance.randint(1, DEATHS_MAX), options.kills - killed)
            undisturbed, disturbed = _ends(seed, [], chance), _ends(seed, [deaths], chance)
            if undisturbed != disturbed or len(set(undisturbed)) != 1:
                faults.append(f"seed {seed}: {undisturbed} and with {deaths} deaths {disturbed}")
            killed, programs = killed + deaths, programs + 1
            progress.advance(bar, deaths)
    left = left_since(before)
    figures = (
        f"{killed} ranks killed in {programs} programs of {RANKS}; {len(faults)} faults"
        f"{': ' if faults else ''}{'; '.join(faults[:3])}; {left or 'nothing'} left"
    )
    return Verdict(not faults and not left and killed > 0, figures)


def _ends(seed: int, deaths: list[int], chance: random.Random) -> list[str]:
    """What the ranks end with, where so many of them are killed; why not, if they do not."""
    command = [sys.executable, "-m", "mpgrad", "run", "--nproc-per-node", str(RANKS)]
    command += ["--max-restarts", str(sum(deaths)), str(PROGRAM), str(seed), str(STEPS)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            for _ in range(sum(deaths)):
                time.sleep(chance.uniform(0.0, LIFE_S))
                _kill_one_of(process.pid, chance)
            output, errors = process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            return [f"not all has ended {END_S:g} s after the last death"]
        finally:
            process.kill()  # its ranks end with it
    found = re.findall(r"^\[rank \d\] ended (\w+)$", output, re.MULTILINE)
    return found if len(found) == RANKS else [errors]


def _kill_one_of(launcher: int, chance: random.Random) -> None:
    """Kill a rank that is alive: a death that is noticed late would else be two."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children")
    while True:
        pids = sorted(int(pid) for pid in children.read_text().split())
        if len(pids) == RANKS:
            pid = chance.choice(pids)
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                return


ELASTIC = Run(
    "elastic",
    "ranks of an elastic program die at random instants, and are started again",
    _add_options,
    _perform,
)
