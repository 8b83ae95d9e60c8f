"""Silence: a coordinator that is alive and does nothing, for a while or for ever.

It is stopped (SIGSTOP), sleeps in a call that does not return, or runs in a loop that does not end.
A session must wait for one that goes on, and must not wait for ever for another one.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from mpgrad.base.processor_use import ProcessorUse
from mpgrad.engine.coordinator_watchdog import KILL_AFTER, WAIT_MS
from simulation.expectations import Wrong
from simulation.transport import nothing

if TYPE_CHECKING:
    from simulation.world import World

#: The share of silences that do not end.
FOR_EVER = 0.4
KINDS = ("stopped", "asleep", "spinning")
#: When it begins; how long one lasts at most that ends; when nobody waits any more for another one.
BEGINS_US_MAX, LENGTHS_US, OVER_US = 16_000, (100_000, 2_500_000, 25_000_000), 300_000_000
#: It is not killed before. A session may have begun a wait just before the silence.
PATIENCE_US = 1000 * (KILL_AFTER - 1) * WAIT_MS
#: Faults after which time limits of the coordinator itself begin: it cannot keep them in silence.
LIMITED = ("stall", "late_reply", "lengthy", "stop", "cancel")


class AlwaysAnswers:
    """A coordinator that is never silent."""

    @property
    def is_stopped(self) -> bool:
        return False

    def processor_use(self) -> ProcessorUse:
        """What it has used."""
        return ProcessorUse(0, 0)

    def on_kill(self, why: str | None) -> None:
        """A session kills it."""
        raise Wrong(f"a session kills the coordinator: {why}")


class Silence(AlwaysAnswers):
    """That of one World, if it has one. A source of its own draws it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = Random(f"silence of {world.seed}")
        self._is_planned = self._chance.random() < world.faults.silence
        self.kind, self._is_for_ever = self._chance.choice(KINDS), self._chance.random() < FOR_EVER
        self._since_us: float | None = None
        #: A session has killed the coordinator for it.
        self.is_dead = False
        if self._is_planned:
            world.dice.rates.update(dict.fromkeys(LIMITED, 0.0))

    def plan(self) -> None:
        """Schedule it, if there is to be one."""
        if self._is_planned:
            self._world.time.after(self._chance.randint(0, BEGINS_US_MAX), self._begin)

    @property
    def is_now(self) -> bool:
        return self._since_us is not None

    @property
    def is_stopped(self) -> bool:
        return self.is_now and self.kind == "stopped"

    @property
    def is_final(self) -> bool:
        """Whether the coordinator does nothing more."""
        return self.is_now and self._is_for_ever

    def _begin(self) -> None:
        world = self._world
        world.note("the coordinator", f"is {self.kind}{' for ever' * self._is_for_ever}")
        world.dice.injected["silence"] += 1
        self._since_us = world.time.now
        if self._is_for_ever:
            world.time.after(OVER_US, nothing)
        else:
            length_us = self._chance.randint(1000, self._chance.choice(LENGTHS_US))
            world.time.after(length_us, self._end)

    def _end(self) -> None:
        self._since_us = None
        self._world.note("the coordinator", "goes on")
        self._world.coordinator.go_on()

    def processor_use(self) -> ProcessorUse:
        """As if it never slept before."""
        is_idle = self.is_now and self.kind != "spinning"
        until = self._since_us if is_idle and self._since_us is not None else self._world.time.now
        return ProcessorUse(int(until) * 1000, 0)

    def on_kill(self, why: str | None) -> None:
        """It must have been silent for long."""
        if self.is_dead:
            return
        now, since = self._world.time.now, self._since_us
        is_due = self.is_final and since is not None and now - since >= PATIENCE_US
        if not is_due:
            super().on_kill(why)
        self.is_dead = True
        self._world.coordinator.die()
