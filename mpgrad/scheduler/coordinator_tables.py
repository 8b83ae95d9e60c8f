"""CoordinatorTables: all that the coordinator knows; the files beside it change it.

Rules of this file: as in ``coordinator_state``.
"""

from __future__ import annotations

from collections import Counter

from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.graph_task import GraphTask
from mpgrad.scheduler.lease_table import BlockAllocator, LeaseTable
from mpgrad.scheduler.membership import Membership
from mpgrad.scheduler.ready_queue import ReadyQueue


class CoordinatorTables:
    """Its containers are never replaced by others, so that everybody may keep them at hand."""

    def __init__(self, allocator: BlockAllocator) -> None:
        #: Running and draining graphs by our own number.
        self.graphs: dict[int, GraphTask] = {}
        self.ready = ReadyQueue()
        self.leases = LeaseTable(allocator)
        self.membership = Membership()
        #: What the shell has to do, in order, since the last event came in.
        self.out: list[do.CoordinatorInstruction] = []
        #: Per slot: how many of its workers died in a row while no worker finished a task.
        self.deaths_without_progress: Counter[int] = Counter()
        #: Why no worker can be had any more, once the shell or the restart budget says so.
        self.unavailable: str | None = None
        #: (session, its name for the graph) -> our number.
        self._numbers: dict[tuple[str, int], int] = {}
        self._next_number = 0

    def add_graph(self, owner: str, name: int, depth: int, captures: int) -> GraphTask:
        """A new graph, under a number that no other one had."""
        number = self._next_number
        self._next_number += 1
        graph = self.graphs[number] = GraphTask(number, owner, name, depth, captures)
        self._numbers[owner, name] = number
        return graph

    def graph_of(self, owner: str, name: int) -> GraphTask | None:
        """The graph that a session knows as ``name``, unless it has ended."""
        number = self._numbers.get((owner, name))
        return None if number is None else self.graphs[number]

    def forget(self, graph: GraphTask) -> None:
        """The graph has ended."""
        del self.graphs[graph.number]
        del self._numbers[graph.owner, graph.name]
