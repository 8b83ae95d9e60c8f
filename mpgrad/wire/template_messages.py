"""The template of workers: a process that has loaded what they need, and forks them.

    coordinator  --- one message for each worker: descriptors --->  template
                 <-- the worker's pid -----------------------------

The worker is a child of the coordinator: the template forks a process that forks the worker and
ends at once, so that the worker gets the next parent that wants orphans (see ``adopting_orphans``).
The coordinator then writes the worker's setup into a pipe, as it does for one that it has started
itself; a worker whose coordinator knows nothing of it reads the end of that pipe, and ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections.abc import Iterator

from mpgrad.errors import ProtocolError

#: What the template says when it is ready to fork.
READY = b"ready"
_PID_BYTES = 4
_PR_SET_CHILD_SUBREAPER = 36


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """Let this process be the parent of descendants whose own parent ends meanwhile."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this process cannot adopt workers")
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def ask_for_worker(connection: socket.socket, reader: int, stack: int) -> int:
    """Let the template fork a worker that reads its setup from ``reader``; its pid.

    Raises:
        OSError: the template has ended, or cannot fork.
    """
    with adopting_orphans():
        socket.send_fds(connection, [READY], [reader, stack])
        answer = connection.recv(_PID_BYTES)
    pid = int.from_bytes(answer, "little")
    if len(answer) != _PID_BYTES or not pid:
        raise OSError("the template of workers has ended, or could not fork")
    return pid


def next_request(connection: socket.socket) -> tuple[int, int] | None:
    """The descriptors for the next worker; None: nobody will ask again.

    Raises:
        ProtocolError: something else came.
    """
    try:
        data, descriptors, _, _ = socket.recv_fds(connection, len(READY), 2)
    except ConnectionResetError:  # the coordinator has died before it had read all
        return None
    if not data:
        return None
    if len(descriptors) != 2:
        raise ProtocolError(f"a template of workers got {len(descriptors)} descriptors")
    reader, stack = descriptors
    return reader, stack


def answer(connection: socket.socket, pid: int) -> None:
    """Tell the coordinator the worker's pid; 0: there is none."""
    connection.send(pid.to_bytes(_PID_BYTES, "little"))


def read_to_end(descriptor: int) -> bytes:
    """All that comes through a pipe, which is closed then."""
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read()
