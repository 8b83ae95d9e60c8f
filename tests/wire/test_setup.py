"""What children are told: over a pipe, whole, or not at all."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading

import pytest

from mpgrad.errors import ProtocolError
from mpgrad.wire.endpoint import Endpoint
from mpgrad.wire.environment import capture_environment
from mpgrad.wire.setup import (
    CoordinatorSetup,
    WorkerSetup,
    receive_setup,
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


def through_a_pipe(setup: WorkerSetup | CoordinatorSetup) -> int:
    """The reading end; a thread writes, because a pipe holds less than a setup may need."""
    reader, writer = os.pipe()
    threading.Thread(target=send_setup, args=(writer, setup)).start()
    return reader


def test_a_setup_arrives_whole_and_the_pipe_is_closed() -> None:
    reader = through_a_pipe(SETUP)
    assert receive_setup(reader, WorkerSetup) == SETUP
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reader)


def test_a_setup_of_the_other_kind() -> None:
    with pytest.raises(ProtocolError, match="no usable CoordinatorSetup"):
        receive_setup(through_a_pipe(SETUP), CoordinatorSetup)


@pytest.mark.parametrize("written", [0, 5, 8, 30, -1])
def test_a_parent_that_died_before_it_had_written_all(written: int) -> None:
    """No bug to be reported with a traceback: the child ends without a word."""
    with os.fdopen(through_a_pipe(SETUP), "rb") as stream:
        whole = stream.read()
    reader, writer = os.pipe()
    threading.Thread(target=_write, args=(writer, whole[:written])).start()
    with pytest.raises(EOFError, match="the parent process died"):
        receive_setup(reader, WorkerSetup)


def _write(descriptor: int, data: bytes) -> None:
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["mpgrad.coordinator", "mpgrad.workers"])
def test_a_child_whose_parent_died_at_once_says_nothing(module: str) -> None:
    reader, writer = os.pipe()
    command = [sys.executable, "-P", "-m", module, str(reader)]
    child = subprocess.Popen(command, pass_fds=[reader], stderr=subprocess.PIPE)
    os.close(reader)
    os.close(writer)
    assert child.communicate()[1] == b""


@pytest.mark.slow
@pytest.mark.parametrize("module", ["mpgrad.coordinator", "mpgrad.workers"])
def test_ctrl_c_while_a_child_starts_is_not_its_affair(module: str) -> None:
    child, writer = spawn([sys.executable, "-P", "-m", module], (), dict(os.environ))
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
"""


def test_a_child_takes_over_the_client_s_surroundings(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend("/nowhere/in/particular")
    monkeypatch.chdir(str(tmp_path))
    monkeypatch.setattr(logging.getLogger(), "level", logging.ERROR)
    captured = capture_environment()
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
    ]
