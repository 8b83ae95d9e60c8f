"""The end of a session: the coordinator tells its workers in the same turn."""

from __future__ import annotations

import random

from mpgrad.scheduler.events import GraphSubmitted
from mpgrad.scheduler.instructions import CancelGraph, DispatchNodeTask
from mpgrad.wire.schema import decode
from stress.fuzz_core import TASKS, _number, _Stage


def test_workers_hear_of_it_in_the_same_turn() -> None:
    """There may be no other turn for a long time."""
    stage = _Stage(random.Random(1))
    stage._worker.receive()
    stage._say(GraphSubmitted("c1.0", 99, 0, TASKS, ((0, 0, 0, _number(1)),), 2))
    stage.coordinator.turn()
    assert DispatchNodeTask in [type(decode(frame)) for frame in stage._worker.receive()]
    stage._session.hang_up()
    stage.coordinator.turn()
    assert CancelGraph in [type(decode(frame)) for frame in stage._worker.receive()]
