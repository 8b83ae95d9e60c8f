"""The setup of a child process, sent over a descriptor that it inherits.

Secrets are not put into argv or the environment, where other processes can read them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from mpgrad.base.standard_streams import occupy_standard_streams
from mpgrad.errors import ProtocolError
from mpgrad.wire.endpoint import Endpoint

if TYPE_CHECKING:
    import subprocess


class JournalPlan(NamedTuple):
    """When and where the coordinator writes its journal."""

    #: "errors", "always" or "off", see ``MPGRAD_JOURNAL``.
    mode: str
    directory: str


class CoordinatorSetup(msgspec.Struct, frozen=True):
    """For the coordinator."""

    endpoint: Endpoint
    client_pid: int
    cpu_workers: int
    #: The maximum bytes of live blocks in the engine's arena.
    shm_limit: int
    #: Inherited descriptors of the two arenas.
    client_arena_fd: int
    engine_arena_fd: int
    #: Opaque here; passed to every worker.
    worker_environment: bytes
    blas_threads: int
    #: The client's settings for children: ``sys.executable`` and PYTHONPATH.
    executable: str
    python_path: str
    journal: JournalPlan
    #: The longest time of a NodeTask in seconds.
    task_timeout_s: float | None = None
    #: For each GPU worker the number of its GPU.
    gpus: tuple[int, ...] = ()
    #: Inherited descriptor of the DeviceBoard, or -1 without GPU workers.
    device_board_fd: int = -1
    #: Inherited end of a pipe. The client closes the other end if it is replaced by another
    #: program (``os.execv``), which its pidfd does not show.
    lifeline_fd: int = -1
    #: The processors that each CPU worker is bound to, by slot; empty: none is.
    cpus_of_workers: tuple[tuple[int, ...], ...] = ()


class WorkerSetup(msgspec.Struct, frozen=True):
    """For a worker."""

    endpoint: Endpoint
    peer: str
    coordinator_pid: int
    client_arena_fd: int
    engine_arena_fd: int
    #: The status board, and this worker's row in it.
    board_fd: int
    slot: int
    environment: bytes
    #: Where it writes its Python stack at a fault (SIGSEGV and the like).
    stack_fd: int
    #: Number of its GPU, or -1; then also the number of the memory that it exports, and the
    #: DeviceBoard.
    device: int = -1
    device_arena: int = -1
    device_board_fd: int = -1
    #: The processors that it is bound to; empty: all that the coordinator may use.
    cpus: tuple[int, ...] = ()


T = TypeVar("T", CoordinatorSetup, WorkerSetup)


def python_command(executable: str, module: str) -> list[str]:
    """What runs ``module`` in an interpreter for which ``assert``, ``__debug__`` and texts mean the
    same as in this one."""
    command = [executable, "-P"]
    if sys.flags.optimize:
        command.append("-" + "O" * sys.flags.optimize)
    if sys.flags.utf8_mode:
        command += ["-X", "utf8"]
    return [*command, "-m", module]


def spawn(
    command: list[str], inherited: tuple[int, ...], environment: dict[str, str]
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a child that reads its setup from the descriptor named by its last argument.

    Signals of the process group are blocked in it until its ``begin_child``.

    Returns:
        The child, and the descriptor for ``send_setup``.

    Raises:
        OSError: the system allows no more processes or descriptors; nothing is left open.
    """
    import subprocess  # imported here, since workers start no processes

    reader, writer = os.pipe()
    child: subprocess.Popen[bytes] | None = None
    try:
        with _group_signals_held():
            child = subprocess.Popen(
                [*command, str(reader)],
                pass_fds=(reader, *inherited),
                stdin=subprocess.DEVNULL,
                env=environment,
            )
    except BaseException:
        os.close(writer)
        if child is not None:
            child.kill()
            child.wait()
        raise
    finally:
        os.close(reader)
    return child, writer


#: Signals that terminals, shells and batch systems send to all processes of a group.
_HANDLED_BY_CLIENT = (
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_GROUP_SIGNALS = {signal.SIGINT, *_HANDLED_BY_CLIENT}


@contextlib.contextmanager
def _group_signals_held() -> Iterator[None]:
    """Block these signals while a child is started; this process gets them a moment later.

    They also reach a child in which Python is still loading, where they would kill it and end an
    engine that works.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _GROUP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin_child() -> None:
    """Prepare a child, before anything else.

    It ignores signals of the group, because the client handles them for all processes (if the
    client dies, its children do, too). It also makes sure that the descriptors it opens do not
    become standard streams, which it may lack as the client does.
    """
    occupy_standard_streams()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in _HANDLED_BY_CLIENT:
        # A handler, not SIG_IGN: programs that user code starts would inherit SIG_IGN.
        signal.signal(number, _leave_to_client)
    # If the client ignores SIGCHLD, no exit status of a child would be known here.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _GROUP_SIGNALS)
    os.register_at_fork(after_in_child=_take_signals)


def _take_signals() -> None:
    """A process that user code forks in a worker is ended by signals, as in the client."""
    for number in _HANDLED_BY_CLIENT:
        if signal.getsignal(number) is _leave_to_client:
            signal.signal(number, signal.SIG_DFL)


def _leave_to_client(number: int, frame: FrameType | None) -> None:
    """Do nothing: the client has got the same signal."""


#: The prefix of a setup: its length in bytes.
_LENGTH = struct.Struct("<Q")


def send_setup(descriptor: int, setup: CoordinatorSetup | WorkerSetup) -> None:
    """Write ``setup`` and close the descriptor; the death of a child is noticed elsewhere."""
    with contextlib.suppress(BrokenPipeError), os.fdopen(descriptor, "wb") as stream:
        data = msgspec.msgpack.encode(setup)
        stream.write(_LENGTH.pack(len(data)) + data)


def receive_setup(descriptor: int, kind: type[T]) -> T:
    """Read what the parent wrote, to the end.

    Raises:
        EOFError: the parent died before it had written everything.
        ProtocolError: it wrote something else.
    """
    with os.fdopen(descriptor, "rb") as stream:
        length, data = stream.read(_LENGTH.size), stream.read()
    if len(length) < _LENGTH.size or len(data) < _LENGTH.unpack(length)[0]:
        raise EOFError(f"the parent process died before it had written all of {kind.__name__}")
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"no usable {kind.__name__} from the parent process: {error}") from None
