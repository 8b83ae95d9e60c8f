"""What a profile shows: events, and their sums by name as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class TimeRange(NamedTuple):
    """Microseconds since the profile began."""

    start: float
    end: float

    def elapsed_us(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class FunctionEvent:
    """One range.

    Attributes:
        name: of the Node, or of the ``record_function``.
        time_range: when.
        sequence_nr: the number that the Node's forward got on its thread; -1 for
            ``record_function``.
        thread: the thread that called ``backward()``.
        worker: the slot of the worker process that ran it, None if the caller did.
        input_shapes: of the gradients that flowed in, if they were asked for.
    """

    name: str
    time_range: TimeRange
    sequence_nr: int
    thread: int
    worker: int | None
    input_shapes: tuple[Any, ...] = ()

    @property
    def key(self) -> str:
        return self.name

    @property
    def cpu_time_total(self) -> float:
        """Microseconds."""
        return self.time_range.elapsed_us()


@dataclass(slots=True)
class Average:
    """All events of one name.

    Attributes:
        key: the name.
        count: how many there are.
        cpu_time_total: their microseconds.
        workers: the slots that ran some of them.
    """

    key: str
    count: int = 0
    cpu_time_total: float = 0.0
    workers: set[int] = field(default_factory=set)

    @property
    def cpu_time(self) -> float:
        """Microseconds of one."""
        return self.cpu_time_total / self.count


#: What a table can be sorted by.
_ORDERS = ("cpu_time_total", "cpu_time", "count", "key")


class Averages(Sequence[Average]):
    """Sums by name, in the order in which the names first came up."""

    def __init__(self, rows: Sequence[Average]) -> None:
        self._rows = list(rows)

    @classmethod
    def of(cls, events: Sequence[FunctionEvent]) -> Averages:
        """The sums of ``events``."""
        rows: dict[str, Average] = {}
        for event in events:
            row = rows.setdefault(event.name, Average(event.name))
            row.count += 1
            row.cpu_time_total += event.cpu_time_total
            if event.worker is not None:
                row.workers.add(event.worker)
        return cls(list(rows.values()))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __iter__(self) -> Iterator[Average]:
        return iter(self._rows)

    def table(self, sort_by: str | None = None, row_limit: int = 100) -> str:
        """The rows as text.

        Args:
            sort_by: "cpu_time_total", "cpu_time", "count" (the largest first) or "key".
            row_limit: how many rows to show; -1 shows all.

        Raises:
            ValueError: ``sort_by`` is something else.
        """
        rows = list(self._rows)
        if sort_by is not None:
            if sort_by not in _ORDERS:
                raise ValueError(f"sort_by is {sort_by!r}; it must be one of {', '.join(_ORDERS)}")
            rows.sort(key=lambda row: getattr(row, sort_by), reverse=sort_by != "key")
        shown = rows if row_limit < 0 else rows[:row_limit]
        total = sum(row.cpu_time_total for row in rows)
        header: tuple[str, ...] = (
            "Name",
            "CPU %",
            "CPU total",
            "CPU time avg",
            "# of Calls",
            "Workers",
        )
        lines = [header, *(_line(row, total) for row in shown)]
        widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
        rule = "  ".join("-" * width for width in widths)
        body = [_aligned(line, widths) for line in lines]
        return "\n".join([rule, body[0], rule, *body[1:], rule, f"CPU time total: {_time(total)}"])

    def __str__(self) -> str:
        return self.table()


def _line(row: Average, total: float) -> tuple[str, ...]:
    return (
        row.key,
        f"{100 * row.cpu_time_total / total if total else 0:.2f}%",
        _time(row.cpu_time_total),
        _time(row.cpu_time),
        str(row.count),
        ",".join(map(str, sorted(row.workers))) or "-",
    )


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
    return "  ".join([first.lstrip().ljust(widths[0]), *rest])


def _time(microseconds: float) -> str:
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= size:
            return f"{microseconds / size:.3f}{unit}"
    return f"{microseconds:.3f}us"
