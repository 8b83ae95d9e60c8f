"""What others see of an engine's processes, and what strangers can do at their sockets: nothing."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.errors import EngineClosed
from mpgrad.scheduler.events import GraphCancelled, NodeTaskDone
from mpgrad.wire.schema import (
    MESSAGE_BYTES_MAX,
    PROTOCOL_VERSION,
    Hello,
    QueryProcesses,
    StopEngine,
    encode,
)
from mpgrad.wire.transport import ROUTER_LANES, WORKER_LANES
from tests.leftovers import Leftovers, left_since, wait_until
from tests.process.conftest import check_usable

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def engine() -> Iterator[mg.Engine]:
    with mg.Engine("process", cpu_workers=2) as engine:
        check_usable()
        yield engine
        # Whatever a test did, these workers are still the first ones.
        assert engine.statistics().restarts == 0


def coordinator_of(engine: mg.Engine) -> Any:
    return engine._execution.sessions._coordinator


def pids_of(engine: mg.Engine) -> list[int]:
    assert engine.coordinator_pid is not None
    return [engine.coordinator_pid, *engine.worker_pids()]


def test_neither_arguments_nor_environment_hold_the_token(engine: mg.Engine) -> None:
    token: bytes = coordinator_of(engine).endpoint.token
    forms = (token, token.hex().encode(), base64.b64encode(token), repr(token)[2:-1].encode())
    for pid in (os.getpid(), *pids_of(engine)):
        for name in ("cmdline", "environ"):
            seen = Path(f"/proc/{pid}/{name}").read_bytes()
            assert not any(form in seen for form in forms), (pid, name)
    shown = repr(coordinator_of(engine).endpoint).encode("latin-1")
    assert not any(form in shown for form in forms)


def test_the_sockets_are_no_files(engine: mg.Engine) -> None:
    name = coordinator_of(engine).endpoint.name
    wanted, found = {f" @{name}/{lane}\n" for lane in ROUTER_LANES}, set()

    def all_listen() -> bool:
        # The kernel may leave out rows of that table while others open and close sockets.
        table = Path("/proc/net/unix").read_text()
        found.update(row for row in wanted if row in table)
        return found == wanted

    assert wait_until(all_listen), wanted - found


def test_programs_that_user_code_starts_inherit_nothing(engine: mg.Engine) -> None:
    for pid in pids_of(engine):
        for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it has been closed meanwhile
                flags = next(line for line in entry.read_text().splitlines() if "flags" in line)
                is_closed = int(flags.split()[1], 8) & os.O_CLOEXEC
                target = os.readlink(f"/proc/{pid}/fd/{entry.name}")
                assert int(entry.name) <= 2 or is_closed, (pid, target)


def words_of(spoken: str) -> list[bytes]:
    return [
        encode(Hello(spoken, b"guess", PROTOCOL_VERSION)),
        encode(NodeTaskDone(spoken, 1, 0, 1, ())),
        b"\xff noise",
    ]


def test_a_stranger_is_counted_and_ignored(engine: mg.Engine) -> None:
    """One who speaks as itself, as a living worker, as a dead one, and as a session."""
    before = engine.statistics().protocol_errors
    session = next(iter(engine._execution.sessions._idle)).peer
    guess, dealers = coordinator_of(engine).endpoint._replace(token=b"guess"), []
    for peer in ("w0.1", "w0.2", "w1.1", "w77.1"):
        dealers.append(guess.worker(peer))
        for lane in WORKER_LANES:
            dealers[-1].send(words_of(peer), lane)
    for peer in (session, "c1.1"):
        dealers.append(guess.session(peer))
        dealers[-1].send([encode(StopEngine(peer)), encode(QueryProcesses(peer))])
        dealers[-1].send([encode(GraphCancelled(session, 1))])
    pids = pids_of(engine)
    while engine.statistics().protocol_errors < before + 4 * len(WORKER_LANES) + 2 * 2:
        check_usable()
    assert pids_of(engine) == pids
    assert all(dealer.receive() == [] for dealer in dealers)
    for dealer in dealers:
        dealer.close()


def test_a_stolen_token_does_not_make_a_worker(engine: mg.Engine) -> None:
    """Only processes that the coordinator has started are given tasks."""
    stolen = coordinator_of(engine).endpoint.token
    dealer = coordinator_of(engine).endpoint.worker("w5.1")
    for lane in WORKER_LANES:
        dealer.send([encode(Hello("w5.1", stolen, PROTOCOL_VERSION))], lane)
    dealer.send([encode(NodeTaskDone("w5.1", 1, 0, 1, ()))])
    for _ in range(3):
        check_usable()
    assert dealer.receive() == []
    dealer.close()


def test_a_workers_name_makes_no_session(engine: mg.Engine) -> None:
    """It would take the place of that worker in the coordinator's tables."""
    stolen = coordinator_of(engine).endpoint.token
    dealer = coordinator_of(engine).endpoint.session("w0.1")
    dealer.send([encode(Hello("w0.1", stolen, PROTOCOL_VERSION)), encode(StopEngine("w0.1"))])
    for _ in range(3):
        check_usable()
    assert dealer.receive() == []
    dealer.close()


def test_a_second_hello_ends_the_session() -> None:
    """It would make the coordinator forget what the session holds."""
    with mg.Engine("process", cpu_workers=1) as own:
        with pytest.raises(EngineClosed, match="Hello twice"):
            say_hello_again(own)
        check_usable()


def say_hello_again(engine: mg.Engine) -> None:
    with engine._execution.sessions.session() as session:
        session._send(Hello(session.peer, session.coordinator.endpoint.token, PROTOCOL_VERSION))
        session.processes()


class RaisesMuch(mg.Function):
    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        raise ValueError("much " * (MESSAGE_BYTES_MAX // 4))


def test_an_error_too_long_for_a_message_kills_no_worker(engine: mg.Engine) -> None:
    x = mg.tensor(np.ones(3, np.float32), requires_grad=True)
    with pytest.raises(ValueError, match="characters"):
        RaisesMuch.apply(x).sum().backward()
    assert x.grad is None


def test_the_directory_for_temporary_files_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directories of users may be called as ours once were, and hold what ours held."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    theirs = tmp_path / "mpgrad-12345678" / "lock"
    theirs.parent.mkdir(mode=0o700)
    theirs.touch()
    with mg.Engine("process", cpu_workers=1):
        check_usable()
        assert list(tmp_path.rglob("*")) == [theirs.parent, theirs]
    assert list(tmp_path.rglob("*")) == [theirs.parent, theirs]


def test_who_clears_that_directory_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As systemd-tmpfiles does: new sessions find the coordinator all the same."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    with mg.Engine("process", cpu_workers=1) as own, ThreadPoolExecutor(4) as threads:
        check_usable()
        shutil.rmtree(temporary)
        for done in [threads.submit(check_usable) for _ in range(4)]:
            done.result()
        assert own.statistics().backwards_process == 5


def test_nothing_is_left_at_the_end() -> None:
    before = Leftovers.now()
    with mg.Engine("process", cpu_workers=2) as own:
        check_usable()
        name = coordinator_of(own).endpoint.name
    assert wait_until(lambda: name not in Path("/proc/net/unix").read_text())
    assert left_since(before) == ""
