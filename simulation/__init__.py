"""Simulation of the whole protocol for tests of the engine itself: see ``World``."""

from __future__ import annotations

from mpgrad.base.lazy import attach as _attach

__all__ = ["World", "WorldFailure", "Faults"]

__getattr__, __dir__ = _attach(
    __name__,
    {
        "World": "simulation.world",
        "WorldFailure": "simulation.world",
        "Faults": "simulation.faults",
    },
)
