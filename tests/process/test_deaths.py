"""Who dies, who notices, what the user sees: same bits, a named error, and nothing left."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.errors import CoordinatorLost, EngineClosed, WorkerLost
from tests.leftovers import descendants, is_alive, wait_until
from tests.process.conftest import check_usable

pytestmark = pytest.mark.process

StartScript = Callable[..., "subprocess.Popen[bytes]"]


class Dies(mg.Function):
    """Doubles; the first time it tells its pid through a pipe, and waits there to be killed."""

    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, here: str, go_on: str) -> Any:
        ctx.here, ctx.go_on = here, go_on
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        if not os.path.exists(ctx.go_on):
            with open(ctx.here, "w") as pipe:
                pipe.write(str(os.getpid()))
            with open(ctx.here) as pipe:
                pipe.read()
        return grad * 2, None, None


class Hangs(mg.Function):
    """Tells its pid through a pipe and does not come back."""

    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, here: str) -> Any:
        ctx.here = here
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        with open(ctx.here, "w") as pipe:
            pipe.write(f"{os.getpid()} ")
        while True:
            signal.pause()


class Crashes(mg.Function):
    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        os.kill(os.getpid(), signal.SIGSEGV)
        return grad * 2


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def said_by(client: subprocess.Popen[bytes], pipe: Path) -> int:
    """The number that a script's worker writes; fails if the script ends before."""
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb", 0) as stream:
        while True:
            readable, _, _ = select.select([stream], [], [], 1.0)
            data = stream.read() if readable else None
            if data:
                return int(data)
            assert client.poll() is None, "the script has ended"


@pytest.fixture
def own_engine() -> Iterator[mg.Engine]:
    """An engine that may be broken; it must work all the same before it is closed."""
    with mg.Engine("process", cpu_workers=2) as engine:
        yield engine
        check_usable()


def branches(x: mg.Tensor, *arguments: Any) -> mg.Tensor:
    """Eight branches with sums at their ends; the third runs ``Dies``."""
    values = [mg.tanh(x @ x.t() * (0.1 * number)) for number in range(8)]
    if arguments:
        values[2] = Dies.apply(values[2], *arguments)
    else:
        values[2] = values[2] * 2
    return mg.stack([(value * value).mean() for value in values]).sum()


def matrix() -> mg.Tensor:
    values = np.random.default_rng(5).normal(size=(150, 150))
    return mg.tensor(values.astype(np.float32), requires_grad=True)


@pytest.fixture(scope="module")
def undisturbed() -> bytes:
    x = matrix()
    with mg.Engine("local"):
        branches(x).backward()
    return x.grad.numpy().tobytes()


def beside(action: Callable[[], Any]) -> Any:
    """Run ``action`` in another process while this one is busy (threads would be forked)."""
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(0)
    return child


def kill_when_told(pipe: Path, victim: Callable[[int], int], sent: signal.Signals) -> int:
    """A child that waits for the pid in ``pipe`` and kills ``victim(pid)``."""

    def action() -> None:
        pid = int(pipe.read_text())
        (pipe.parent / "go on").touch()
        os.kill(victim(pid), sent)

    return beside(action)


# ---------------------------------------------------------------------- a worker


def test_a_worker_killed_at_work(own_engine: mg.Engine, pipe: Path, undisturbed: bytes) -> None:
    x = matrix()
    loss = branches(x, str(pipe), str(pipe.parent / "go on"))
    child = kill_when_told(pipe, lambda pid: pid, signal.SIGKILL)
    before = own_engine.worker_pids()
    loss.backward()
    os.waitpid(child, 0)
    assert x.grad.numpy().tobytes() == undisturbed
    statistics = own_engine.statistics()
    assert (statistics.restarts, statistics.failed) == (1, 0)
    assert len(set(before) & set(own_engine.worker_pids())) == 1


def test_a_worker_killed_while_idle(own_engine: mg.Engine, undisturbed: bytes) -> None:
    victim = own_engine.worker_pids()[0]
    os.kill(victim, signal.SIGKILL)
    assert wait_until(lambda: victim not in own_engine.worker_pids())
    assert wait_until(lambda: len(own_engine.worker_pids()) == 2)
    x = matrix()
    branches(x).backward()
    assert x.grad.numpy().tobytes() == undisturbed
    assert own_engine.statistics().restarts == 1


def test_all_workers_killed_at_once(own_engine: mg.Engine, undisturbed: bytes) -> None:
    for pid in own_engine.worker_pids():
        os.kill(pid, signal.SIGKILL)
    x = matrix()
    branches(x).backward()
    assert x.grad.numpy().tobytes() == undisturbed
    # One of them alone may have done it all before the other's death was seen.
    assert wait_until(lambda: own_engine.statistics().restarts == 2)


def test_a_function_that_always_kills_its_worker(own_engine: mg.Engine) -> None:
    x = mg.tensor([1.0], requires_grad=True)
    y = mg.tensor([1.0], requires_grad=True)
    with pytest.raises(WorkerLost) as caught:
        (Crashes.apply(x) + y.exp()).sum().backward()
    assert "CrashesBackward" in str(caught.value)
    assert "SIGSEGV" in str(caught.value)
    assert (x.grad, y.grad) == (None, None)
    assert own_engine.statistics().failed == 1


# ---------------------------------------------------------------------- the coordinator


def test_the_coordinator_killed_while_idle(own_engine: mg.Engine, undisturbed: bytes) -> None:
    coordinator = own_engine.coordinator_pid
    assert coordinator is not None
    workers = own_engine.worker_pids()
    os.kill(coordinator, signal.SIGKILL)
    assert wait_until(lambda: not any(map(is_alive, workers)))
    assert wait_until(lambda: own_engine.worker_pids() == [])
    x = matrix()
    branches(x).backward()
    assert x.grad.numpy().tobytes() == undisturbed
    assert own_engine.coordinator_pid not in (None, coordinator)


def test_the_coordinator_killed_at_work(own_engine: mg.Engine, pipe: Path) -> None:
    x = matrix()
    branches(x).backward()
    before = x.grad.numpy().tobytes()
    loss = branches(x, str(pipe), str(pipe.parent / "go on"))
    child = kill_when_told(pipe, parent_of, signal.SIGKILL)
    with pytest.raises(CoordinatorLost, match=r"no \.grad was changed"):
        loss.backward()
    os.waitpid(child, 0)
    assert x.grad.numpy().tobytes() == before


@pytest.mark.parametrize("others", [0, 2], ids=["alone", "with idle sessions"])
def test_an_engine_closed_while_a_worker_is_busy(pipe: Path, others: int) -> None:
    """Who waits for it gets EngineClosed: nothing died, somebody closed it."""
    x = matrix()
    found: list[Exception] = []

    def wait() -> None:
        try:
            Hangs.apply(x, str(pipe)).sum().backward()
        except Exception as error:
            found.append(error)

    def run() -> None:
        matrix().exp().sum().backward()

    with mg.Engine("process", cpu_workers=1) as engine:
        threads = [threading.Thread(target=run) for _ in range(others)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert int(pipe.read_text()) > 0
        engine.close()
        waiting.join()
    (error,) = found
    assert type(error) is EngineClosed
    assert x.grad is None


def parent_of(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("PPid:"):
            return int(line.split()[1])
    raise LookupError(pid)


# ---------------------------------------------------------------------- the client

CLIENT = """
import sys
import mpgrad as mg
from tests.process.test_deaths import branches, matrix

x = matrix()
if {busy}:
    branches(x, {pipe!r}, {go_on!r}).backward()
else:
    branches(x).backward()
    print("done", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("busy", [False, True])
def test_the_client_killed(start_script: StartScript, pipe: Path, busy: bool) -> None:
    source = CLIENT.format(busy=busy, pipe=str(pipe), go_on=str(pipe.parent / "go on"))
    client = start_script(source)
    if busy:
        assert said_by(client, pipe) > 0
    else:
        assert client.stdout is not None
        assert client.stdout.readline() == b"done\n"
    family = descendants(client.pid)
    assert len(family) == 4  # coordinator, template, workers
    client.kill()
    client.wait()
    assert wait_until(lambda: not any(map(is_alive, family)))


BUSY = """
import mpgrad as mg
from tests.process.test_deaths import Hangs

with mg.Engine("process", cpu_workers=6):
    x = mg.tensor([1.0], requires_grad=True)
    mg.stack([Hangs.apply(x, {pipe!r}).sum() for _ in range(6)]).sum().backward()
"""


def test_the_client_killed_while_many_workers_are_busy(
    start_script: StartScript, pipe: Path
) -> None:
    """How many of the six depends on the plan, and so on what a message takes at that moment."""
    # What a writer leaves in a pipe that nobody has open is lost: so open from before to after.
    with os.fdopen(os.open(pipe, os.O_RDWR | os.O_NONBLOCK), "rb", 0) as stream:
        client = start_script(BUSY.format(pipe=str(pipe)))
        said = b""

        def several_are_busy() -> bool:
            nonlocal said
            assert client.poll() is None, "the script has ended"
            said += stream.read() or b""
            return said.count(b" ") >= 2

        assert wait_until(several_are_busy), said
    busy = set(map(int, said.split()))
    family = descendants(client.pid)
    assert family > busy
    assert len(family) == 8
    client.kill()
    client.wait()
    assert wait_until(lambda: not any(map(is_alive, family)))


def test_a_script_that_fails(run_script: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run_script(
        "import mpgrad as mg, os\n"
        "x = mg.tensor([1.0], requires_grad=True)\n"
        "x.exp().sum().backward()\n"
        "print(mg.current_engine().coordinator_pid, *mg.current_engine().worker_pids())\n"
        "raise ValueError('in the script')\n"
    )
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: in the script\n")
    assert "mpgrad" not in done.stderr
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 3
    assert wait_until(lambda: not any(map(is_alive, pids)))


INTERRUPTED = """
import mpgrad as mg
from mpgrad.autograd.running import deferred_interrupts as interrupts
from tests.process.test_deaths import branches, matrix

interrupts.GRACE_MS = interrupts.PATIENCE_MS = 3_600_000  # the task may end, when it is told to
x = matrix()
try:
    branches(x, {pipe!r}, {go_on!r}).backward()
except KeyboardInterrupt:
    print("interrupted", x.grad)
engine = mg.current_engine()
pids = engine.worker_pids()
branches(x).backward()
print(engine.worker_pids() == pids, tuple(x.grad.shape))
"""


def test_ctrl_c(start_script: StartScript, pipe: Path) -> None:
    go_on = pipe.parent / "go on"
    source = INTERRUPTED.format(pipe=str(pipe), go_on=str(go_on))
    client = start_script(source, start_new_session=True)
    assert said_by(client, pipe) > 0
    go_on.touch()
    # As a terminal does it: the whole process group gets the signal.
    os.killpg(client.pid, signal.SIGINT)
    pipe.write_text("the task that is running may end")
    out, _ = client.communicate(timeout=120)
    assert out == b"interrupted None\nTrue (150, 150)\n"
    assert client.returncode == 0


ENDLESS = """
import sys
import mpgrad as mg

class Endless(mg.Function):
    run_on = "client"

    @staticmethod
    def forward(ctx, x):
        with mg.enable_grad():
            ctx.x = x.detach().requires_grad_() + 1
        return ctx.x.detach()

    @staticmethod
    def backward(ctx, grad):
        if ctx.x.item() == 100:
            print("deep", flush=True)
        with mg.enable_grad():
            Endless.apply(ctx.x).sum().backward()
        return grad

x = mg.tensor(0.0, requires_grad=True)
with mg.Engine("{mode}", cpu_workers=1):
    try:
        Endless.apply(x).sum().backward()
    except KeyboardInterrupt:
        print("interrupted", x.grad)
    (x * 2).sum().backward()
    print(x.grad.item())
"""


@pytest.mark.row("M2")
@pytest.mark.parametrize("mode", ["local", "process"])
def test_ctrl_c_ends_backwards_that_nest_for_ever(start_script: StartScript, mode: str) -> None:
    client = start_script(ENDLESS.format(mode=mode))
    assert client.stdout is not None
    assert client.stdout.readline() == b"deep\n"
    client.send_signal(signal.SIGINT)
    out, _ = client.communicate(timeout=120)
    assert out == b"interrupted None\n2.0\n"


INTERRUPTED_TWICE = """
import os
import mpgrad as mg
from mpgrad.autograd.running import deferred_interrupts as interrupts
from mpgrad.scheduler.client_state import ClientState
from mpgrad.scheduler.events import GraphCancelled
from tests.process.test_deaths import Hangs, branches, matrix

interrupts.GRACE_MS = interrupts.PATIENCE_MS = 3_600_000
handle_event = ClientState.handle_event

def handle_and_tell(self, event):
    if isinstance(event, GraphCancelled):
        print("cancelled", flush=True)
    return handle_event(self, event)

ClientState.handle_event = handle_and_tell
x = matrix()
try:
    Hangs.apply(x, {pipe!r}).sum().backward()
except KeyboardInterrupt:
    print("interrupted", x.grad)
branches(x).backward()
print(tuple(x.grad.shape))
"""


def test_ctrl_c_again_ends_a_task_that_hangs(start_script: StartScript, pipe: Path) -> None:
    client = start_script(INTERRUPTED_TWICE.format(pipe=str(pipe)), start_new_session=True)
    assert client.stdout is not None
    assert said_by(client, pipe) > 0
    os.killpg(client.pid, signal.SIGINT)
    assert client.stdout.readline() == b"cancelled\n"
    os.killpg(client.pid, signal.SIGINT)
    out, _ = client.communicate(timeout=120)
    assert out == b"interrupted None\n(150, 150)\n"
    assert client.returncode == 0


# ---------------------------------------------------------------------- fork


@pytest.mark.row("M12")
def test_a_forked_child_that_just_exits_disturbs_nobody(
    run_script: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_script(
        "import mpgrad as mg, os, sys, warnings\n"
        "warnings.simplefilter('ignore', DeprecationWarning)  # of fork, from 3.12 on\n"
        "x = mg.ones(200, 200, requires_grad=True)\n"
        "x.exp().sum().backward()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    sys.exit(5)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "x.grad = None\n"
        "x.sum().backward()\n"
        "print(x.grad.sum().item())\n"
    )
    assert (done.stdout, done.stderr, done.returncode) == ("5\n40000.0\n", "", 0)


@pytest.mark.row("M12")
def test_a_forked_child_has_an_engine_of_its_own(own_engine: mg.Engine, undisturbed: bytes) -> None:
    x = matrix()
    branches(x).backward()
    before = own_engine.worker_pids()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(writer, "wb") as stream:
            stream.write(in_the_child(own_engine, undisturbed).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        assert stream.read() == "the same bits, other workers"
    os.waitpid(child, 0)
    y = matrix()
    branches(y).backward()
    assert y.grad.numpy().tobytes() == undisturbed
    assert own_engine.worker_pids() == before


def in_the_child(engine: mg.Engine, undisturbed: bytes) -> str:
    try:
        before = set(engine.worker_pids())
        x = matrix()
        branches(x).backward()
        same = x.grad.numpy().tobytes() == undisturbed
        others = not before & set(engine.worker_pids())
        engine.close()
        return (
            f"{'the same' if same else 'other'} bits, {'other' if others else 'the same'} workers"
        )
    except BaseException as error:
        return repr(error)
    finally:
        sys.stdout.flush()
