"""Signals of the group, SIGCHLD, and a client that becomes another program."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.leftovers import wait_until

pytestmark = pytest.mark.process

#: Signals that a terminal, a shell or a batch system sends to a whole group.
GROUP = """
import os, signal
import mpgrad as mg

seen = []
for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT"):
    signal.signal(getattr(signal, name), lambda number, frame: seen.append(number))
with mg.Engine("process", cpu_workers=2) as engine:
    def gradient():
        x = mg.ones(3000, requires_grad=True)
        mg.tanh(x * 3).sum().backward()
        return x.grad.tolist()

    expected, before = gradient(), (engine.coordinator_pid, engine.worker_pids())
    for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT"):
        os.killpg(0, getattr(signal, name))
        assert gradient() == expected
    assert (engine.coordinator_pid, engine.worker_pids()) == before
    print(len(seen))
"""

#: Where SIGCHLD is ignored the kernel keeps no exit status for whoever waits.
IGNORED = """
import os, signal
import mpgrad as mg

signal.signal(signal.SIGCHLD, signal.SIG_IGN)

class Dies(mg.Function):
    run_on = "worker"

    @staticmethod
    def forward(ctx, x):
        return x.numpy() * 2

    @staticmethod
    def backward(ctx, grad):
        import os, signal
        os.kill(os.getpid(), signal.SIGSEGV)

class KillsTheCoordinator(mg.Function):
    run_on = "client"

    @staticmethod
    def forward(ctx, x):
        return x.numpy() * 2

    @staticmethod
    def backward(ctx, grad):
        os.kill(engine.coordinator_pid, signal.SIGKILL)
        return grad

with mg.Engine("process", cpu_workers=2) as engine:
    for function in (Dies, KillsTheCoordinator):
        x = mg.ones(3000, requires_grad=True)
        try:
            (function.apply(x * 2) * 3).sum().backward()
        except mg.errors.MpgradError as error:
            print(type(error).__name__, error)
"""

#: Another program takes the client's place; a child that it forked before lives on.
REPLACED = """
import os, sys
import mpgrad as mg

x = mg.ones(3000, requires_grad=True)
engine = mg.Engine("process", cpu_workers=2)
with engine:
    mg.tanh(x * 3).sum().backward()
    if os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
    print(engine.coordinator_pid, *engine.worker_pids(), flush=True)
    os.execv(sys.executable, [sys.executable, "-c", "import sys; sys.stdin.read()"])
"""


def run(script: str) -> list[str]:
    """What ``script`` prints, in a session and a group of its own."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_signals_that_the_client_handles_reach_nobody_else() -> None:
    assert run(GROUP) == ["5"]


def test_deaths_where_sigchld_is_ignored() -> None:
    worker, coordinator = run(IGNORED)
    assert worker.startswith("WorkerLost")
    assert "SIGSEGV" in worker
    assert coordinator.startswith("CoordinatorLost")
    assert "status 0" not in coordinator
    assert "SIGCHLD" in coordinator


def is_gone(pid: int) -> bool:
    """Whether a process has ended; nobody may have waited for it."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_client_that_becomes_another_program() -> None:
    client = subprocess.Popen(
        [sys.executable, "-c", REPLACED],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with client:
        assert client.stdout is not None
        pids = [int(pid) for pid in client.stdout.readline().split()]
        assert len(pids) == 3
        assert wait_until(lambda: all(is_gone(pid) for pid in pids))
        client.kill()
