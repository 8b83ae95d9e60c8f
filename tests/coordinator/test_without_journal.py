"""A coordinator that keeps no journal remembers nothing of what has been."""

from __future__ import annotations

import random

from mpgrad.wire.journal import AllocatorRecorder
from stress.fuzz_core import _Stage


def test_what_the_allocator_said_is_not_kept() -> None:
    """With ``journal="off"`` each backward left 1.1 KB in the coordinator for good."""
    coordinator = _Stage(random.Random(1)).coordinator
    assert not isinstance(coordinator.state.leases._allocator, AllocatorRecorder)
