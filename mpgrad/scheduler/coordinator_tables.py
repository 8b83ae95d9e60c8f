"""CoordinatorTables: the whole state of the coordinator. The files beside it change it.

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
    """No container in it is ever replaced, so every part of the core may keep a reference.

    A journal writes all its fields, and theirs.
    """

    #: Running and draining graphs by the coordinator's number.
    graphs: dict[int, GraphTask] = field(default_factory=dict)
    ready: ReadyQueue = field(default_factory=ReadyQueue)
    leases: LeaseTable = field(default_factory=LeaseTable)
    membership: Membership = field(default_factory=Membership)
    #: Per slot (absent: none): the number of its workers that died in a row while no worker
    #: finished a task.
    deaths_without_progress: dict[int, int] = field(default_factory=dict)
    #: The reason why no worker can be started any more, from the shell or the restart budget.
    unavailable: str | None = None
    #: (session, the session's number of the graph) -> the coordinator's number.
    numbers: dict[tuple[str, int], int] = field(default_factory=dict)
    next_number: int = 0
    #: The instructions since the last event, in order; empty between two events.
    out: list[Any] = field(default_factory=list)

    def add_graph(self, owner: str, owner_number: int, depth: int, captures: int) -> GraphTask:
        """Add a new graph under a number that no other graph has had."""
        number = self.next_number
        self.next_number += 1
        graph = self.graphs[number] = GraphTask(
            number, owner, owner_number, depth, [None] * captures
        )
        self.numbers[owner, owner_number] = number
        return graph

    def graph_of(self, owner: str, owner_number: int) -> GraphTask | None:
        """The graph with that number in the session ``owner``, unless it has ended."""
        number = self.numbers.get((owner, owner_number))
        return None if number is None else self.graphs[number]

    def forget(self, graph: GraphTask) -> None:
        """Remove a graph that has ended."""
        del self.graphs[graph.number]
        del self.numbers[graph.owner, graph.owner_number]
