"""The worker's loop: the order in which it reads its lanes and replies."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.wire.schema import encode
from mpgrad.workers.worker import Worker

PEER = "w0.1"


class Lanes:
    """A Dealer that notes what is done with it."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.done: list[str] = []

    def receive(self) -> list[bytes]:
        self.done.append("receive")
        frames, self.frames = self.frames, []
        return frames

    def send(self, frames: Sequence[bytes], lane: str | None = None) -> None:
        self.done.append(f"send {len(frames)}")


def task(number: int) -> do.DispatchNodeTask:
    return do.DispatchNodeTask(PEER, 0, number, 1, 0, 0, (0, 0), (), ())


def worker_with(*tasks: do.DispatchNodeTask) -> tuple[Worker, Lanes]:
    """A worker that has just begun the first of these tasks."""
    lanes = Lanes()
    endpoint: Any = SimpleNamespace(token=b"", worker=lambda peer: lanes)
    executor: Any = SimpleNamespace()
    board: Any = None
    worker = Worker(endpoint, PEER, 0, board, executor)
    lanes.frames = [encode(task) for task in tasks]
    assert worker.turn(None) == tasks[0]
    lanes.done.clear()
    return worker, lanes


def test_a_reply_leaves_before_the_lanes_are_read() -> None:
    worker, lanes = worker_with(task(0))
    lanes.frames = [encode(task(1))]
    assert worker.turn(ev.NodeTaskDone(PEER, 0, 0, 1, ())) == task(1)
    assert lanes.done == ["send 1", "receive"]


def test_the_lanes_are_read_before_the_next_of_several_tasks_is_chosen() -> None:
    worker, lanes = worker_with(task(0), task(1))
    lanes.frames = [encode(do.CancelGraph(PEER, 0))]
    assert worker.turn(ev.NodeTaskDone(PEER, 0, 0, 1, ())) is None
    assert lanes.done == ["receive", "send 2"], "task 1 is returned unrun"
