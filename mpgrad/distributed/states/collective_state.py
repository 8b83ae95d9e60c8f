"""CollectiveState: how far one rank has come in one collective.

Messages may come late, twice, and in any order. Each is named by its sender and its phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpgrad.distributed.states.reduction_tree import Receive, Send, Step


class SegmentsArrived(NamedTuple):
    """A message of this collective has come."""

    peer: int
    phase: int


class CollectiveState:
    """Steps in their order: a Send is done at once, a Receive when its message is there.

    The instructions are the steps themselves: to send, and to join what has arrived.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = tuple(steps)
        self._next = 0
        #: Messages that a step not yet done waits for.
        self._expected = {(s.peer, s.phase) for s in steps if isinstance(s, Receive)}
        self._arrived: set[tuple[int, int]] = set()

    @property
    def is_complete(self) -> bool:
        """Whether all steps are done."""
        return self._next == len(self._steps)

    @property
    def awaited(self) -> int | None:
        """The rank whose message the next step waits for; None if it waits for none."""
        return None if self.is_complete else self._steps[self._next].peer

    @property
    def missing(self) -> list[int]:
        """The ranks whose messages it waits for before it can send again."""
        found = []
        for step in self._steps[self._next :]:
            if isinstance(step, Send):
                break
            if (step.peer, step.phase) not in self._arrived:
                found.append(step.peer)
        return found

    def is_new(self, event: SegmentsArrived) -> bool:
        """Whether a step still waits for this message: the first copy of it, and no other's."""
        return event in self._expected and event not in self._arrived

    def begin(self) -> list[Step]:
        """What to do before any message has come."""
        return self._advance()

    def handle_event(self, event: SegmentsArrived) -> list[Step]:
        """What to do now; nothing for a message that came before or that nobody expects."""
        if not self.is_new(event):
            return []
        self._arrived.add(tuple(event))  # type: ignore[arg-type]
        return self._advance()

    def _advance(self) -> list[Step]:
        todo: list[Step] = []
        while self._next < len(self._steps):
            step = self._steps[self._next]
            if not isinstance(step, Send) and (step.peer, step.phase) not in self._arrived:
                break
            todo.append(step)
            self._next += 1
        if todo:
            taken = {(step.peer, step.phase) for step in todo if isinstance(step, Receive)}
            self._expected -= taken
        return todo
