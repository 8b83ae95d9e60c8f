"""Signals that go to the whole group, and children that nobody waits for: the client's affair."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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
