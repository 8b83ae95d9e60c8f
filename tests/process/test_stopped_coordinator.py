"""A coordinator that is stopped (SIGSTOP) or hangs, not dead: nobody waits for ever in silence."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.engine import coordinator_watchdog, session
from mpgrad.errors import CoordinatorLost
from tests.leftovers import is_alive, wait_until
from tests.process.conftest import check_usable
from tests.process.kill_points import kill_at

pytestmark = pytest.mark.process


def leaf() -> mg.Tensor:
    return mg.tensor(np.linspace(0.0, 1.0, 3000), requires_grad=True)


def gradient() -> bytes:
    x = leaf()
    mg.tanh(mg.exp(x)).sum().backward()
    return x.grad.numpy().tobytes()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits are short, and few of them are enough."""
    monkeypatch.setattr(session, "WAIT_MS", 20)
    monkeypatch.setattr(coordinator_watchdog, "WAIT_MS", 20)
    monkeypatch.setattr(coordinator_watchdog, "NOTICE_AFTER", 2)
    monkeypatch.setattr(coordinator_watchdog, "KILL_AFTER", 4)


@pytest.fixture
def suspicious(impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it must answer soon."""
    monkeypatch.setattr(session, "ASK_AFTER", 2)
    monkeypatch.setattr(coordinator_watchdog, "RUN_LIMIT_S", 0.05)


@pytest.mark.parametrize(
    ("deed", "words"), [("SLEEP", "did nothing for 0.08 s"), ("SPIN", "ran on")]
)
def test_one_that_hangs_is_given_up(
    suspicious: None, monkeypatch: pytest.MonkeyPatch, deed: str, words: str
) -> None:
    kill_at(monkeypatch, f"coordinator:submitted:2:{deed}")
    x = leaf()
    with mg.Engine("process", cpu_workers=1) as engine:
        check_usable()
        pid = engine.coordinator_pid
        with pytest.raises(CoordinatorLost) as caught:
            mg.exp(x).sum().backward()
        said = f"(pid {pid}) {words} and gave no answer, and was killed while a backward"
        assert said in str(caught.value)
        assert x.grad is None
        check_usable()


def test_one_that_answers_is_waited_for(suspicious: None) -> None:
    """A task may take as long as it likes."""
    with mg.Engine("process", cpu_workers=1) as engine:
        check_usable()
        pid = engine.coordinator_pid
        assert mg.parallel_map(time.sleep, [1.0]) == [None]
        assert engine.coordinator_pid == pid


def stop(engine: mg.Engine) -> int:
    pid = engine.coordinator_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_it_is_named_and_then_given_up(impatient: None, capsys: pytest.CaptureFixture[str]) -> None:
    x = leaf()
    with mg.Engine("process", cpu_workers=1) as engine:
        check_usable()
        pid = stop(engine)
        with pytest.raises(CoordinatorLost) as caught:
            mg.exp(x).sum().backward()
        for words in (f"(pid {pid})", "stopped (SIGSTOP) for 0.08 s", "no .grad was changed"):
            assert words in str(caught.value)
        assert x.grad is None
        check_usable()
    notice = capsys.readouterr().err
    assert notice.count("\n") == 1
    assert f"(pid {pid}) has been stopped (SIGSTOP) for 0.04 s" in notice
    assert f"kill -CONT {pid}" in notice


def test_with_recover_all_the_backward_is_run_again(impatient: None) -> None:
    with mg.Engine("local"):
        undisturbed = gradient()
    with mg.Engine("process", cpu_workers=1, recover="all") as engine:
        check_usable()
        pid = stop(engine)
        assert gradient() == undisturbed
        assert engine.statistics().recoveries == 1
        assert engine.coordinator_pid != pid


def test_a_query_does_not_wait_for_ever_either(impatient: None) -> None:
    with mg.Engine("process", cpu_workers=1) as engine:
        check_usable()
        stop(engine)
        assert engine.worker_pids() == []
        check_usable()


def test_a_long_task_is_none_of_its_business(impatient: None) -> None:
    """A client that waits for long hears nothing, and a coordinator that sleeps is not stopped."""
    with mg.Engine("process", cpu_workers=1) as engine:
        check_usable()
        sessions = engine._execution.sessions
        watch = coordinator_watchdog.CoordinatorWatchdog(sessions.coordinator)
        for _ in range(100):
            watch.note_wait(has_come=False)
        check_usable()


GOES_ON = """
import os, signal
import mpgrad as mg
from mpgrad.engine import coordinator_watchdog, session

session.WAIT_MS = coordinator_watchdog.WAIT_MS = 20
coordinator_watchdog.KILL_AFTER = 10_000  # it goes on in time, however long that takes here
x = mg.ones(100, requires_grad=True)
with mg.Engine("process", cpu_workers=1) as engine:
    (x * 2).sum().backward()
    pid = engine.coordinator_pid
    print(pid, flush=True)
    os.kill(pid, signal.SIGSTOP)
    (x * 3).sum().backward()
    print(x.grad.sum().item(), engine.coordinator_pid == pid)
"""


def test_one_that_goes_on_in_time_is_kept(
    start_script: Callable[..., subprocess.Popen[bytes]],
) -> None:
    client = start_script(GOES_ON, stderr=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stderr is not None
    pid = int(client.stdout.readline())
    notice = client.stderr.readline()  # it is waited for until somebody complains
    assert b"kill -CONT %d" % pid in notice
    os.kill(pid, signal.SIGCONT)
    out, _ = client.communicate(timeout=120)
    assert out == b"500.0 True\n"


IS_KILLED = """
import os, signal
import mpgrad as mg

x = mg.ones(3, requires_grad=True)
engine = mg.Engine("process", cpu_workers=2).__enter__()
(x * 2).sum().backward()
print(engine.coordinator_pid, *engine.worker_pids(), flush=True)
os.kill(engine.coordinator_pid, signal.SIGSTOP)
os.waitid(os.P_PID, engine.coordinator_pid, os.WSTOPPED | os.WNOWAIT)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_its_client_is_killed_meanwhile(
    start_script: Callable[..., subprocess.Popen[bytes]],
) -> None:
    client = start_script(IS_KILLED)
    out, _ = client.communicate(timeout=120)
    pids = [int(pid) for pid in out.split()]
    assert len(pids) == 3
    ended = wait_until(lambda: not any(map(is_alive, pids)))
    if not ended:
        os.kill(pids[0], signal.SIGCONT)
    assert ended
