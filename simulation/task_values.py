"""The computation of a World's NodeTask: path counts instead of gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from mpgrad.base.handles import CLIENT_ARENA, ENGINE_ARENA, Block, GradientRef
from mpgrad.errors import BytesCorrupted
from mpgrad.scheduler import instructions as do
from simulation.expectations import BYTES_CORRUPTED, MEMORY_IS_LOST, error_text, require
from simulation.path_counts import (
    Content,
    TracedGraph,
    Value,
    add,
    join,
    run_members,
    run_serially,
    unpack,
)
from simulation.situations import PARTS_JOINED

if TYPE_CHECKING:
    from simulation.world import World


class RuleRaised(Exception):
    """The planted error of a rule, and the index of its Node in the task."""

    def __init__(self, text: bytes, step: int) -> None:
        self.text, self.step = text, step
        super().__init__(text.decode())


def sum_inputs(world: World, dispatch: do.DispatchNodeTask) -> list[Value | None]:
    """Read every contribution; add them from left to right, or join them if they are parts.

    Raises:
        RuleRaised: the bytes of one have changed.
    """
    number, task = dispatch.payload
    joins = dict(world.expected.programs[number].plan.joins[task])
    world.coordinator.situations.seen[PARTS_JOINED] += bool(joins)
    sums: list[Value | None] = []
    try:
        for ref in [ref for refs in dispatch.inputs for ref in refs]:
            if isinstance(ref, Block):
                world.memory.check_bytes(ref)
    except BytesCorrupted:
        raise RuleRaised(BYTES_CORRUPTED, 0) from None
    for slot, refs in enumerate(dispatch.inputs):
        values = [
            Value(*world.memory.read(ref), ref) if isinstance(ref, Block) else Value(*unpack(ref))
            for ref in refs
            if ref is not None
        ]
        count = joins.get(slot)
        sums.append(functools.reduce(add, values, None) if count is None else join(values, count))
    return sums


def is_on_host(block: Block | None) -> bool:
    """Whether it is a block that does not lie on a GPU."""
    return block is not None and block.arena in (CLIENT_ARENA, ENGINE_ARENA)


def refuse_lost_memory(world: World, dispatch: do.DispatchNodeTask) -> None:
    """Raise the client's error for inputs that died with their worker.

    Raises:
        RuleRaised: an input lay in the memory of a dead GPU worker.
    """
    refs = [ref for slot in dispatch.inputs for ref in slot]
    if any(isinstance(ref, Block) and world.memory.is_lost(ref) for ref in refs):
        raise RuleRaised(MEMORY_IS_LOST, 0)


def run_program(
    world: World,
    dispatch: do.DispatchNodeTask,
    on_publish: Callable[[dict[int, Value | None]], None] = lambda outputs: None,
) -> list[Value | None]:
    """The task's outputs, as values; ``on_publish`` as in ``run_members``.

    Raises:
        RuleRaised: a Node of the task is the one whose rule raises.
    """
    number, task = dispatch.payload
    _, _, graph, plan = world.expected.programs[number]
    nodes = [member.node for member in plan.groups[task]]

    def on_node(node: int) -> None:
        if node in graph.raising:
            raise RuleRaised(error_text(node, task), nodes.index(node))

    return run_members(
        graph,
        plan.groups[task],
        plan.slots[task],
        sum_inputs(world, dispatch),
        len(plan.tasks[task].outputs),
        on_node,
        on_publish,
    )


def check_captures(
    world: World,
    name: int,
    graph: TracedGraph,
    end: do.CompleteGraph,
    own: dict[int, Value | None],
) -> None:
    """Compare the results of a backward with a serial engine's.

    Args:
        world: the World with their memory.
        name: the session's number of the graph.
        graph: the graph.
        end: the end of the backward.
        own: the results that the caller has computed itself, by number.
    """
    for number, (ref, value) in enumerate(zip(end.captures, run_serially(graph), strict=True)):
        if isinstance(ref, Block) and world.memory.is_lost(ref):
            continue  # its GPU worker died on the way: the caller gets an error
        content = _look_at(world, ref)
        if number in own:
            require(ref is None, f"capture {number} of graph {name} was computed twice")
            mine = own[number]
            content = None if mine is None else mine.content
        wanted = None if value is None else value.content
        require(
            content == wanted,
            f"capture {number} of graph {name} is {content}, in a serial engine {wanted}",
        )


def _look_at(world: World, ref: GradientRef) -> Content | None:
    if isinstance(ref, Block):
        return world.memory.read(ref)
    return None if ref is None else unpack(ref)
