"""ReadyQueue: NodeTasks whose inputs are complete, most urgent first."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import NamedTuple


class ReadyTask(NamedTuple):
    """Sorts as PyTorch's queue does, with the critical path before the recording order.

    Deeper reentrant graphs first; then the longest remaining path; then the serial engine's order;
    the graph's number breaks ties between concurrent backwards.
    """

    negative_depth: int
    negative_priority: float
    position: int
    graph: int
    task: int


class ReadyQueue:
    """A heap of ReadyTasks."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[ReadyTask] = []

    def push(self, task: ReadyTask) -> None:
        heappush(self._heap, task)

    def pop(self) -> ReadyTask:
        return heappop(self._heap)

    def peek(self) -> ReadyTask | None:
        return self._heap[0] if self._heap else None

    def drop_graph(self, graph: int, start: int = 0) -> int:
        """Forget the tasks of one graph (it failed or was cancelled) from position ``start`` on.

        Returns:
            How many they were.
        """
        kept = [task for task in self._heap if task.graph != graph or task.position < start]
        dropped = len(self._heap) - len(kept)
        heapify(kept)
        self._heap = kept
        return dropped

    def tasks(self) -> list[ReadyTask]:
        """All entries in queue order (for invariants and statistics)."""
        return sorted(self._heap)

    def __len__(self) -> int:
        return len(self._heap)
