"""Who is heard at the sockets: peers that prove that they know the token, in the lane they mean."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from mpgrad.wire.endpoint import Endpoint
from mpgrad.wire.schema import MESSAGE_BYTES_MAX
from mpgrad.wire.transport import CLIENT, CONTROL, TASK, WORKER_LANES, Arrival, Router
from mpgrad.wire.zeromq import PROOF_BYTES, identity_of
from tests.security.raw_peers import PATIENCE_MS, RawPeer

TOKEN = b"the engine's"
NOBODY = 65534


class Sockets(NamedTuple):
    router: Router
    endpoint: Endpoint

    def peer(self, lane: str, identity: bytes | None) -> contextlib.closing[RawPeer]:
        return contextlib.closing(RawPeer(self.endpoint, lane, identity))

    def arrivals_before_the_last(self) -> list[Arrival]:
        """What arrives before the frame "last" of a peer that has connected after all others."""
        with self.peer(TASK, identity_of(TOKEN, TASK, "w9.9")) as last:
            last.send(b"last")
            found: list[Arrival] = []
            while not found or found[-1].frame != b"last":
                fresh = self.router.receive(PATIENCE_MS)
                found += fresh.arrivals
            return found[:-1]


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    endpoint = Endpoint.create()._replace(token=TOKEN)
    router = endpoint.router()
    yield Sockets(router, endpoint)
    router.close()


def wait_for_ignored(router: Router, count: int) -> list[Arrival]:
    """Receive until ``count`` messages were ignored; what else came."""
    found: list[Arrival] = []
    while router.ignored < count:
        found += router.receive(PATIENCE_MS).arrivals
    assert router.ignored == count
    return found


FORGERIES = {
    "no name": None,
    "a name without proof": b"w0.1",
    "a guess": b"w0.1" + bytes(PROOF_BYTES),
    "a proof of another engine": identity_of(b"another engine's", TASK, "w0.1"),
    "a proof for another lane": identity_of(TOKEN, CONTROL, "w0.1"),
    "a session's proof": identity_of(TOKEN, CLIENT, "c1.1"),
    "another worker's proof": b"w0.1" + identity_of(TOKEN, TASK, "w0.2")[-PROOF_BYTES:],
    "a longer name": b"w0.1" + identity_of(TOKEN, TASK, "w0.1"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_stranger_is_counted_and_not_heard(sockets: Sockets, forgery: str) -> None:
    with sockets.peer(TASK, FORGERIES[forgery]) as stranger:
        stranger.send(b"hello", b"and more")
        assert wait_for_ignored(sockets.router, 2) == []


def test_who_knows_the_token_is_heard(sockets: Sockets) -> None:
    assert sockets.arrivals_before_the_last() == []
    assert sockets.router.ignored == 0


def test_a_stranger_cannot_keep_a_worker_out(sockets: Sockets) -> None:
    """It has taken the worker's name before that one is there."""
    with sockets.peer(TASK, b"w0.1") as squatter:
        squatter.send(b"mine")
        assert wait_for_ignored(sockets.router, 1) == []
        worker = sockets.endpoint.worker("w0.1")
        worker.send([b"hello"])
        assert next_arrivals(sockets.router) == [Arrival(TASK, "w0.1", b"hello")]
        sockets.router.send(TASK, "w0.1", b"work")
        assert sockets.router.flush() == []
        worker.wait(PATIENCE_MS)
        assert worker.receive() == [b"work"]
        assert not squatter.is_answered()
        worker.close()


def next_arrivals(router: Router) -> list[Arrival]:
    while True:
        # A connection that is made wakes the router too, and brings nothing.
        found = router.receive(PATIENCE_MS).arrivals
        if found:
            return found


def test_the_name_of_a_dead_worker_cannot_be_taken_over(sockets: Sockets) -> None:
    worker = sockets.endpoint.worker("w0.1")
    for lane in WORKER_LANES:
        worker.send([b"hello"], lane)
        assert len(next_arrivals(sockets.router)) == 1
    worker.close()
    with sockets.peer(TASK, b"w0.1") as thief:
        thief.send(b"done")
        assert wait_for_ignored(sockets.router, 1) == []


def test_a_living_workers_name_is_taken(sockets: Sockets) -> None:
    """Even one who has stolen the token does not get between a worker and the router."""
    worker = sockets.endpoint.worker("w0.1")
    worker.send([b"hello"])
    assert next_arrivals(sockets.router) == [Arrival(TASK, "w0.1", b"hello")]
    with sockets.peer(TASK, identity_of(TOKEN, TASK, "w0.1")) as thief:
        thief.send(b"done")
        assert sockets.arrivals_before_the_last() == []
        sockets.router.send(TASK, "w0.1", b"work")
        assert sockets.router.flush() == []
        worker.wait(PATIENCE_MS)
        assert worker.receive() == [b"work"]
        assert not thief.is_answered()
    worker.close()


def test_a_frame_over_the_bound_ends_the_connection(sockets: Sockets) -> None:
    with sockets.peer(TASK, identity_of(TOKEN, TASK, "w0.1")) as peer:
        peer.send(bytes(MESSAGE_BYTES_MAX))
        found: list[Arrival] = []
        while not found:
            found = sockets.router.receive(0).arrivals
        assert len(found[0].frame) == MESSAGE_BYTES_MAX
        assert not peer.is_cut_off(0)
        peer.send(bytes(MESSAGE_BYTES_MAX + 1))
        while not peer.is_cut_off(1):
            assert sockets.router.receive(1).arrivals == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_not_heard(sockets: Sockets) -> None:
    """Not even one who knows the name and the token."""
    child = os.fork()
    if child == 0:
        os.setuid(NOBODY)
        os._exit(_is_cut_off(sockets.endpoint))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert sockets.arrivals_before_the_last() == []
    assert sockets.router.ignored == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_the_user_is_the_effective_one() -> None:
    """That of a program with the set-user-ID bit is not the real one."""
    child = os.fork()
    if child == 0:
        os.seteuid(NOBODY)
        endpoint = Endpoint.create()
        router = endpoint.router()
        status = int(_is_cut_off(endpoint))
        router.close()
        os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def _is_cut_off(endpoint: Endpoint) -> bool:
    """Whether the kernel's word about this user ends the connection; says something there first."""
    with socket.socket(socket.AF_UNIX) as plain:
        plain.settimeout(PATIENCE_MS / 1000)
        plain.connect(f"\0{endpoint.name}/{TASK}")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            plain.send(b"anything")
            return plain.recv(1) == b""
        return True
