"""ReadyQueue: NodeTasks whose inputs are complete, most urgent first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from mpgrad.scheduler.graph_spec import ON_CPU


class ReadyTask(NamedTuple):
    """Sorts as in PyTorch's queue, with the critical path before the recording order.

    Deeper reentrant graphs come first, then the longest remaining path, then the serial engine's
    order; the graph's number breaks ties between concurrent backwards.
    """

    negative_depth: int
    negative_priority: float
    position: int
    graph: int
    task: int
    #: The smallest serial position of a task that needs it, its own included.
    needed_from: int = 0


def lane_of(device: int, near: int) -> int:
    """The lane of a task for ``device`` that belongs near the worker in slot ``near``, if any."""
    return device if near < 0 else _NEAR - near


def slot_of(lane: int) -> int:
    """The slot whose worker a lane belongs to; -1 if it belongs to a device."""
    return _NEAR - lane if lane <= _NEAR else -1


#: The lane of tasks near the worker in slot 0; those of other slots are below.
_NEAR = ON_CPU - 1


@dataclass(slots=True)
class ReadyQueue:
    """A heap of ReadyTasks per lane. As in PyTorch a device has one, so that no task waits behind
    another device's. So has each CPU worker, for tasks that belong near it."""

    #: Exactly the lanes that ever had a task.
    heaps: dict[int, list[ReadyTask]] = field(default_factory=lambda: {ON_CPU: []})

    def push(self, task: ReadyTask, lane: int = ON_CPU) -> None:
        heappush(self.heaps.setdefault(lane, []), task)

    def pop(self, lane: int = ON_CPU) -> ReadyTask:
        return heappop(self.heaps[lane])

    def peek(self, lane: int = ON_CPU) -> ReadyTask | None:
        heap = self.heaps.get(lane)
        return heap[0] if heap else None

    def length(self, lane: int) -> int:
        """The number of tasks in a lane."""
        return len(self.heaps.get(lane, ()))

    def lanes(self) -> list[int]:
        """The lanes that have had tasks, in the order of their first one."""
        return list(self.heaps)

    def most_urgent(self, lanes: Sequence[int]) -> int | None:
        """That of the lanes whose first task comes before those of the others; None: no tasks."""
        filled = [lane for lane in lanes if self.heaps[lane]]
        if len(filled) > 1:
            return min(filled, key=lambda lane: self.heaps[lane][0])
        return filled[0] if filled else None

    def lengths(self) -> list[tuple[int, int, int]]:
        """For each device: its number, its tasks of nested graphs, and its other tasks."""
        found: dict[int, tuple[int, int]] = {}
        for lane, heap in self.heaps.items():
            # A nested graph is at the head of the heap if there is any.
            nested = sum([task.negative_depth < 0 for task in heap]) if _is_nested(heap) else 0
            device = max(lane, ON_CPU)
            before = found.get(device, (0, 0))
            found[device] = before[0] + nested, before[1] + len(heap) - nested
        return [(device, *counts) for device, counts in found.items()]

    def drop_graph(self, graph: int, start: int = 0) -> int:
        """Remove the tasks of a failed or cancelled graph that are needed from ``start`` on.

        Returns:
            The number of removed tasks.
        """
        dropped = 0
        for lane, heap in self.heaps.items():
            kept = [task for task in heap if task.graph != graph or task.needed_from < start]
            dropped += len(heap) - len(kept)
            heapify(kept)
            self.heaps[lane] = kept
        return dropped

    def tasks(self) -> list[ReadyTask]:
        """All entries in queue order (for invariants and statistics)."""
        return sorted(task for heap in self.heaps.values() for task in heap)

    def __len__(self) -> int:
        return sum([len(heap) for heap in self.heaps.values()])


def _is_nested(heap: list[ReadyTask]) -> bool:
    return bool(heap) and heap[0].negative_depth < 0
