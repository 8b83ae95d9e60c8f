"""InputBuffer: the contributions to one NodeTask's inputs, each in its fixed place.

The coordinator keeps references only; the worker that runs the task adds them from left to right.
The places give the order, not the arrival, so the sum has the same bits every time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from mpgrad.base.handles import Block, GradientRef
from mpgrad.errors import InvariantViolated


class Place(IntEnum):
    """A place whose contribution has not arrived (None is an undefined gradient)."""

    MISSING = 0


MISSING = Place.MISSING


@dataclass(slots=True)
class InputBuffer:
    """One list of places per input slot."""

    slots: list[list[GradientRef | Place]]

    @classmethod
    def empty(cls, places: tuple[int, ...]) -> InputBuffer:
        """A buffer whose slots have this many places, all empty."""
        return cls([[MISSING] * count for count in places])

    def fill(self, slot: int, place: int, ref: GradientRef) -> None:
        """Put a contribution in its place; each place is filled once."""
        if self.slots[slot][place] is not MISSING:
            raise InvariantViolated(f"place {place} of input {slot} is filled twice")
        self.slots[slot][place] = ref

    def inputs(self) -> tuple[tuple[GradientRef, ...], ...]:
        """All contributions in order without the undefined ones; every place must be filled."""
        for slot in self.slots:
            if MISSING in slot:
                raise InvariantViolated("an InputBuffer was read before it was complete")
        return tuple(
            tuple(ref for ref in slot if ref is not None)  # type: ignore[misc]
            for slot in self.slots
        )

    def blocks(self) -> Iterator[Block]:
        """Every block that the buffer holds, once per place that it fills."""
        for slot in self.slots:
            for ref in slot:
                if isinstance(ref, Block):
                    yield ref
