"""Many Worlds, one after another, and the sums of their faults and situations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from simulation.world import World


@dataclass
class Tally:
    """Sums over Worlds; two tallies are added with ``update``."""

    worlds: int = 0
    graphs: int = 0
    events: int = 0
    #: Faults by kind.
    injected: Counter[str] = field(default_factory=Counter)
    #: See ``situations``.
    seen: Counter[str] = field(default_factory=Counter)

    def add(self, world: World) -> None:
        """Count one World that has run."""
        self.worlds += 1
        self.graphs += world.options["graphs"]
        self.events += len(world.log)
        self.injected.update(world.dice.injected)
        self.seen.update(world.coordinator.situations.seen)

    def update(self, other: Tally) -> None:
        """Add what ``other`` counted."""
        self.worlds += other.worlds
        self.graphs += other.graphs
        self.events += other.events
        self.injected.update(other.injected)
        self.seen.update(other.seen)

    def lines(self) -> list[str]:
        """A table: every fault and every situation, and how often."""
        return [
            f"{self.worlds:,} worlds, {self.graphs:,} graphs, {self.events:,} events",
            *(f"  {kind:<58} {count:>9,}" for kind, count in sorted(self.injected.items())),
            *(f"  {what:<58} {count:>9,}" for what, count in sorted(self.seen.items())),
        ]


def run_worlds(seeds: Iterable[int], **chosen: int | None) -> Tally:
    """Run the World of each seed.

    Args:
        seeds: which.
        chosen: options that are not drawn from the seed.

    Raises:
        WorldFailure: the first World that failed.
    """
    tally = Tally()
    for seed in seeds:
        tally.add(World.drawn(seed, **chosen).run())
    return tally
