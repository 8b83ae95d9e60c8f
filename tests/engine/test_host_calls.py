"""HostCalls: which host gets which call."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from mpgrad.engine.calls_in_workers import Request
from mpgrad.engine.cluster.host_calls import HostCalls
from mpgrad.engine.cluster.host_contract import Cluster, Greeting, RemoteHost
from mpgrad.engine.cluster.host_demand import HostDemand
from mpgrad.engine.cluster.host_in_use import HostInUse
from mpgrad.engine.cluster.host_starts import HostStarts
from mpgrad.engine.cluster.host_tasks import STORED_ABOVE_BYTES
from mpgrad.engine.cluster.single_calls import single_call
from mpgrad.engine.packed_arrays import PackedArrays
from mpgrad.engine.submitter import Submission, Submitter
from mpgrad.errors import EngineClosed
from mpgrad.shm.hosts_board import HostFigures
from mpgrad.wire.captured_state import CapturedState


def waiting(*arrays: Any) -> Submission:
    """A call that nobody has sent."""
    captured = CapturedState(b"", "", {})
    request = Request(cast("Any", SimpleNamespace(name="f")), list(arrays), 0, -1)
    return single_call(request, captured, PackedArrays(), 0, Future())


def test_a_host_gets_the_calls_whose_large_arrays_it_has() -> None:
    calls = HostCalls(cast("Cluster", None), HostStarts(Greeting(0, {}, {}), False))
    one, two = [
        HostInUse(number, cast("RemoteHost", None), HostFigures(str(number))) for number in (1, 2)
    ]
    arrays = [np.zeros(STORED_ABOVE_BYTES // 8 + 1) for _ in range(6)]
    shared, small = np.zeros(STORED_ABOVE_BYTES), np.zeros(8)

    def dealt(order: list[HostInUse]) -> dict[HostInUse, list[int]]:
        made = [waiting(array, shared, small, None) for array in arrays]
        calls._waiting.extend(made)
        found: dict[HostInUse, list[int]] = {one: [], two: []}
        for host in order:
            found[host] += [made.index(submission) for submission in calls._taken(host, 1)]
        assert not calls._waiting
        return found

    first = dealt([one, one, two, two, one, two])
    assert first == {one: [0, 1, 4], two: [2, 3, 5]}
    # Others ask first, and get their own. What is left goes to whoever is free.
    assert dealt([two, two, one, two, one, one]) == {two: [2, 3, 5], one: [0, 1, 4]}
    assert dealt([two] * 4 + [one] * 2) == {two: [2, 3, 5, 0], one: [1, 4]}
    calls._board.close()


def test_a_stopped_call_that_waits_once_more_ends() -> None:
    """After the death of its coordinator a call waits again; somebody waits for its Future."""
    submitter = Submitter(cast("Any", None), lambda lost, times: True)
    futures = [Future[Any](), Future[Any]()]
    captured = CapturedState(b"", "", {})
    request = Request(cast("Any", SimpleNamespace(name="f")), [], 0, -1)
    begun, waits = [single_call(request, captured, PackedArrays(), 0, one) for one in futures]
    assert begun.begins()
    submitter._queue.extend([begun, waits])
    assert not submitter.stop(begun, None)
    assert submitter.stop(waits, None)
    with pytest.raises(EngineClosed, match="nobody wanted"):
        futures[0].result(0)
    assert not futures[1].done()
    assert futures[1].cancel()  # who stops a call that has not begun has nobody to tell
    assert not submitter._queue


def test_an_autoscaler_is_asked_for_what_calls_need_within_limits() -> None:
    assert HostDemand().wanted(100, 4) is None
    assert HostDemand().room(7) is None
    assert HostDemand(least=2).wanted(100, 4) == 2
    limited = HostDemand(least=1, most=5)
    assert [limited.wanted(calls, 4) for calls in (0, 4, 9, 100)] == [1, 1, 3, 5]
    assert [limited.room(hosts) for hosts in (3, 5, 6)] == [2, 0, 0]
