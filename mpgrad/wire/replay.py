"""replay(): run the events of a Journal through the core again, and compare the instructions."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from mpgrad.errors import InvariantViolated, SharedMemoryExhausted
from mpgrad.scheduler.coordinator_state import CoordinatorState
from mpgrad.wire.journal import Answer, Outcome, Record, describe, tables_of


class Difference(NamedTuple):
    """The first difference between a replay and its record: the event, and both outcomes."""

    number: int
    event: Any
    recorded: Outcome
    replayed: Outcome


class Replay(NamedTuple):
    """The result of a replay."""

    #: The number of events with the same outcome, and of their instructions.
    events: int
    instructions: int
    #: The first different outcome, if any.
    difference: Difference | None


class RecordedAnswers:
    """An allocator that gives the recorded answers."""

    def __init__(self, answers: list[Answer]) -> None:
        self._answers = deque(answers)

    def allocate(self, nbytes: int) -> tuple[int, int]:
        if not self._answers:
            raise InvariantViolated(f"the core asks for {nbytes} bytes, which is not in the record")
        answer = self._answers.popleft()
        if len(answer) == 3:
            raise SharedMemoryExhausted(*answer)
        offset, generation = answer
        return offset, generation

    def free(self, offset: int) -> None:
        """Do nothing: the answers are recorded."""


def replay(record: Record) -> Replay:
    """Run ``record`` from its start; stops at the first difference."""
    core = CoordinatorState(RecordedAnswers(record.answers), tables_of(record.start))
    instructions = 0
    for number, (event, recorded) in enumerate(record.entries):
        replayed = _handle(core, event)
        if replayed != recorded:
            return Replay(number, instructions, Difference(number, event, recorded, replayed))
        instructions += 0 if isinstance(recorded, str) else len(recorded)
    return Replay(len(record.entries), instructions, None)


def _handle(core: CoordinatorState, event: Any) -> Outcome:
    try:
        return list(core.handle_event(event))
    except Exception as error:
        return describe(error)
