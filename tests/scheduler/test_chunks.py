"""chunk_ends(): the first message lets the workers begin, the others grow."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mpgrad.scheduler import chunks
from mpgrad.scheduler.chunks import SMALL_GRAPH, chunk_ends
from mpgrad.scheduler.graph_spec import GraphSpec, serial_order
from mpgrad.scheduler.plan import plan
from mpgrad.scheduler.plan_tables import Plan
from tests.scheduler.test_plan import graph, node


def fan(count: int) -> Plan:
    """A Node and as many that wait for it, each a task."""
    branches = [node(cost=5000.0) for _ in range(count)]
    return plan(graph(node(*range(1, count + 1), cost=5000.0), *branches), fuse=False, workers=4)


def roots(count: int) -> Plan:
    """Nodes that wait for nothing but their seeds."""
    nodes = tuple(node(cost=5000.0)._replace(sequence_nr=count - at) for at in range(count))
    seeds = tuple((at, 0) for at in range(count))
    return plan(GraphSpec(nodes, seeds, (), serial_order(nodes, seeds)), fuse=False, workers=4)


def test_what_can_begin_goes_first() -> None:
    assert chunk_ends(fan(30), workers=4, done=0) == [1, 3, 5, 8, 12, 18, 27, 31]
    assert chunk_ends(roots(30), workers=4, done=0) == [2, 4, 7, 11, 17, 26, 30]


def test_many_workers_begin_one_after_another() -> None:
    assert chunk_ends(roots(100), workers=16, done=0) == [8, 16, 28, 46, 73, 100]
    assert chunk_ends(fan(100), workers=16, done=0) == [1, 9, 17, 29, 47, 74, 101]


def test_two_workers_who_share_the_cores_with_the_client_get_fewer_messages() -> None:
    assert chunk_ends(fan(100), workers=2, done=0) == [1, 3, 7, 15, 31, 63, 101]


def test_what_ran_already_lets_others_begin() -> None:
    assert chunk_ends(fan(30), workers=4, done=1) == [3, 5, 8, 12, 18, 27, 31]


def test_a_small_graph_is_one_message() -> None:
    assert chunk_ends(fan(SMALL_GRAPH - 1), workers=4, done=0) == [SMALL_GRAPH]
    assert len(chunk_ends(fan(SMALL_GRAPH), workers=4, done=0)) > 1


@pytest.mark.parametrize("workers", [1, 2, 64])
@pytest.mark.parametrize("done", [0, 1])
def test_messages_are_neither_empty_nor_too_long(
    workers: int, done: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "TASKS_PER_MESSAGE", 20)
    for planned in (fan(200), roots(200)):
        ends = chunk_ends(planned, workers, done)
        assert ends[-1] == len(planned.tasks)
        assert done < ends[0] <= done + workers
        assert all(0 < later - sooner <= 20 for sooner, later in pairwise(ends))
