"""Maps on 16 and 64 simulated workers: the share of the bound that one pass reaches.

    python -m benchmarks.probes.simulated_maps

Sixteen items a worker, each one task, with the costs of messages and of the coordinator measured
here (``benchmarks.scaling``). The bound is the larger of an equal share of the work and the longest
item. What limits first is the client, which packs and opens each item.
"""

from __future__ import annotations

from benchmarks.scaling.calibration import calibrate
from benchmarks.scaling.costs import ClientCosts
from benchmarks.scaling.experiments import branches
from benchmarks.scaling.simulation import simulate_measured
from mpgrad.scheduler.plan import plan

ITEMS_PER_WORKER = 16
#: What an item costs the client in one pass, in microseconds: half of its processor time in both
#: passes of a map of nothings, divided by the items. The simulated graph has two tasks an item.
CLIENT_US = 140.0


def main() -> None:
    costs = calibrate()
    print(f"{'item ms':>8}{'workers':>9}{'share of the bound':>20}{'coordinator busy':>18}")
    for milliseconds in (5, 20):
        for workers in (16, 64):
            spec, work = branches(workers * ITEMS_PER_WORKER, milliseconds * 1000.0)
            found = simulate_measured(
                spec,
                work,
                costs,
                workers,
                client=ClientCosts(CLIENT_US / 2, 0.0, 0.0),
                planned=plan(spec, fuse=False, workers=workers),
            )
            load = found.coordinator_load
            print(f"{milliseconds:8}{workers:9}{found.share_of_bound:20.3f}{load:18.2f}")


if __name__ == "__main__":
    main()
