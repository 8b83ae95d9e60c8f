"""What user code does with streams, threads, forks and descriptors beside its gradients."""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.wire.output_record import STDOUT, text_of
from mpgrad.wire.schema import MESSAGE_BYTES_MAX
from mpgrad.workers.captured_output import OutputForwarder

pytestmark = pytest.mark.process

Captured = pytest.CaptureFixture[str]


class Runs(mg.Function):
    """Calls ``action`` in backward."""

    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, action: Callable[[], object]) -> Any:
        ctx.action = action
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        ctx.action()
        return grad * 2, None


def run(action: Callable[[], object]) -> None:
    x = mg.tensor([1.0], requires_grad=True)
    Runs.apply(x, action).sum().backward()
    assert x.grad.tolist() == [2.0]


def print_in_threads() -> None:
    def count(number: int) -> None:
        for step in range(50):
            print(number, step)

    threads = [threading.Thread(target=count, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_threads_that_print(engine: mg.Engine, capsys: Captured) -> None:
    run(print_in_threads)
    lines = [line.partition("] ")[2] for line in capsys.readouterr().out.splitlines()]
    assert sorted(lines) == sorted(f"{one} {step}" for one in range(4) for step in range(50))


def test_a_thread_that_speaks_while_the_worker_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line may be sent before it is said that there is one; that wakes the worker once."""
    sent: list[bytes] = []
    output = OutputForwarder(0, lambda kind, data: sent.append(data))
    with monkeypatch.context() as patch:
        patch.setattr(os, "eventfd_write", lambda *_: None)
        speak = threading.Thread(target=lambda: output.text(STDOUT, "early\n"))
        speak.start()
        speak.join()
    output.flush()  # the line is there, and nobody has said so yet
    assert [text_of(data) for data in sent] == ["[worker 0] early\n"]
    os.eventfd_write(output.waiting_fd, 1)
    output.wake()
    assert select.select([output.waiting_fd], [], [], 0) == ([], [], [])
    os.close(output.waiting_fd)


def print_one_line_in_pieces() -> None:
    for _ in range(100_000):
        sys.stdout.write("x")


def test_many_pieces_of_one_line(engine: mg.Engine, capsys: Captured) -> None:
    run(print_one_line_in_pieces)
    assert capsys.readouterr().out.partition("] ")[2] == "x" * 100_000 + "\n"


def print_more_than_a_message() -> None:
    print("x" * (MESSAGE_BYTES_MAX + 1))


def test_one_line_longer_than_a_message(engine: mg.Engine, capsys: Captured) -> None:
    run(print_more_than_a_message)
    prefix, _, line = capsys.readouterr().out.partition("] ")
    assert (prefix[:-1], line == "x" * (MESSAGE_BYTES_MAX + 1) + "\n") == ("[worker ", True)


def move_a_bar() -> None:
    for percent in (0, 50, 100):
        print(f"\r{percent:3} %", end="", flush=True)


def test_a_progress_bar(engine: mg.Engine, capsys: Captured) -> None:
    run(move_a_bar)
    out = capsys.readouterr().out.replace("[worker 1]", "[worker 0]")
    assert out == "[worker 0] \r[worker 0]   0 %\r[worker 0]  50 %\r[worker 0] 100 %\n"


def write_bytes() -> None:
    sys.stdout.buffer.write(b"caf\xc3\xa9 \xff\n")


def test_bytes(engine: mg.Engine, capsys: Captured) -> None:
    run(write_bytes)
    # The stream of this test takes UTF-8 only, so what is none is shown escaped.
    assert capsys.readouterr().out.partition("] ")[2] == "café \\udcff\n"


def start_a_program() -> None:
    subprocess.run(["echo", "an echo"], stdout=sys.stdout, check=True)


def test_a_program_that_writes_there(engine: mg.Engine) -> None:
    run(start_a_program)


LATE = """
import threading, time
import mpgrad as mg

class Late(mg.Function):
    run_on = "worker"

    @staticmethod
    def forward(ctx, x):
        return x.numpy() * 2

    @staticmethod
    def backward(ctx, grad):
        threading.Thread(target=speak).start()
        return grad * 2

def speak():
    input_lines[0].wait()
    print("late")

class Gate:
    # Opens when the client has its gradient: it then makes the file.
    def wait(self):
        import os
        while not os.path.exists("gate"):
            time.sleep(0.01)

input_lines = [Gate()]

if __name__ == "__main__":
    with mg.Engine("process", cpu_workers=1) as engine:
        x = mg.ones(1, requires_grad=True)
        Late.apply(x).sum().backward()
        open("gate", "w").close()
        import sys
        while True:
            Late.apply(x).sum().backward()
            if "late" in open("out").read():
                break
        sys.stderr.write(f"{engine.statistics().restarts} restarts")
"""


def test_a_thread_that_prints_after_its_backward(
    tmp_path: Any, run_script: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    source = f"import os, sys\nos.chdir({str(tmp_path)!r})\n"
    source += "os.dup2(os.open('out', os.O_CREAT | os.O_RDWR | os.O_APPEND), 1)\n" + LATE
    ended = run_script(source)
    assert ended.stderr == "0 restarts"


@pytest.mark.parametrize("encoding", ["none", "closed", "ascii"])
def test_streams_of_the_client_that_take_nothing(
    engine: mg.Engine, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    if encoding == "closed":
        stream.close()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None if encoding == "none" else stream)
    run(print_umlaut)
    run(print_umlaut)
    if encoding == "ascii":
        assert stream.buffer.getvalue().count(rb"\xfc") == 2  # type: ignore[attr-defined]


def print_umlaut() -> None:
    print("ü")


def fork() -> None:
    child = os.fork()
    if child:
        os.waitpid(child, 0)


def test_a_worker_that_forks(engine: mg.Engine, capfd: pytest.CaptureFixture[str]) -> None:
    run(fork)
    run(fork)


def fork_and_end() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(60)
        os.write(writer, b"!")
        while True:
            signal.pause()
    os.read(reader, 1)
    os.close(reader)
    os.close(writer)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM


def test_a_process_that_a_worker_forks_is_ended_by_signals(engine: mg.Engine) -> None:
    """As ``multiprocessing`` ends its pools."""
    run(fork_and_end)


def test_a_hook_that_forks(engine: mg.Engine) -> None:
    reader, writer = os.pipe()
    parent = os.getpid()
    x = mg.tensor([1.0], requires_grad=True)
    y = x * 2
    y.register_hook(lambda grad: (fork(), grad)[1])
    try:
        y.sum().backward()
    except RuntimeError as error:
        if os.getpid() == parent:
            raise
        os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    assert f"was forked inside a backward() of process {parent}, which alone can" in said
    assert x.grad.tolist() == [2.0]


CLOSES = """
import os
import mpgrad as mg

if __name__ == "__main__":
    x = mg.ones(3, requires_grad=True)
    with mg.Engine("local"):
        (mg.ones(512, 512) * x[0]).sum().backward()
    os.closerange(3, 256)
    try:
        with mg.Engine("process", cpu_workers=1):
            (x * x).sum().backward()
    except OSError as error:
        print(error, flush=True)
    os._exit(0)
"""


def test_a_client_that_closes_what_is_not_its_own(
    run_script: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    assert "has been closed by other code (os.closerange?)" in run_script(CLOSES).stdout
