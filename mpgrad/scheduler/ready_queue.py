"""ReadyQueue: NodeTasks whose inputs are complete, most urgent first."""

from __future__ import annotations

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


@dataclass(slots=True)
class ReadyQueue:
    """A heap of ReadyTasks per device, as in PyTorch: no task waits behind another device's."""

    #: Exactly the devices that ever had a task.
    heaps: dict[int, list[ReadyTask]] = field(default_factory=lambda: {ON_CPU: []})

    def push(self, task: ReadyTask, device: int = ON_CPU) -> None:
        heappush(self.heaps.setdefault(device, []), task)

    def pop(self, device: int = ON_CPU) -> ReadyTask:
        return heappop(self.heaps[device])

    def peek(self, device: int = ON_CPU) -> ReadyTask | None:
        heap = self.heaps.get(device)
        return heap[0] if heap else None

    def devices(self) -> list[int]:
        """The devices that have had tasks, in the order of their first one."""
        return list(self.heaps)

    def lengths(self) -> list[tuple[int, int, int]]:
        """For each device: its number, its tasks of nested graphs, and its other tasks."""
        found = []
        for device, heap in self.heaps.items():
            # A nested graph is at the head of the heap if there is any.
            nested = sum([task.negative_depth < 0 for task in heap]) if _is_nested(heap) else 0
            found.append((device, nested, len(heap) - nested))
        return found

    def drop_graph(self, graph: int, start: int = 0) -> int:
        """Remove the tasks of a failed or cancelled graph that are needed from ``start`` on.

        Returns:
            The number of removed tasks.
        """
        dropped = 0
        for device, heap in self.heaps.items():
            kept = [task for task in heap if task.graph != graph or task.needed_from < start]
            dropped += len(heap) - len(kept)
            heapify(kept)
            self.heaps[device] = kept
        return dropped

    def tasks(self) -> list[ReadyTask]:
        """All entries in queue order (for invariants and statistics)."""
        return sorted(task for heap in self.heaps.values() for task in heap)

    def __len__(self) -> int:
        return sum([len(heap) for heap in self.heaps.values()])


def _is_nested(heap: list[ReadyTask]) -> bool:
    return bool(heap) and heap[0].negative_depth < 0
