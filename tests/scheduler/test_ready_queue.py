"""ReadyQueue and InputBuffer: order, and places that are filled once."""

from __future__ import annotations

from random import Random

import pytest

from mpgrad.base.handles import Block
from mpgrad.errors import InvariantViolated
from mpgrad.scheduler.graph_task import InputBuffer
from mpgrad.scheduler.ready_queue import ReadyQueue, ReadyTask


def entry(*, depth: int = 0, priority: float = 0.0, position: int = 0, graph: int = 0, task=0):
    return ReadyTask(-depth, -priority, position, graph, task, position)


#: Most urgent first.
IN_ORDER = [
    entry(depth=2),
    entry(depth=1, priority=5.0, position=9),
    entry(depth=1, priority=1.0),
    entry(priority=7.0, position=9),
    entry(priority=3.0, position=1),
    entry(priority=3.0, position=2, graph=1),
    entry(priority=3.0, position=2, graph=2, task=1),
    entry(priority=3.0, position=2, graph=2, task=2),
]


@pytest.mark.parametrize("seed", range(5))
def test_the_most_urgent_task_comes_first(seed: int) -> None:
    queue = ReadyQueue()
    for task in Random(seed).sample(IN_ORDER, len(IN_ORDER)):
        queue.push(task)
    assert queue.tasks() == IN_ORDER
    assert queue.peek() == IN_ORDER[0]
    assert [queue.pop() for _ in IN_ORDER] == IN_ORDER
    assert queue.peek() is None


def test_a_dropped_graph_leaves_the_others_in_order() -> None:
    queue = ReadyQueue()
    for task in reversed(IN_ORDER):
        queue.push(task)
    queue.drop_graph(0)
    assert len(queue) == 3
    assert [queue.pop() for _ in range(3)] == IN_ORDER[5:]


BLOCK = Block(1, 64, 4096, 1)


def test_a_buffer_gives_its_contributions_in_their_places() -> None:
    buffer = InputBuffer.empty((3, 0, 1))
    buffer.fill(0, 2, b"last")
    buffer.fill(2, 0, BLOCK)
    buffer.fill(0, 0, BLOCK)
    with pytest.raises(InvariantViolated, match="before it was complete"):
        buffer.inputs()
    buffer.fill(0, 1, None)
    assert buffer.inputs() == ((BLOCK, b"last"), (), (BLOCK,))
    assert list(buffer.blocks()) == [BLOCK, BLOCK]


@pytest.mark.parametrize("ref", [b"", None, BLOCK])
def test_a_place_is_filled_once(ref: object) -> None:
    buffer = InputBuffer.empty((1,))
    buffer.fill(0, 0, ref)
    with pytest.raises(InvariantViolated, match="filled twice"):
        buffer.fill(0, 0, ref)


def test_each_device_has_a_queue_of_its_own():
    queue = ReadyQueue()
    queue.push(entry(task=1, priority=1.0))
    queue.push(entry(task=2, priority=9.0), 0)
    queue.push(entry(task=3, priority=5.0), 0)
    assert queue.lanes() == [-1, 0]
    assert [queue.pop(0).task, queue.pop().task, queue.pop(0).task] == [2, 1, 3]
    assert queue.peek(7) is None
