"""fuzz: malformed, forged and replayed frames: in one process, to a worker, over sockets."""

from __future__ import annotations

import argparse
import random
import time

import mpgrad as mg
from stress.fuzz_core import fuzz
from stress.fuzz_sockets import fuzz_engine
from stress.fuzz_worker import fuzz_worker
from stress.load import Training
from stress.run import Run, Verdict, count, progress_bar, seed_of
from stress.storm import fingerprints
from tests.leftovers import Leftovers, left_since

#: The shares of the frames that go over sockets, and to a worker.
OVER_SOCKETS, TO_WORKER = 0.1, 0.1
#: Steps after which the training starts again.
STEPS = 4


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--frames", type=count, default=1_000_000, metavar="N", help="how many")
    parser.add_argument("--seed", type=int, help="of the frames; default: drawn")


def _perform(options: argparse.Namespace) -> Verdict:
    seed = seed_of(options)
    print(f"fuzz: --seed {seed} --frames {options.frames}", flush=True)
    over_sockets, to_worker = (
        max(1, int(share * options.frames)) for share in (OVER_SOCKETS, TO_WORKER)
    )
    in_process = max(1, options.frames - over_sockets - to_worker)
    with mg.Engine("process", cpu_workers=1):
        Training(0).step()  # opens what this process keeps open
    before = Leftovers.now()
    start = time.monotonic()
    with progress_bar() as progress:
        bar = progress.add_task("frames", total=options.frames)

        def advance(frames: int) -> None:
            progress.advance(bar, frames)

        expected = fingerprints(0, STEPS)
        try:
            cores = fuzz(in_process, random.Random(seed), advance)
            worker = fuzz_worker(to_worker, seed)
            advance(to_worker)
            engine = fuzz_engine(over_sockets, random.Random(seed), expected, advance)
        except Exception as error:
            return Verdict(False, f"{type(error).__name__}: {error}")
    left = left_since(before)
    return Verdict(
        not left,
        f"{cores.sent:,} frames in one process ({cores.refused:,} refused, {cores.backwards:,} "
        f"honest backwards between them), {worker.sent:,} wrong tasks to a worker "
        f"({worker.refused:,} refused, the others did no harm to {worker.backwards:,} honest "
        f"backwards after them), {engine.sent:,} over the sockets of a training engine "
        f"({engine.refused:,} refused, {engine.backwards:,} backwards meanwhile), 0 wrong "
        f"gradients, {time.monotonic() - start:.0f} s; {left or 'nothing'} left",
    )


FUZZ = Run(
    "fuzz",
    "malformed, forged and replayed frames: none is acted on, each is counted, gradients are right",
    _add_options,
    _perform,
)
