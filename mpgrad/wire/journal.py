"""Journal: the events of a core and its answers, since a moment with known tables.

The last events alone could not be run again, because their meaning depends on the tables before
them. So the journal has segments: each starts with the tables as msgpack, and when a new one
begins, the last but one is dropped. The rest can always be run again from its start.

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

#: The number of events after which a segment ends as soon as no graph is alive (a small copy).
SEGMENT_EVENTS = 512
#: While graphs are alive it may be this many times longer; and longer still if there are more bytes
#: to write per event.
PATIENCE, BYTES_PER_EVENT = 16, 40
#: The number of tasks whose tables a journal may keep after their graph has ended.
HEAVY_TASKS = 10_000
#: The number of events in the message of an error, and of characters of each.
EVENTS_SHOWN, EVENT_SHOWN = 20, 200
HEAVY_EVENTS = frozenset({GraphSubmitted, GraphExtended})

#: The instructions in order; for an exception its type and text.
Outcome: TypeAlias = list[Any] | str
#: An answer of the allocator: offset and generation, or (requested, used, limit) if it was full.
Answer: TypeAlias = tuple[int, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(CoordinatorTables)


class Record(NamedTuple):
    """All that is necessary to run a core again."""

    #: The tables before the first event, see ``tables_of``.
    start: bytes
    entries: list[tuple[Any, Outcome]]
    #: The allocator's answers, in the order of the requests.
    answers: list[Answer]


class AllocatorRecorder:
    """Records the answers of the allocator, the only input of a core that is not an event."""

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
    """Records the events between a shell and its core.

    Args:
        handle_event: the method of the core.
        tables: the state of the core.
        recorder: the allocator of the core, if it has one.
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
        """Call and record the core's ``handle_event``, including its exception."""
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
        """Handle an event that is too large to be kept: drop the events before it."""
        try:
            return self._handle(event)
        finally:
            self._previous = None
            self._begin_segment()

    def record(self) -> Record:
        """All that the journal still has."""
        now, before = self._current(), self._previous
        if before is None:
            return now
        return Record(before.start, before.entries + now.entries, before.answers + now.answers)

    def _last_events(self) -> str:
        """The last events as text for an error message, the newest last."""
        texts = [repr(event) for event, _ in self.record().entries[-EVENTS_SHOWN:]]
        return "\n".join(["The last events:", *[text[:EVENT_SHOWN] for text in texts]])

    def _turn_over(self) -> None:
        """Begin a new segment; keep the last one unless it takes much memory."""
        self._previous = self._current() if self._tasks <= HEAVY_TASKS else None
        self._begin_segment()

    def _current(self) -> Record:
        return Record(self._start, self._entries, self._answers)

    def _begin_segment(self) -> None:
        self._start = _encoder.encode(self._tables)
        self._entries: list[tuple[Any, Outcome]] = []
        self._answers: list[Answer] = []
        #: The number of tasks that were submitted in this segment.
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
    """An exception as it stands in the journal."""
    return f"{type(error).__name__}: {error}"
