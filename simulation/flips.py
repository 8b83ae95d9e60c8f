"""Flips: bytes of published blocks change, as ``Engine(check="bytes")`` finds them.

In a World of four, blocks have checksums, and now and then one of them changes after a worker has
published it. Whoever reads it next must see that: its graph fails, and gives no result.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from mpgrad.base.handles import Block

if TYPE_CHECKING:
    from simulation.world import World

#: The share of Worlds with checksums, and the longest time from the publication to the change.
WITH_CHECKSUMS, LATER_US = 0.25, 3000


class Flips:
    """Those of one World. A source of its own draws them, so that other Worlds stay as they are."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = Random(f"the flips of {world.seed}")
        self._is_on = world.faults.flip > 0 and self._chance.random() < WITH_CHECKSUMS

    def on_write(self, block: Block, program: int) -> None:
        """A worker has written a block for a graph."""
        if self._is_on and self._chance.random() < self._world.faults.flip:
            self._world.time.after(self._chance.randint(0, LATER_US), self._flip, block, program)

    def _flip(self, block: Block, program: int) -> None:
        if self._world.memory.flip(block):
            self._world.dice.injected["flip"] += 1
            self._world.expected.corrupted.add(program)
            self._world.note("nobody", "changes", block)
