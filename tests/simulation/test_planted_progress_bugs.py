"""World must catch bugs of early publication, too: as in ``test_planted_bugs``."""

from __future__ import annotations

import pytest

from mpgrad.scheduler.graph_task import GraphPhase, GraphTask
from mpgrad.scheduler.lease_table import LeaseTable
from mpgrad.scheduler.task_dispatch import TaskDispatch
from simulation import Faults, World
from tests.simulation.planting import Plants


def worlds(seed: int) -> tuple[World, ...]:
    """One in which anything may happen, one with errors, and one whose publishers often die."""
    return (
        World.drawn(seed),
        World(seed, workers=3, faults=Faults(raise_rule=1.0)),
        World(seed, workers=2, graphs=3, faults=Faults(crash_after_progress=0.3)),
    )


PLANTS = Plants(worlds)
bug, rare_bug = PLANTS.bug, PLANTS.rare_bug


class Nothing(set):
    """Published outputs that nobody remembers."""

    def __contains__(self, number: object) -> bool:
        return False


@bug
def progress_is_ignored(patch):
    patch.setattr(TaskDispatch, "on_node_task_progress", lambda self, event: None)


@bug
def what_was_published_is_delivered_again_at_the_end(patch):
    right = TaskDispatch.on_node_task_done

    def wrong(self, event):
        for graph in self.graphs.values():
            graph.published.pop(event.task, None)
        right(self, event)

    patch.setattr(TaskDispatch, "on_node_task_done", wrong)


@bug
def a_duplicate_publication_counts_twice(patch):
    right = TaskDispatch.on_node_task_progress

    def wrong(self, event):
        for graph in self.graphs.values():
            if event.task in graph.published:
                graph.published[event.task] = Nothing(graph.published[event.task])
        right(self, event)

    patch.setattr(TaskDispatch, "on_node_task_progress", wrong)


@bug
def a_lost_task_publishes_everything_again(patch):
    right = GraphTask.requeue

    def wrong(self, task):
        right(self, task)
        self.published.pop(task, None)

    patch.setattr(GraphTask, "requeue", wrong)


@bug
def a_published_block_is_lent_to_the_next_attempt(patch):
    right = TaskDispatch._allot

    def wrong(self, graph, task):
        blocks = list(right(self, graph, task))
        spec = graph.specs[task]
        for number in sorted(graph.published.get(task, ())):
            output = spec.outputs[number]
            buffer = graph.buffers.get(output.task)
            if output.nbytes and buffer is not None:
                blocks[number] = buffer.slots[output.slot][output.place]
                self.leases.hold(blocks[number])
        return tuple(blocks)

    patch.setattr(TaskDispatch, "_allot", wrong)


@bug
def published_blocks_are_not_held_for_their_consumers(patch):
    right = TaskDispatch.on_node_task_progress

    def wrong(self, event):
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(LeaseTable, "hold", lambda self, ref: None)
            right(self, event)

    patch.setattr(TaskDispatch, "on_node_task_progress", wrong)


@bug
def a_running_task_loses_the_blocks_that_it_published(patch):
    right = TaskDispatch.on_node_task_progress

    def wrong(self, event):
        member, key, flight = self._flight_of(event)
        right(self, event)
        if flight is not None and self.graphs[key.graph].phase is GraphPhase.RUNNING:
            published = {number for number, _ in event.outputs}
            for number in sorted(published):
                self.leases.release(flight.blocks[number])
            left = [None if at in published else b for at, b in enumerate(flight.blocks)]
            member.flights[key] = flight._replace(blocks=tuple(left))

    patch.setattr(TaskDispatch, "on_node_task_progress", wrong)


@rare_bug
def foreign_blocks_may_be_published(patch):
    right = TaskDispatch.on_node_task_progress

    def wrong(self, event):
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr("mpgrad.scheduler.membership.Flight.check_reply", lambda *_: None)
            right(self, event)

    patch.setattr(TaskDispatch, "on_node_task_progress", wrong)


@bug
def a_failed_task_takes_back_what_it_published(patch):
    right = TaskDispatch.on_node_task_failed

    def wrong(self, event):
        graph = self.graphs.get(event.graph)
        published = () if graph is None else sorted(graph.published.get(event.task, ()))
        consumers = {graph.specs[event.task].outputs[number].task for number in published}
        for worker in self.membership.workers():
            for key in [key for key in worker.flights if key.graph == event.graph]:
                if key.task in consumers:
                    worker.flights.pop(key)
        right(self, event)

    patch.setattr(TaskDispatch, "on_node_task_failed", wrong)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTS.names())
def test_world_catches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTS.check_caught(name, monkeypatch)
