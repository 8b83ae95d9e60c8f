"""Knobs: tuning numbers, credits and limits that a World has instead of the usual ones.

A protocol must be right with all of them; with unusual ones the same faults meet in other ways (the
simulation of FoundationDB does the same).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

from mpgrad.coordinator import worker_watchdog
from mpgrad.engine import session
from mpgrad.scheduler import (
    bundling,
    coordinator_state,
    invariants,
    membership,
    sum_places,
    tuning,
)
from mpgrad.workers import worker
from simulation import caller, expectations, situations

#: The shares of Worlds with turned knobs, and of the knobs that are turned there.
SHARE, TURNED = 0.5, 0.4


class Knob(NamedTuple):
    """A number, the modules that have it under this name, and its unusual values."""

    name: str
    owners: tuple[ModuleType, ...]
    values: tuple[float, ...]


KNOBS = (
    Knob("WORKER_CREDIT", (membership, invariants), (1, 3, 5)),
    Knob("SHORT_CREDIT", (membership, invariants), (5, 8, 64)),
    Knob("HELD_REPLIES_MAX", (worker,), (1, 2, 4)),
    Knob("NEAR_WAITING_MAX", (membership, situations), (0, 1, 8)),
    Knob("DEATHS_MAX", (coordinator_state, expectations), (1, 3, 5)),
    Knob("KILLS_MAX", (coordinator_state, expectations), (1, 2, 4)),
    Knob("INLINE_LIMIT_BYTES", (sum_places, bundling, caller), (0, 256, 8_192)),
    Knob("TASK_MAX_US", (tuning,), (500.0, 5_000.0, 100_000.0)),
    Knob("WORTH_MESSAGES", (tuning,), (0.1, 1.0, 30.0)),
    Knob("DECIDE_EVERY", (invariants,), (1, 16)),
    Knob("EVENTS_PER_ROW", (invariants,), (0,)),
    Knob("TICK_S", (worker_watchdog,), (0.3, 0.7)),
    Knob("ASK_AFTER", (session,), (2, 5)),
)


class Knobs:
    """Those of one World.

    Args:
        values: by the name of the knob.
    """

    def __init__(self, values: dict[str, float] | None = None) -> None:
        self.values = values or {}

    @classmethod
    def drawn(cls, seed: int) -> Knobs:
        """Those of a seed. They have a source of their own: half of the Worlds have none."""
        chance = Random(f"knobs of {seed}")
        if chance.random() >= SHARE:
            return cls()
        turned = [knob for knob in KNOBS if chance.random() < TURNED]
        return cls({knob.name: chance.choice(knob.values) for knob in turned})

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """They hold inside."""
        with ExitStack() as undo:
            for name, owners, _ in KNOBS:
                if name in self.values:
                    for owner in owners:
                        undo.enter_context(patch.object(owner, name, self.values[name]))
            yield

    def __str__(self) -> str:
        said: list[Any] = [f"{name}={value}" for name, value in self.values.items()]
        return ", ".join(said) or "none"
