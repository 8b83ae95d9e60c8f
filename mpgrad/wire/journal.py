"""Journal: what a core was told and what it answered, since a moment whose tables are known.

The last events alone could not be run again, for what they meant depends on the tables that they
found. So the journal goes in segments: each starts with the tables, written down as msgpack, and
when a new one begins, the last but one is dropped. What remains can always be run again from its
start.

On the hot path it costs one append per event and one per allotted block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import msgspec

from mpgrad.errors import InvariantViolated, SharedMemoryExhausted
from mpgrad.scheduler.coordinator_tables import CoordinatorTables
from mpgrad.scheduler.events import GraphExtended, GraphSubmitted
from mpgrad.scheduler.lease_table import BlockAllocator

#: Events after which a segment ends as soon as no graph is alive: then there is little to copy.
SEGMENT_EVENTS = 512
#: While graphs are alive it may be so many times longer; and longer still where there are more
#: bytes to write per event.
PATIENCE, BYTES_PER_EVENT = 16, 40
#: Tasks whose tables a journal may keep alive after their graph has ended.
HEAVY_TASKS = 10_000
#: Events that the message of an error shows, and characters of each.
EVENTS_SHOWN, EVENT_SHOWN = 20, 200
HEAVY_EVENTS = frozenset({GraphSubmitted, GraphExtended})

#: Instructions in order; for an exception its type and text.
Outcome: TypeAlias = list[Any] | str
#: What the allocator said: offset and generation, or (requested, used, limit) where it was full.
Answer: TypeAlias = tuple[int, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(CoordinatorTables)


class Record(NamedTuple):
    """Enough to run a core again."""

    #: Its tables before the first event, see ``tables_of``.
    start: bytes
    entries: list[tuple[Any, Outcome]]
    #: The allocator's answers, in the order in which the core asked.
    answers: list[Answer]


class AllocatorRecorder:
    """Writes down what the allocator says: the only thing a core learns that is not an event."""

    def __init__(self, allocator: BlockAllocator) -> None:
        self._allocator = allocator
        self.answers: list[Answer] = []

    def allocate(self, nbytes: int) -> tuple[int, int]:
        try:
            answer = self._allocator.allocate(nbytes)
        except SharedMemoryExhausted as full:
            self.answers.append((full.requested, full.used, full.limit))
            raise
        self.answers.append(answer)
        return answer

    def free(self, offset: int) -> None:
        self._allocator.free(offset)


class Journal:
    """Stands between a shell and its core.

    Args:
        handle_event: the core's.
        tables: all that the core remembers.
        recorder: what the core uses for an allocator, if it has one.
        segment_events: see SEGMENT_EVENTS.
    """

    def __init__(
        self,
        handle_event: Callable[[Any], list[Any]],
        tables: CoordinatorTables,
        recorder: AllocatorRecorder | None = None,
        segment_events: int = SEGMENT_EVENTS,
    ) -> None:
        self._handle, self._tables, self._recorder = handle_event, tables, recorder
        self._segment_events = segment_events
        self._previous: Record | None = None
        self._begin_segment()

    def handle_event(self, event: Any) -> list[Any]:
        """The core's ``handle_event``, written down; what it raises, too."""
        if len(self._entries) >= self._segment_events and (
            not self._tables.graphs or len(self._entries) >= self._full_at
        ):
            self._turn_over()
        if type(event) in HEAVY_EVENTS:
            self._tasks += len(event.tasks)
        try:
            instructions = self._handle(event)
        except Exception as error:
            self._entries.append((event, describe(error)))
            if isinstance(error, InvariantViolated):
                error.add_note(self._last_events())
            raise
        self._entries.append((event, instructions))
        if self._tasks > HEAVY_TASKS and not self._tables.graphs:
            self._turn_over()
        return instructions

    def handle_unrecorded(self, event: Any) -> list[Any]:
        """The same for an event that is too large to be kept: what came before it is dropped."""
        try:
            return self._handle(event)
        finally:
            self._previous = None
            self._begin_segment()

    def record(self) -> Record:
        """All that is still known."""
        now, before = self._current(), self._previous
        if before is None:
            return now
        return Record(before.start, before.entries + now.entries, before.answers + now.answers)

    def _last_events(self) -> str:
        """For an error message: what the core was told at last, the newest last."""
        texts = [repr(event) for event, _ in self.record().entries[-EVENTS_SHOWN:]]
        return "\n".join(["The last events:", *[text[:EVENT_SHOWN] for text in texts]])

    def _turn_over(self) -> None:
        """A new segment; the last one is kept unless that would take much memory."""
        self._previous = self._current() if self._tasks <= HEAVY_TASKS else None
        self._begin_segment()

    def _current(self) -> Record:
        return Record(self._start, self._entries, self._answers)

    def _begin_segment(self) -> None:
        self._start = _encoder.encode(self._tables)
        self._entries: list[tuple[Any, Outcome]] = []
        self._answers: list[Answer] = []
        #: Tasks that were submitted in this segment.
        self._tasks = 0
        if self._recorder is not None:
            self._recorder.answers = self._answers
        self._full_at = max(PATIENCE * self._segment_events, len(self._start) // BYTES_PER_EVENT)


def tables_of(start: bytes) -> CoordinatorTables:
    """The tables that a Record begins with.

    Raises:
        msgspec.MsgspecError: there are none.
    """
    return _decoder.decode(start)


def describe(error: BaseException) -> str:
    """An exception as the journal knows it."""
    return f"{type(error).__name__}: {error}"
