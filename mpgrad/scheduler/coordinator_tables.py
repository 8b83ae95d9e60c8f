"""CoordinatorTables: all that the coordinator knows; the files beside it change it.

Rules of this file: as in ``coordinator_state``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mpgrad.scheduler.graph_task import GraphTask
from mpgrad.scheduler.lease_table import LeaseTable
from mpgrad.scheduler.membership import Membership
from mpgrad.scheduler.ready_queue import ReadyQueue


@dataclass
class CoordinatorTables:
    """Its containers are never replaced by others, so that everybody may keep them at hand.

    All its fields, and theirs, are what a journal writes.
    """

    #: Running and draining graphs by our own number.
    graphs: dict[int, GraphTask] = field(default_factory=dict)
    ready: ReadyQueue = field(default_factory=ReadyQueue)
    leases: LeaseTable = field(default_factory=LeaseTable)
    membership: Membership = field(default_factory=Membership)
    #: Per slot (absent: none): how many of its workers died in a row while no worker finished a
    #: task.
    deaths_without_progress: dict[int, int] = field(default_factory=dict)
    #: Why no worker can be had any more, once the shell or the restart budget says so.
    unavailable: str | None = None
    #: (session, its name for the graph) -> our number.
    numbers: dict[tuple[str, int], int] = field(default_factory=dict)
    next_number: int = 0
    #: What the shell has to do, in order, since the last event came in; empty between two events.
    out: list[Any] = field(default_factory=list)

    def add_graph(self, owner: str, name: int, depth: int, captures: int) -> GraphTask:
        """A new graph, under a number that no other one had."""
        number = self.next_number
        self.next_number += 1
        graph = self.graphs[number] = GraphTask(number, owner, name, depth, [None] * captures)
        self.numbers[owner, name] = number
        return graph

    def graph_of(self, owner: str, name: int) -> GraphTask | None:
        """The graph that a session knows as ``name``, unless it has ended."""
        number = self.numbers.get((owner, name))
        return None if number is None else self.graphs[number]

    def forget(self, graph: GraphTask) -> None:
        """The graph has ended."""
        del self.graphs[graph.number]
        del self.numbers[graph.owner, graph.name]
