"""Who is heard at the sockets: peers that prove that they know the token, in the lane they mean."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import zmq

from mpgrad.wire import zeromq
from mpgrad.wire.schema import MESSAGE_BYTES_MAX
from mpgrad.wire.transport import CLIENT, CONTROL, HUB_LANES, TASK, WORKER_LANES, Arrival
from mpgrad.wire.zeromq import PROOF_BYTES, ZmqHub, ZmqSpoke, identity_of

TOKEN, PATIENCE_MS = b"the engine's", 5000
NOBODY = 65534


class Sockets(NamedTuple):
    hub: ZmqHub
    directory: str

    def arrivals_before_the_last(self) -> list[Arrival]:
        """What arrives before the frame "last" of a peer that has connected after all others."""
        with Raw(self.directory, TASK, identity_of(TOKEN, TASK, "w9.9")) as last:
            last.send(b"last")
            found: list[Arrival] = []
            while not found or found[-1].frame != b"last":
                fresh = self.hub.receive(PATIENCE_MS)
                assert fresh.arrivals or self.hub.ignored, "nothing came"
                found += fresh.arrivals
            return found[:-1]


class Raw:
    """A peer that says what it likes; ``send`` returns when the frame has left this process."""

    def __init__(self, directory: str, lane: str, identity: bytes | None) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = PATIENCE_MS
        # Nothing is queued for a peer that is not there: it waits until it is connected.
        self.socket.setsockopt(zmq.IMMEDIATE, 1)
        self.socket.sndtimeo = PATIENCE_MS
        if identity is not None:
            self.socket.routing_id = identity
        self.socket.connect(zeromq.address(directory, lane))

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=PATIENCE_MS)


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[Sockets]:
    # A path of a socket holds 107 characters.
    directory = os.path.relpath(tmp_path)
    directory = min(str(tmp_path), directory, key=len)
    hub = ZmqHub(directory, TOKEN)
    yield Sockets(hub, directory)
    hub.close()


def wait_for_ignored(hub: ZmqHub, count: int) -> list[Arrival]:
    """Receive until ``count`` messages were ignored; what else came."""
    found: list[Arrival] = []
    while hub.ignored < count:
        before = hub.ignored
        fresh = hub.receive(PATIENCE_MS).arrivals
        found += fresh
        assert fresh or hub.ignored > before, f"{count - before} messages were not ignored"
    assert hub.ignored == count
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
    with Raw(sockets.directory, TASK, FORGERIES[forgery]) as stranger:
        stranger.send(b"hello", b"and more")
        assert wait_for_ignored(sockets.hub, 2) == []


def test_who_knows_the_token_is_heard(sockets: Sockets) -> None:
    with Raw(sockets.directory, TASK, identity_of(TOKEN, TASK, "w0.1")) as peer:
        peer.send(b"hello")
        assert sockets.hub.receive(PATIENCE_MS).arrivals == [Arrival(TASK, "w0.1", b"hello")]
    assert sockets.hub.ignored == 0


def test_a_stranger_cannot_keep_a_worker_out(sockets: Sockets) -> None:
    """It has taken the worker's name before that one is there."""
    with Raw(sockets.directory, TASK, b"w0.1") as squatter:
        squatter.send(b"mine")
        assert wait_for_ignored(sockets.hub, 1) == []
        worker = ZmqSpoke.worker(sockets.directory, "w0.1", TOKEN)
        worker.send([b"hello"])
        assert sockets.hub.receive(PATIENCE_MS).arrivals == [Arrival(TASK, "w0.1", b"hello")]
        sockets.hub.send(TASK, "w0.1", b"work")
        assert sockets.hub.flush() == []
        worker.wait(PATIENCE_MS)
        assert worker.receive() == [b"work"]
        assert squatter.socket.poll(0) == 0
        worker.close()


def test_the_name_of_a_dead_worker_cannot_be_taken_over(sockets: Sockets) -> None:
    worker = ZmqSpoke.worker(sockets.directory, "w0.1", TOKEN)
    for lane in WORKER_LANES:
        worker.send([b"hello"], lane)
        assert len(sockets.hub.receive(PATIENCE_MS).arrivals) == 1
    worker.close()
    with Raw(sockets.directory, TASK, b"w0.1") as thief:
        thief.send(b"done")
        assert wait_for_ignored(sockets.hub, 1) == []


def test_a_frame_over_the_bound_ends_the_connection(sockets: Sockets) -> None:
    with Raw(sockets.directory, TASK, identity_of(TOKEN, TASK, "w0.1")) as peer:
        monitor = peer.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        peer.send(bytes(MESSAGE_BYTES_MAX))
        assert len(sockets.hub.receive(PATIENCE_MS).arrivals) == 1
        assert monitor.poll(0) == 0
        peer.send(bytes(MESSAGE_BYTES_MAX + 1))
        assert monitor.poll(PATIENCE_MS) == zmq.POLLIN
        assert sockets.hub.receive(0).arrivals == []


def test_only_the_owner_may_use_the_sockets(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        directory = min(str(tmp_path), os.path.relpath(tmp_path), key=len)
        ZmqHub(directory, TOKEN).close()
        hub = ZmqHub(directory, TOKEN)
    finally:
        os.umask(before)
    modes = {lane: stat.S_IMODE(os.stat(tmp_path / lane).st_mode) for lane in HUB_LANES}
    hub.close()
    assert modes == dict.fromkeys(HUB_LANES, 0o600)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("is_open", [False, True], ids=["as they are", "modes changed"])
def test_another_user_is_not_heard(sockets: Sockets, is_open: bool) -> None:
    """Not even one who knows the token and can reach the sockets."""
    path = Path(sockets.directory).resolve()
    if is_open:
        (path / TASK).chmod(0o777)
        for parent in (path, *path.parents):
            if not parent.stat().st_mode & 0o001:
                parent.chmod(0o711)
    child = os.fork()
    if child == 0:
        os._exit(_speak_as_nobody(sockets.directory))
    _, status = os.waitpid(child, 0)
    # Connected it has (1) only where the modes allow it; the filter behind them hears nobody.
    assert os.waitstatus_to_exitcode(status) == is_open
    assert sockets.arrivals_before_the_last() == []


def _speak_as_nobody(directory: str) -> int:
    """Whether another user can connect to the socket at all; says something there if so."""
    import socket

    os.setuid(NOBODY)
    with socket.socket(socket.AF_UNIX) as plain:
        try:
            plain.connect(os.path.join(directory, TASK))
        except OSError:
            return 0
    spoke = ZmqSpoke.worker(directory, "w0.1", TOKEN)
    spoke.send([b"hello"])
    spoke._context.destroy(linger=300)
    return 1
