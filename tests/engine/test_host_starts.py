"""HostStarts: which hosts take part."""

from __future__ import annotations

from math import inf
from typing import cast

import pytest

from mpgrad.engine.cluster.host_contract import Greeting, RemoteHost
from mpgrad.engine.cluster.host_in_use import HostInUse
from mpgrad.engine.cluster.host_starts import PAUSE_S, STARTS_MAX, HostStarts
from mpgrad.errors import CoordinatorLost, MpgradError
from mpgrad.shm.hosts_board import HostFigures

MINE = Greeting(0, {"Python": "3"}, {"BLAS": "one"})


class Remote:
    """Remembers how it was ended."""

    def __init__(self, name: str) -> None:
        self.name = self.node = name
        self.kills: list[float] = []

    def kill(self, pause_s: float = 0.0) -> None:
        self.kills.append(pause_s)


def a_host(name: str = "one") -> tuple[HostInUse, Remote]:
    remote = Remote(name)
    return HostInUse(1, cast("RemoteHost", remote), HostFigures(name)), remote


def dies() -> Greeting:
    raise CoordinatorLost("killed while it started", False)


def test_a_start_that_fails_is_made_again_at_once_and_then_seldom(
    capsys: pytest.CaptureFixture[str],
) -> None:
    starts = HostStarts(MINE, same_arithmetic=False)
    host, remote = a_host()
    for _ in range(STARTS_MAX - 1):
        starts.begin(host)
        assert not starts.end(host, dies)
        starts.settle(waits=starts.waits, has_workers=False)
        assert not starts.done.done()
    assert starts.end(host, lambda: MINE._replace(workers=2))
    assert host.workers == 2
    starts.settle(waits=starts.waits, has_workers=True)
    assert starts.done.result() is None
    for _ in range(STARTS_MAX + 1):
        starts.end(host, dies)
    assert remote.kills == [0.0] * (2 * STARTS_MAX - 2) + [PAUSE_S] * 2
    assert capsys.readouterr().err.count("a host cannot take part: one: CoordinatorLost") == 1


def test_other_versions_end_the_start() -> None:
    starts = HostStarts(MINE, same_arithmetic=False)
    host, remote = a_host()
    starts.begin(host)
    assert not starts.end(host, lambda: MINE._replace(versions={"Python": "2"}))
    starts.settle(waits=starts.waits, has_workers=False)
    with pytest.raises(MpgradError, match=r"one: Python 2 \(here 3\)"):
        starts.done.result()
    assert remote.kills == [inf]


def test_same_arithmetic_leaves_others_out(capsys: pytest.CaptureFixture[str]) -> None:
    starts = HostStarts(MINE, same_arithmetic=True)
    (host, _), (other, remote) = a_host(), a_host("two")
    other.number = 2
    for one in (host, other):
        starts.begin(one)
    assert not starts.end(other, lambda: MINE._replace(arithmetic={"BLAS": "two"}))
    assert starts.waits
    assert starts.end(host, lambda: MINE)
    starts.settle(waits=starts.waits, has_workers=True)
    assert starts.done.result() is None
    assert remote.kills == [inf]
    assert "a host is left out: two: BLAS two (here one)" in capsys.readouterr().err
