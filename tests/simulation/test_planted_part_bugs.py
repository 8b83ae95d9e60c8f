"""World must catch bugs of products in parts, too: as in ``test_planted_bugs``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mpgrad.scheduler import split
from mpgrad.scheduler.plan import plan
from mpgrad.scheduler.plan_tables import Plan
from mpgrad.scheduler.sum_places import SumPlaces
from simulation import World, caller
from tests.simulation.planting import Plants

PLANTS = Plants(lambda seed: [World.drawn(seed)])
bug = PLANTS.bug


def spoil(patch: pytest.MonkeyPatch, change: Callable[[Plan], Plan]) -> None:
    """Make ``change`` to every plan."""
    patch.setattr(caller, "plan", lambda spec, **options: change(plan(spec, **options)))


@bug
def parts_are_added_up(patch):
    spoil(patch, lambda planned: planned._replace(joins=tuple(() for _ in planned.joins)))


@bug
def parts_are_joined_in_another_order(patch):
    def change(planned):
        def turned(output):
            if output.task < 0 or output.slot not in dict(planned.joins[output.task]):
                return output
            count = planned.tasks[output.task].places[output.slot]
            return output._replace(place=count - 1 - output.place)

        tasks = [
            task._replace(outputs=tuple(turned(output) for output in task.outputs))
            for task in planned.tasks
        ]
        return planned._replace(tasks=tuple(tasks))

    spoil(patch, change)


@bug
def a_part_is_computed_twice_and_another_one_never(patch):
    def change(planned):
        groups = [
            tuple(m._replace(parts=(0, 1)) if m.parts == (1, 2) else m for m in members)
            for members in planned.groups
        ]
        return planned._replace(groups=tuple(groups))

    spoil(patch, change)


@bug
def parts_go_where_something_else_is_added(patch):
    right = split._lone_targets

    def wrong(spec):
        targets = {target for node in spec.nodes for target in node.edges if target is not None}
        return right(spec) | {target for target in targets if not spec.nodes[target[0]].is_sink}

    patch.setattr(split, "_lone_targets", wrong)


@bug
def the_gradient_is_passed_on_to_one_of_the_others_only(patch):
    right = SumPlaces.__init__

    def wrong(self, spec, group_of, groups):
        nodes = [node._replace(passes=node.passes[:1]) for node in spec.nodes]
        right(self, spec._replace(nodes=tuple(nodes)), group_of, groups)

    patch.setattr(SumPlaces, "__init__", wrong)


@pytest.mark.parametrize("name", PLANTS.names())
def test_world_catches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTS.check_caught(name, monkeypatch)
