"""replay(): the last events of a World's coordinator, given to a fresh core.

The core decides nothing by itself: the same events and the same answers of the allocator give the
same instructions, in order. So whatever a World has met can be run again event by event, in a
debugger or with another version of the core.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from mpgrad.errors import SharedMemoryExhausted
from mpgrad.scheduler.coordinator_state import CoordinatorState, Instruction

#: The instructions for an event, or what it raised.
Outcome: TypeAlias = list[Instruction] | Exception


class KnownAnswers:
    """An allocator that answers as another one did."""

    def __init__(self, answers: Iterable[tuple[int, int] | SharedMemoryExhausted]) -> None:
        self._answers = deque(answers)

    def allocate(self, nbytes: int) -> tuple[int, int]:
        answer = self._answers.popleft()
        if isinstance(answer, SharedMemoryExhausted):
            raise answer
        return answer

    def free(self, offset: int) -> None:
        """Do nothing: the answers are known."""


def outcome_of(core: CoordinatorState, event: Any) -> Outcome:
    """Let ``core`` handle an event."""
    try:
        return core.handle_event(event)
    except Exception as error:
        return error


def replay(
    events: Iterable[Any],
    answers: Iterable[tuple[int, int] | SharedMemoryExhausted],
    message_part_bytes: int,
) -> Iterator[Outcome]:
    """Run all ``events`` that a core has handled, with the answers of its allocator and its
    ``message_part_bytes``."""
    core = CoordinatorState(KnownAnswers(answers))
    core.message_part_bytes = message_part_bytes
    for event in events:
        yield outcome_of(core, event)
