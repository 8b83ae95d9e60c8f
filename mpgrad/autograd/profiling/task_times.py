"""TaskTimes: when a NodeTask and its Nodes ran, as a worker reports it.

``perf_counter`` reads one clock of the machine (CLOCK_MONOTONIC) in all its processes.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple


class TaskTimes(NamedTuple):
    """Times in seconds of ``perf_counter``."""

    #: How often the task had been begun by then.
    attempt: int
    started: float
    ended: float
    #: Of each Node whose rule ran its start and its end, one after the other.
    nodes: Sequence[float]


def pack_times(
    nodes: Sequence[float], *, attempt: int = 1, started: float = 0.0, ended: float = 0.0
) -> bytes:
    """A TaskTimes as it travels in a message."""
    return array("d", (attempt, started, ended, *nodes)).tobytes()


def unpack_times(data: bytes) -> TaskTimes:
    """The inverse of :func:`pack_times`."""
    attempt, started, ended, *nodes = array("d", data)
    return TaskTimes(int(attempt), started, ended, nodes)
