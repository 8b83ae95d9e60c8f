"""The coordinator or the client dies at each of its kill points: who is left tells, or recovers."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

import mpgrad as mg
from mpgrad.engine import preparation
from mpgrad.engine.execution import RECOVERIES_MAX, may_run_again
from mpgrad.errors import CoordinatorLost
from mpgrad.scheduler.plan import plan
from mpgrad.wire.transport import ROUTER_LANES
from tests.leftovers import descendants, is_alive, named_memory_of, wait_until
from tests.process.conftest import (
    check_usable,
    plans_of_shapes_alone,
    script_environment,
)
from tests.process.kill_points import PHASES, dying, kill_at
from tests.process.test_kill_points import gradient, leaf, tree

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def undisturbed() -> bytes:
    with mg.Engine("local"):
        return gradient()


@contextmanager
def doomed(point: str, recover: str) -> Iterator[mg.Engine]:
    """Its first coordinator has ``point``; those that follow it have none."""
    engine = mg.Engine("process", cpu_workers=1, recover=recover)
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, point)
            stack.enter_context(engine)
        yield engine


# ---------------------------------------------------------------------- the coordinator


@pytest.mark.parametrize("phase", PHASES["coordinator"])
def test_with_recover_all_the_backward_is_run_again(undisturbed: bytes, phase: str) -> None:
    with doomed(f"coordinator:{phase}:1", "all") as engine:
        first = engine.coordinator_pid
        assert first is not None
        assert gradient() == undisturbed
        assert wait_until(lambda: not is_alive(first))
        assert gradient() == undisturbed
        statistics = engine.statistics()
        assert engine.coordinator_pid not in (None, first)
        # The results may have arrived before it died.
        assert statistics.recoveries == 1 or phase == "completed"
        assert statistics.failed == 0


def test_in_the_middle_of_many_tasks(monkeypatch: pytest.MonkeyPatch, undisturbed: bytes) -> None:
    monkeypatch.setattr(preparation, "plan", partial(plan, fuse=False))
    plans_of_shapes_alone(monkeypatch)
    with doomed("coordinator:answered:3:SEGV", "all") as engine:
        assert gradient() == undisturbed
        assert engine.statistics().recoveries == 1


def test_without_it_the_error_names_what_died(undisturbed: bytes) -> None:
    x = leaf()
    with doomed("coordinator:answered:1:SEGV", "worker") as engine:
        pid = engine.coordinator_pid
        with pytest.raises(CoordinatorLost) as caught:
            tree(x).backward()
        assert f"(pid {pid}) was killed by SIGSEGV" in str(caught.value)
        assert "next backward starts a new one" in str(caught.value)
        assert x.grad is None
        assert gradient() == undisturbed


def test_user_code_never_runs_twice() -> None:
    """Once a hook has run, the backward is lost whatever ``recover`` says."""
    calls: list[float] = []
    x = leaf()
    y = mg.exp(x)
    y.register_hook(lambda grad: calls.append(1.0))
    # The second reply is what comes after the hook's.
    with doomed("coordinator:answered:2", "all") as engine:
        with pytest.raises(CoordinatorLost) as caught:
            mg.tanh(mg.sin(y)).sum().backward()
        assert "was not run again" in "".join(caught.value.__notes__)
        assert (calls, x.grad, engine.statistics().recoveries) == ([1.0], None, 0)
        check_usable()


def test_it_is_not_repeated_for_ever() -> None:
    allowed = [may_run_again(CoordinatorLost("again"), n) for n in range(RECOVERIES_MAX + 2)]
    assert allowed == [True] * RECOVERIES_MAX + [False] * 2


# ---------------------------------------------------------------------- the client

DOOMED_CLIENT = """
import mpgrad as mg
from tests.process.test_kill_points import leaf, tree

with mg.Engine("process", cpu_workers=1) as engine:
    print(engine.coordinator_pid, *engine.worker_pids(), flush=True)
    loss = tree(leaf())
    loss.register_hook(lambda grad: None)
    loss.backward()
    print("it lives", flush=True)
"""


def test_the_client_dies_at_each_of_its_points(tmp_path: Path) -> None:
    """All at once, because each needs a second to start."""
    script = tmp_path / "script.py"
    script.write_text(DOOMED_CLIENT)
    clients = [
        subprocess.Popen(
            [sys.executable, str(script)],
            env={**script_environment(), **dying(f"client:{phase}:1")},
            stdout=subprocess.PIPE,
            text=True,
        )
        for phase in PHASES["client"]
    ]
    for client in clients:
        family, status = client.communicate(timeout=120)[0], client.returncode
        assert status == -signal.SIGKILL
        pids = [int(word) for word in family.split()]
        assert len(pids) == 2
        assert wait_until(lambda pids=pids: not any(map(is_alive, pids)))


WAITS = """
import sys
import mpgrad as mg

with mg.Engine("process", cpu_workers=2) as engine:
    mg.ones(100, requires_grad=True).exp().sum().backward()
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_everything_killed_at_once(
    start_script: Callable[..., subprocess.Popen[bytes]],
) -> None:
    """Nobody is left who could clean up: the kernel does."""
    client = start_script(WAITS)
    assert client.stdout is not None
    assert client.stdout.readline() == b"ready\n"
    family = descendants(client.pid)
    assert len(family) == 4  # coordinator, template, workers
    sockets: set[str] = set()

    def all_listen() -> bool:
        # The kernel may leave out rows of that table while others open and close sockets.
        sockets.update(sockets_of(family))
        return len(sockets) == len(ROUTER_LANES)

    assert wait_until(all_listen)
    assert [named_memory_of(pid) for pid in (client.pid, *family)] == [set()] * 5
    for pid in (client.pid, *family):
        os.kill(pid, signal.SIGKILL)
    client.wait()
    assert wait_until(lambda: not any(map(is_alive, family)))
    assert wait_until(
        lambda: not any(map(Path("/proc/net/unix").read_text().__contains__, sockets))
    )


def sockets_of(pids: Iterable[int]) -> set[str]:
    """The abstract addresses at which these processes listen."""
    held = set()
    for entry in (entry for pid in pids for entry in Path(f"/proc/{pid}/fd").iterdir()):
        with suppress(FileNotFoundError):  # closed meanwhile
            held.add(os.readlink(entry))
    rows = re.findall(r" (\d+) (@mpgrad-\S+)", Path("/proc/net/unix").read_text())
    return {address for inode, address in rows if f"socket:[{inode}]" in held}


# ---------------------------------------------------------------------- file descriptors

FEW_DESCRIPTORS = """
import os, resource
import mpgrad as mg

def opened():
    return len(os.listdir("/proc/self/fd"))

x = mg.ones(100, requires_grad=True)
with mg.Engine("process", cpu_workers=1):
    x.sum().backward()
before, (soft, hard) = opened(), resource.getrlimit(resource.RLIMIT_NOFILE)
for spare in (1, 4, 9, 16):
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + spare, hard))
    try:
        x.exp().sum().backward()
    except OSError as error:
        print(error.errno, "ulimit -n" in str(error), opened() - before, x.grad.sum().item())
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
x.sum().backward()
print(x.grad.sum().item())
"""


def test_too_few_descriptors(run_script: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run_script(FEW_DESCRIPTORS)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == f"{errno.EMFILE} True 0 100.0\n" * 4 + "200.0\n"
