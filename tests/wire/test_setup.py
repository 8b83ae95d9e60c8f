"""What children are told: over a pipe, whole, or not at all."""

from __future__ import annotations

import logging
import marshal
import os
import signal
import subprocess
import sys
import threading

import msgspec
import pytest

from mpgrad.base import interpreter
from mpgrad.errors import ProtocolError
from mpgrad.wire import captured_state
from mpgrad.wire.captured_state import capture_state
from mpgrad.wire.endpoint import Endpoint
from mpgrad.wire.environment import FIRST_ARGUMENTS, capture_environment
from mpgrad.wire.setup import (
    CoordinatorSetup,
    WorkerSetup,
    decode_setup,
    send_setup,
    spawn,
)

SETUP = WorkerSetup(
    Endpoint("mpgrad-x", b"token"),
    "w0.1",
    1,
    3,
    4,
    5,
    0,
    bytes(300_000),
    6,
)


def test_a_setup_arrives_whole_and_the_pipe_is_closed() -> None:
    """A thread writes, because a pipe holds less than a setup may need."""
    reader, writer = os.pipe()
    threading.Thread(target=send_setup, args=(writer, interpreter.origin(), SETUP)).start()
    with os.fdopen(reader, "rb") as stream:
        _, setup = marshal.loads(stream.read())
    assert decode_setup(setup, WorkerSetup) == SETUP


def test_who_never_reads_does_not_hold_up_the_parent() -> None:
    reader, writer = os.pipe()
    send_setup(writer, interpreter.origin(), SETUP)  # it returns, though nobody has read
    os.close(reader)


def test_a_setup_of_the_other_kind() -> None:
    data = msgspec.msgpack.encode(SETUP)
    with pytest.raises(ProtocolError, match="no usable CoordinatorSetup"):
        decode_setup(data, CoordinatorSetup)


@pytest.mark.slow
@pytest.mark.parametrize("written", [0, 1, 5, 60, -1])
@pytest.mark.parametrize("package", ["mpgrad.coordinator", "mpgrad.workers"])
def test_a_parent_that_died_before_it_had_written_all(
    package: str, written: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """No bug to be reported with a traceback: the child ends without a word."""
    whole = interpreter.start_of(interpreter.origin(), b"setup")
    child, writer = spawn(sys.executable, package, (), {})
    with os.fdopen(writer, "wb") as stream:
        stream.write(whole[:written])
    assert child.wait() == 1
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("package", ["mpgrad.coordinator", "mpgrad.workers"])
def test_ctrl_c_while_a_child_starts_is_not_its_affair(package: str) -> None:
    child, writer = spawn(sys.executable, package, (), {})
    child.send_signal(signal.SIGINT)  # Python is still being loaded
    os.close(writer)
    assert child.wait() == 1  # since it was told nothing; by the signal it would be -SIGINT


SHOW = """
import os, sys
from mpgrad.wire.environment import restore_environment

environment = restore_environment(sys.stdin.buffer.read())
print(sys.path[0])
print(os.getcwd())
print(environment.log_level)
print(sys.argv)
"""


def test_a_child_takes_over_the_client_s_surroundings(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend("/nowhere/in/particular")
    monkeypatch.chdir(str(tmp_path))
    monkeypatch.setattr(logging.getLogger(), "level", logging.ERROR)
    captured = capture_environment(1 << 30)
    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        input=captured,
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stderr == b""
    assert done.stdout.decode().splitlines() == [
        "/nowhere/in/particular",
        os.path.realpath(str(tmp_path)),
        str(logging.ERROR),
        repr(FIRST_ARGUMENTS),
    ]


def test_a_long_command_line_is_sent_only_if_it_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    long = ["program", *["file"] * 5000]
    monkeypatch.setattr(sys, "argv", long)
    assert len(capture_state().data) > 20_000
    monkeypatch.setattr(captured_state, "FIRST_ARGUMENTS", long.copy())
    monkeypatch.setattr(captured_state, "_last", None)
    assert len(capture_state().data) < 20_000
