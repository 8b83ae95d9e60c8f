"""``python -m simulation --seeds A:B``: run simulated engines, or repeat a failed seed."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence

from simulation.cluster_world import ClusterWorld, ClusterWorldFailure
from simulation.many_worlds import Tally
from simulation.world import World, WorldFailure

OPTIONS = ("workers", "gpus", "graphs", "sessions", "clients", "branches")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the Worlds that ``arguments`` name (default: ``sys.argv``); 1 if one failed."""
    chosen = vars(_parser().parse_args(arguments))
    first, last = chosen.pop("seeds")
    show_log = chosen.pop("log")
    if chosen.pop("cluster"):
        return _run_clusters(range(first, last))
    tally, start = Tally(), time.perf_counter()
    for seed in range(first, last):
        world = World.drawn(seed, **chosen)
        try:
            world.run()
        except WorldFailure as failure:
            print(failure)
            return 1
        tally.add(world)
        if show_log:
            print(*world.log.lines(), world.log.digest(), sep="\n")
    seconds = time.perf_counter() - start
    print(*tally.lines(), sep="\n")
    print(f"all as they must be; {seconds:.2f} s, {tally.graphs / seconds:.0f} graphs a second")
    return 0


def _run_clusters(seeds: range) -> int:
    seen, start = Counter[str](), time.perf_counter()
    for seed in seeds:
        try:
            seen.update(ClusterWorld(seed).run().seen)
        except ClusterWorldFailure as failure:
            print(failure)
            return 1
    print(*[f"  {what:<58} {count:>9,}" for what, count in sorted(seen.items())], sep="\n")
    seconds = time.perf_counter() - start
    print(f"all as they must be; {seconds:.2f} s, {len(seeds):,} worlds of many hosts")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument(
        "--seeds", type=_range, default=(0, 1000), metavar="A:B", help="seeds A to B - 1"
    )
    parser.add_argument("--log", action="store_true", help="print each World's log and digest")
    parser.add_argument("--cluster", action="store_true", help="worlds of many hosts instead")
    for option in OPTIONS:
        parser.add_argument(f"--{option}", type=int, help="instead of a number drawn from the seed")
    return parser


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected two numbers such as 0:1000")
    return int(first), int(last)


if __name__ == "__main__":
    sys.exit(main())
