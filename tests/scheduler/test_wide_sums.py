"""Wide sums in pieces: every contribution has one place, and the order is that of one long sum."""

from __future__ import annotations

import pytest

from mpgrad.scheduler.graph_spec import GraphSpec, NodeSpec, serial_order
from mpgrad.scheduler.plan import plan
from mpgrad.scheduler.plan_tables import CAPTURE
from mpgrad.scheduler.sum_places import LARGE_BYTES, WIDTH_LARGE, WIDTH_SMALL, WideSum, width_for

CONSUMER = (3, 1)


def in_order(wide: WideSum, count: int) -> list[int]:
    """The contributions in the order in which the pieces and the consumer add them."""
    slots: dict[tuple[int, int], dict[int, list[int]]] = {}
    for number in range(count):
        task, slot, place = wide.redirect(number)
        places = slots.setdefault((task, slot), {})
        assert place not in places
        places[place] = [number]
    for piece in wide.pieces:
        own = slots.pop((piece.task, 0))
        assert sorted(own) == list(range(piece.places))
        summed = [number for place in sorted(own) for number in own[place]]
        consumer = slots.setdefault(piece.consumer, {})
        assert 0 not in consumer
        consumer[0] = summed
    rest = slots.pop(CONSUMER)
    assert not slots
    assert sorted(rest) == list(range(wide.places_left))
    return [number for place in sorted(rest) for number in rest[place]]


@pytest.mark.parametrize("width", [2, 3, 8])
def test_every_contribution_is_added_once_and_in_order(width: int) -> None:
    for count in range(width + 1, 6 * width):
        wide = WideSum(CONSUMER, count, width, first_task=10)
        assert in_order(wide, count) == list(range(count))
        assert wide.places_left <= width


def test_only_wide_inputs_are_split() -> None:
    assert width_for(16, 10**6) is None
    assert width_for(LARGE_BYTES, WIDTH_LARGE) is None
    assert width_for(LARGE_BYTES, WIDTH_LARGE + 1) == WIDTH_LARGE
    assert width_for(LARGE_BYTES - 1, WIDTH_SMALL) is None
    assert width_for(LARGE_BYTES - 1, WIDTH_SMALL + 1) == WIDTH_SMALL


def test_a_plan_holds_no_more_than_the_width() -> None:
    """A root with 40 expensive branches that all end in one large leaf."""
    count, leaf = 40, 41
    nodes = [
        NodeSpec("Root", 100, tuple((1 + k, 0) for k in range(count)), (8,), 1.0),
        *(NodeSpec(f"Branch{k}", 99 - k, ((leaf, 0),), (8,), 1e4) for k in range(count)),
        NodeSpec("Leaf", 10**9, (), (LARGE_BYTES,), 0.0, is_sink=True),
    ]
    seeds = ((0, 0),)
    spec = GraphSpec(tuple(nodes), seeds, ((leaf, 0),), serial_order(nodes, seeds))
    planned = plan(spec)
    assert len(planned.tasks) == len(planned.groups)
    assert max(max(task.places) for task in planned.tasks) == WIDTH_LARGE
    results = [o for task in planned.tasks for o in task.outputs if o.task == CAPTURE]
    assert len(results) == 1
    for task in planned.tasks:
        assert task.dependencies == sum(task.places)
