"""Who may join: workers that cannot start are given up with a reason, strangers are not heard."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mpgrad as mg
from mpgrad.errors import EngineClosed
from mpgrad.scheduler.events import BlocksReleased, GraphCancelled, NodeTaskDone
from mpgrad.wire.schema import PROTOCOL_VERSION, Hello, StopEngine, encode
from mpgrad.wire.transport import TASK, WORKER_LANES, Dealer
from tests.process.conftest import check_usable

pytestmark = pytest.mark.process

#: Python runs this file at every start: here no worker gets any further.
NO_WORKERS = """
import os, sys
if "mpgrad.workers" in sys.orig_argv:
    os._exit(7)
"""


def test_workers_that_cannot_start(
    run_script: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_WORKERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = run_script(
        "import mpgrad as mg\n"
        "x = mg.tensor([1.0], requires_grad=True)\n"
        "try:\n"
        "    x.exp().sum().backward()\n"
        "except mg.errors.EngineClosed as error:\n"
        "    print(error, x.grad)\n"
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert "workers die before they are ready" in done.stdout
    assert "exited with status 7" in done.stdout
    assert done.stdout.endswith(" None\n")


@pytest.fixture
def stranger(engine: mg.Engine) -> Iterator[Callable[..., Dealer]]:
    """Somebody with access to the sockets who was never given the token, unless it is stolen."""
    # Not the coordinator, whose arena pytest would hold until all of the module is torn down.
    stolen = engine._execution.sessions.coordinator.endpoint
    dealers: list[Dealer] = []

    def connect(peer: str, *, as_worker: bool = False, has_token: bool = False) -> Dealer:
        endpoint = stolen if has_token else stolen._replace(token=b"guess")
        dealers.append(endpoint.worker(peer) if as_worker else endpoint.session(peer))
        return dealers[-1]

    yield connect
    for dealer in dealers:
        dealer.close()


Connect = Callable[..., Dealer]


def test_a_session_with_a_wrong_token(engine: mg.Engine, stranger: Connect) -> None:
    dealer = stranger("c1.99")
    dealer.send([encode(Hello("c1.99", b"guess", PROTOCOL_VERSION)), encode(StopEngine("c1.99"))])
    check_usable()
    assert dealer.receive() == []
    assert len(engine.worker_pids()) == 2


def test_a_worker_that_nobody_started(engine: mg.Engine, stranger: Connect) -> None:
    dealer = stranger("w7.1", as_worker=True)
    for lane in WORKER_LANES:
        dealer.send([encode(Hello("w7.1", b"guess", PROTOCOL_VERSION))], lane)
    dealer.send([encode(NodeTaskDone("w7.1", 1, 0, 1, ()))], TASK)
    check_usable()
    assert engine.statistics().restarts == 0


@pytest.mark.parametrize("has_token", [False, True], ids=["stranger", "thief"])
@pytest.mark.parametrize("frame", [b"", b"\xff", b"\x01\xc1", b"\x0a" + bytes(100)], ids=repr)
def test_noise(engine: mg.Engine, stranger: Connect, frame: bytes, has_token: bool) -> None:
    stranger("c1.77", has_token=has_token).send([frame])
    stranger("w0.77", as_worker=True, has_token=has_token).send([frame])
    check_usable()
    assert engine.statistics().restarts == 0


def test_one_session_may_not_speak_for_another(engine: mg.Engine, stranger: Connect) -> None:
    own = next(iter(engine._execution.sessions._idle)).peer
    dealer = stranger("c1.55", has_token=True)
    dealer.send([encode(GraphCancelled(own, 1)), encode(BlocksReleased(own, ()))])
    dealer.send([encode(StopEngine(own))])
    check_usable()


def test_a_session_that_breaks_the_protocol_is_refused() -> None:
    with mg.Engine("process", cpu_workers=1) as engine:
        with pytest.raises(EngineClosed, match="protocol error"):
            speak_for_another(engine)
        check_usable()


def speak_for_another(engine: mg.Engine) -> None:
    with engine._execution.sessions.session() as session:
        session._send(GraphCancelled("c0.0", 1))
        session.processes()
