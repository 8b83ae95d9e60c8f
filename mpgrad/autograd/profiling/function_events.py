"""FunctionEvent: one range as a profile shows it, and which ranges lie inside of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mpgrad.autograd.profiling.ranges import Range


class TimeRange(NamedTuple):
    """Microseconds since the profile began."""

    start: float
    end: float

    def elapsed_us(self) -> float:
        return self.end - self.start


@dataclass(eq=False, slots=True)
class FunctionEvent:
    """One range.

    Attributes:
        name: of the Node, of the operator ("mpgrad::mul"), or of the ``record_function``.
        kind: "operator", "function" (the forward of a custom one), "node", "annotation"
            (``record_function``), "engine" (what mpgrad does around the rules) or "waiting".
        time_range: when.
        sequence_nr: the number that the Node's forward got on its thread; -1 where there is none.
        thread: the thread that ran it, or called the ``backward()`` that had a worker run it.
        worker: the slot of the worker process that ran it, None if the caller did.
        input_shapes: of the inputs, or of the gradients that flowed in, if they were asked for.
        cpu_memory_usage: bytes of the results, at least those of the ranges inside, if memory was
            asked for.
        backward: which backward of the profile it belongs to, None where to none.
        task, attempt: the NodeTask, and how often that had begun; None without one.
        cpu_parent: the range of the same thread or worker that it lies in.
        cpu_children: the ranges that lie in it, without those that lie in these.
    """

    name: str
    kind: str
    time_range: TimeRange
    sequence_nr: int
    thread: int
    worker: int | None
    input_shapes: tuple[Any, ...] = ()
    cpu_memory_usage: int = 0
    backward: int | None = None
    node: int | None = None
    task: int | None = None
    attempt: int = 1
    cpu_parent: FunctionEvent | None = field(default=None, repr=False)
    cpu_children: list[FunctionEvent] = field(default_factory=list, repr=False)

    @property
    def key(self) -> str:
        return self.name

    @property
    def count(self) -> int:
        """1, as averages have it."""
        return 1

    @property
    def cpu_time_total(self) -> float:
        """Microseconds."""
        return self.time_range.elapsed_us()

    cpu_time = cpu_time_total

    @property
    def self_cpu_time_total(self) -> float:
        """Microseconds without those of the ranges inside."""
        inside = sum([child.cpu_time_total for child in self.cpu_children])
        return max(self.cpu_time_total - inside, 0.0)

    @property
    def self_cpu_memory_usage(self) -> int:
        """Bytes without those of the ranges inside."""
        return self.cpu_memory_usage - sum([c.cpu_memory_usage for c in self.cpu_children])


def events_of(ranges: Sequence[Range], origin: float) -> list[FunctionEvent]:
    """The events of ``ranges`` in the order of their beginnings.

    Args:
        ranges: as they were noted.
        origin: when the profile began.
    """
    events = [
        FunctionEvent(
            found.name,
            found.kind,
            TimeRange((found.started - origin) * 1e6, (found.ended - origin) * 1e6),
            found.sequence_nr,
            found.thread,
            _or_none(found.worker),
            found.shapes,
            found.nbytes,
            _or_none(found.backward),
            _or_none(found.node),
            _or_none(found.task),
            found.attempt,
        )
        for found in sorted(ranges, key=lambda found: (found.started, -found.ended))
    ]
    _nest(events)
    return events


def _or_none(number: int) -> int | None:
    return None if number < 0 else number


def _nest(events: Sequence[FunctionEvent]) -> None:
    """Find for each event the one that it lies in; ``events`` are in the order of beginnings."""
    open_in: defaultdict[tuple[int, int | None], list[FunctionEvent]] = defaultdict(list)
    for event in events:
        # A worker runs one thing at a time, whatever thread waits for it.
        row = (event.thread, None) if event.worker is None else (-1, event.worker)
        stack, (start, end) = open_in[row], event.time_range
        while stack and stack[-1].time_range.end <= start:
            stack.pop()
        if stack and end <= stack[-1].time_range.end:
            event.cpu_parent = stack[-1]
            stack[-1].cpu_children.append(event)
        stack.append(event)
    for event in reversed(events):  # those inside come before the range that they lie in
        inside = sum([child.cpu_memory_usage for child in event.cpu_children])
        event.cpu_memory_usage = max(event.cpu_memory_usage, inside)
