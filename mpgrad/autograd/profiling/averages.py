"""Averages: the events of a profile added up by name, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mpgrad.autograd.profiling.function_events import FunctionEvent
from mpgrad.autograd.profiling.ranges import WAITING


@dataclass(slots=True)
class Average:
    """All events of one name.

    Attributes:
        key: the name.
        count: how many there are.
        cpu_time_total: their microseconds; one inside another of the same name counts once.
        self_cpu_time_total: without those of the ranges inside, whatever these are.
        cpu_memory_usage, self_cpu_memory_usage: bytes of the results, if they were asked for.
        workers: the slots that ran some of them.
        input_shapes: of all of them, where they are added up by shapes, too.
    """

    key: str
    count: int = 0
    cpu_time_total: float = 0.0
    self_cpu_time_total: float = 0.0
    cpu_memory_usage: int = 0
    self_cpu_memory_usage: int = 0
    workers: set[int] = field(default_factory=set)
    input_shapes: tuple[Any, ...] = ()

    @property
    def cpu_time(self) -> float:
        """Microseconds of one."""
        return self.cpu_time_total / self.count


#: What a table can be sorted by.
_ORDERS = (
    "cpu_time_total",
    "self_cpu_time_total",
    "cpu_time",
    "cpu_memory_usage",
    "self_cpu_memory_usage",
    "count",
    "key",
)


class Averages(Sequence[Average]):
    """Sums by name, in the order in which the names first came up.

    Time that a thread spends waiting for workers is nobody's: what they run meanwhile counts.
    """

    def __init__(self, rows: Sequence[Average]) -> None:
        self._rows = list(rows)

    @classmethod
    def of(cls, events: Sequence[FunctionEvent], *, by_shape: bool = False) -> Averages:
        """The sums of ``events``."""
        rows: dict[tuple[str, Any], Average] = {}
        for event in events:
            if event.kind == WAITING:
                continue
            shapes = event.input_shapes if by_shape else ()
            row = rows.setdefault((event.name, shapes), Average(event.name, input_shapes=shapes))
            row.count += 1
            if not _is_inside_its_like(event):
                row.cpu_time_total += event.cpu_time_total
            row.self_cpu_time_total += event.self_cpu_time_total
            row.cpu_memory_usage += event.cpu_memory_usage
            row.self_cpu_memory_usage += event.self_cpu_memory_usage
            if event.worker is not None:
                row.workers.add(event.worker)
        return cls(list(rows.values()))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __iter__(self) -> Iterator[Average]:
        return iter(self._rows)

    def total_average(self) -> Average:
        """The sum of all rows; their self time is what all processes spent."""
        total = Average("Total")
        for row in self._rows:
            total.count += row.count
            total.self_cpu_time_total += row.self_cpu_time_total
            total.self_cpu_memory_usage += row.self_cpu_memory_usage
            total.workers |= row.workers
        total.cpu_time_total = total.self_cpu_time_total
        total.cpu_memory_usage = total.self_cpu_memory_usage
        return total

    def table(self, sort_by: str | None = None, row_limit: int = 100) -> str:
        """The rows as text.

        Args:
            sort_by: "cpu_time_total", "self_cpu_time_total", "cpu_time", "cpu_memory_usage",
                "self_cpu_memory_usage", "count" (the largest first) or "key".
            row_limit: how many rows to show; -1 shows all.

        Raises:
            ValueError: ``sort_by`` is something else.
        """
        rows = list(self._rows)
        if sort_by is not None:
            if sort_by not in _ORDERS:
                raise ValueError(f"sort_by is {sort_by!r}; it must be one of {', '.join(_ORDERS)}")
            rows.sort(key=lambda row: getattr(row, sort_by), reverse=sort_by != "key")
        total = self.total_average().self_cpu_time_total
        has_memory = any(row.cpu_memory_usage for row in rows)
        has_shapes = any(row.input_shapes for row in rows)
        header = ["Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg"]
        header += ["CPU Mem", "Self CPU Mem"] if has_memory else []
        header += ["# of Calls", "Workers", *(["Input Shapes"] if has_shapes else [])]
        shown = rows if row_limit < 0 else rows[:row_limit]
        lines = [header, *(_line(row, total, has_memory, has_shapes) for row in shown)]
        widths = [max(len(line[at]) for line in lines) for at in range(len(header))]
        rule = "  ".join("-" * width for width in widths)
        body = [_aligned(line, widths) for line in lines]
        end = f"Self CPU time total: {_time(total)}"
        return "\n".join([rule, body[0], rule, *body[1:], rule, end])

    def __str__(self) -> str:
        return self.table()


def _is_inside_its_like(event: FunctionEvent) -> bool:
    around = event.cpu_parent
    while around is not None and around.name != event.name:
        around = around.cpu_parent
    return around is not None


def _line(row: Average, total: float, has_memory: bool, has_shapes: bool) -> list[str]:
    times = [row.self_cpu_time_total, row.cpu_time_total]
    cells = [row.key]
    for spent in times:
        cells += [f"{100 * spent / total if total else 0:.2f}%", _time(spent)]
    cells.append(_time(row.cpu_time))
    if has_memory:
        cells += [_bytes(row.cpu_memory_usage), _bytes(row.self_cpu_memory_usage)]
    cells += [str(row.count), ",".join(map(str, sorted(row.workers))) or "-"]
    if has_shapes:
        cells.append(str([list(shape) for shape in row.input_shapes]))
    return cells


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
    return "  ".join([first.lstrip().ljust(widths[0]), *rest])


def _time(microseconds: float) -> str:
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= size:
            return f"{microseconds / size:.3f}{unit}"
    return f"{microseconds:.3f}us"


def _bytes(count: int) -> str:
    for unit, size in (("Gb", 2**30), ("Mb", 2**20), ("Kb", 2**10)):
        if abs(count) >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} b"
