"""The start of a child process, and its setup, sent over a descriptor that it inherits.

Secrets are not put into argv or the environment, where other processes can read them.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

import msgspec

from mpgrad.base import interpreter
from mpgrad.base.standard_streams import occupy_standard_streams
from mpgrad.errors import ProtocolError
from mpgrad.wire.endpoint import Endpoint

if TYPE_CHECKING:
    import subprocess


#: By this the client knows that the coordinator has started.
STARTED = b"\0"


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
    #: What runs workers, as the system has its path; and whose like they are (``interpreter``).
    executable: bytes
    origin: bytes
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
    #: Seconds for which a worker that starts may do nothing.
    start_timeout_s: float = math.inf
    #: Inherited: the client's stdout and stderr. What the coordinator prints before it has taken
    #: these is for the client, which is told of its start in the same way.
    streams: tuple[int, ...] = ()
    #: Modules of others that CPU workers have loaded when they start.
    preload: tuple[str, ...] = ()


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
    #: For a template of workers (``wire.template_messages``): its end of the connection, and the
    #: modules that it loads.
    template_fd: int = -1
    preload: tuple[str, ...] = ()


T = TypeVar("T", CoordinatorSetup, WorkerSetup)


def spawn(
    executable: str,
    package: str,
    inherited: tuple[int, ...],
    variables: Mapping[str, str],
    output: int | None = None,
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a child that is a Python like this process.

    Signals of the process group are blocked in it until its ``begin_child``.

    Args:
        executable: see ``interpreter.python``.
        package: of mpgrad, see ``interpreter.command``.
        inherited: descriptors.
        variables: go into its environment.
        output: a descriptor that it gets as stdout and stderr; None: those of this process.

    Returns:
        The child, and the descriptor for ``send_setup``.

    Raises:
        OSError: the system allows no more processes or descriptors; nothing is left open.
    """
    import subprocess  # imported here, since workers start no processes

    reader, writer = os.pipe()
    child: subprocess.Popen[bytes] | None = None
    try:
        with group_signals_held():
            child = subprocess.Popen(
                interpreter.command(executable, package, reader),
                pass_fds=(reader, *inherited),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**interpreter.environment(), **variables},
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
def group_signals_held() -> Iterator[None]:
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


#: What a pipe holds at first, and at most without privileges.
_PIPE_BYTES, _PIPE_BYTES_MAX = 1 << 16, 1 << 20


def send_setup(descriptor: int, origin: bytes, setup: CoordinatorSetup | WorkerSetup) -> None:
    """Write a child's start and close the descriptor; the death of a child is noticed elsewhere.

    Args:
        descriptor: of ``spawn``.
        origin: whose like the child is, see ``interpreter.origin``.
        setup: for its ``main``.
    """
    send_start(descriptor, origin, msgspec.msgpack.encode(setup))


def send_bare_setup(descriptor: int, setup: WorkerSetup) -> None:
    """Write the setup of a worker that a template has forked, and close the descriptor."""
    with contextlib.suppress(BrokenPipeError), os.fdopen(descriptor, "wb") as stream:
        stream.write(msgspec.msgpack.encode(setup))


def send_start(descriptor: int, origin: bytes, setup: bytes) -> None:
    """Write what a child reads first, and close the descriptor."""
    data = interpreter.start_of(origin, setup)
    with contextlib.suppress(BrokenPipeError), os.fdopen(descriptor, "wb") as stream:
        if len(data) > _PIPE_BYTES:
            # Whoever never reads must not hold this process up.
            with contextlib.suppress(OSError):
                fcntl.fcntl(stream, fcntl.F_SETPIPE_SZ, min(len(data), _PIPE_BYTES_MAX))
        stream.write(data)


def decode_setup(data: bytes, kind: type[T]) -> T:
    """What the parent wrote for ``main``.

    Raises:
        ProtocolError: it wrote something else.
    """
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"no usable {kind.__name__} from the parent process: {error}") from None


@contextlib.contextmanager
def start_reported(descriptor: int) -> Iterator[None]:
    """Leave the traceback of an exception to the parent, and end this process.

    The parent knows who wants to see it, and where: `auto` goes on without workers.
    """
    try:
        yield
    except Exception:
        import traceback  # imported here: only errors need it

        text = traceback.format_exc().encode("utf-8", "backslashreplace")
        with contextlib.suppress(OSError):
            os.write(descriptor, text)
        sys.exit(1)
