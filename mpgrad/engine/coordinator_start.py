"""CoordinatorProcess: starts and ends the coordinator, and holds what the client shares with it."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import weakref
from mmap import PAGESIZE
from typing import TYPE_CHECKING

from mpgrad.arrays.cuda.device_board import DeviceBoard
from mpgrad.base import config, interpreter
from mpgrad.base.exits import describe_exit, has_ended, is_stopped
from mpgrad.base.handles import ENGINE_ARENA
from mpgrad.base.hash_seed import hash_seed_for_children
from mpgrad.base.processor_use import ProcessorUse, processor_use
from mpgrad.base.standard_streams import say, write
from mpgrad.base.topology import bindings
from mpgrad.calls.kept_branches import limit_bytes
from mpgrad.calls.preloading import preloaded
from mpgrad.engine.kernel_calls import require_calls
from mpgrad.engine.kernel_limits import (
    FOR_ENGINE,
    require_descriptors,
    require_hard_limit,
    require_processes,
    require_real_threads,
)
from mpgrad.engine.options import EngineOptions
from mpgrad.errors import CoordinatorLost, EngineClosed, MpgradError
from mpgrad.shm.arena import client_arena
from mpgrad.shm.mapped_arena import ForeignArena
from mpgrad.shm.segment import Segment
from mpgrad.wire.endpoint import Endpoint
from mpgrad.wire.environment import capture_environment
from mpgrad.wire.setup import STARTED, CoordinatorSetup, send_setup, spawn

if TYPE_CHECKING:
    from mpgrad.arrays.cuda.client_devices import ClientDevices

#: The address space of the engine's arena; only written pages take memory.
ENGINE_ARENA_BYTES = 1 << 40
#: The seconds that the coordinator has to stop its workers and exit.
STOP_TIMEOUT_S = 2.0
#: What is kept of the last words of a coordinator that does not start.
_SAID_BYTES = 16 * 1024


class CoordinatorProcess:
    """A running coordinator as its client sees it.

    Args:
        options: of the Engine.
    """

    def __init__(self, options: EngineOptions) -> None:
        self._is_killed = False
        self._why_killed: str | None = None
        #: The engine was closed: a thread that still waits for an answer gets an error.
        self.is_closed = False
        #: What it has printed, or what has gone wrong, until it had started.
        self._said = b""
        self.has_started = False
        #: Another one would not start either.
        self._is_hopeless = False
        self._executable = interpreter.python()
        require_real_threads()
        require_descriptors(FOR_ENGINE, "an engine")
        require_hard_limit(options.cpu_workers)
        require_calls()
        template = 1 if options.cpu_workers else 0
        require_processes(1 + template + options.cpu_workers + len(options.gpus))
        with contextlib.ExitStack() as undo:
            self.endpoint = Endpoint.create()
            segment = Segment.create_sparse(ENGINE_ARENA_BYTES, "engine-arena")
            undo.callback(segment.close)
            #: The board with the handles of device memory; None without GPU workers.
            self.device_board = _device_board(options)
            #: This process's access to it.
            self.devices: ClientDevices | None = None
            if self.device_board is not None:
                undo.callback(self.device_board.close)
                self.devices = _client_devices(self.device_board, options.gpus)
                undo.callback(self.devices.close)
            lifeline, self._lifeline = os.pipe()
            undo.callback(os.close, self._lifeline)
            self._hears, said = os.pipe()
            undo.callback(os.close, self._hears)
            os.set_blocking(self._hears, False)
            try:
                self._process = self._spawn(segment, (lifeline, said), options)
            finally:
                os.close(lifeline)
                os.close(said)
            undo.callback(self._process.wait)
            undo.callback(self._process.kill)
            self.pid = self._process.pid
            self.pidfd = os.pidfd_open(self.pid)
            undo.callback(os.close, self.pidfd)
            self.arena = ForeignArena.over(segment, number=ENGINE_ARENA)
            self.arena.has_checksums = options.has_checksums
            #: Who it hears: processes of this user.
            self.user = os.geteuid()
            undo.pop_all()
        _running.add(self)

    def _spawn(
        self, segment: Segment, ends: tuple[int, int], options: EngineOptions
    ) -> subprocess.Popen[bytes]:
        """Start it.

        Args:
            segment: of the engine's arena.
            ends: the child's of the lifeline, and of the pipe to which it prints first.
            options: of the Engine.
        """
        executable, (lifeline, said) = self._executable, ends
        client_fd = client_arena().segment.fd
        client_arena().segment.require_open()
        origin = interpreter.origin()
        streams = os.dup(1), os.dup(2)
        board_fd = self.device_board.fd if self.device_board is not None else -1
        boards = [board_fd] if board_fd >= 0 else []
        try:
            process, writer = spawn(
                executable,
                "mpgrad.coordinator",
                (client_fd, segment.fd, lifeline, *streams, *boards),
                {"PYTHONHASHSEED": hash_seed_for_children()},
                output=said,
            )
        except OSError as error:
            remedy = ""
            why = "`ulimit -u` and the cgroup's pids.max say how many processes there may be"
            if error.errno == errno.ENOMEM:
                why = "the machine or the cgroup has no memory left, or `ulimit -v` forbids it"
            elif error.errno in (errno.EACCES, errno.ENOENT, errno.ENOEXEC, errno.ENOTDIR):
                why = f"user {os.geteuid()} cannot run {executable}"
                remedy = f" It was to be {interpreter.in_words(executable)}"
            elif error.errno in (errno.EPERM, errno.ENOSYS):
                why = "a sandbox or a service's filter of system calls refuses clone or execve"
            raise OSError(
                error.errno,
                f"the coordinator process cannot be started: {error.strerror} ({why}; "
                f'Engine(mode="local") needs none).{remedy}',
            ) from error
        finally:
            for stream in streams:
                os.close(stream)
        send_setup(
            writer,
            origin,
            CoordinatorSetup(
                endpoint=self.endpoint,
                client_pid=os.getpid(),
                cpu_workers=options.cpu_workers,
                gpus=options.gpus,
                device_board_fd=board_fd,
                shm_limit=options.shm_limit,
                client_arena_fd=client_fd,
                engine_arena_fd=segment.fd,
                worker_environment=capture_environment(
                    limit_bytes(max(options.cpu_workers, 1)), has_checksums=options.has_checksums
                ),
                blas_threads=options.blas_threads,
                executable=os.fsencode(executable),
                origin=origin,
                task_timeout_s=options.task_timeout_s,
                lifeline_fd=lifeline,
                cpus_of_workers=tuple(bindings(options.pin, options.cpu_workers)),
                start_timeout_s=config.start_timeout_s(),
                streams=streams,
                preload=preloaded(),
            ),
        )
        return process

    def is_alive(self) -> bool:
        return not self._is_killed and self._process.poll() is None

    def let_go(self) -> None:
        """Close this process's end of the lifeline."""
        lifeline, self._lifeline = self._lifeline, -1
        if lifeline >= 0:
            os.close(lifeline)

    def processor_use(self) -> ProcessorUse:
        """How long it has run, or would have run."""
        return processor_use(self.pid)

    def hear_of_start(self) -> bool:
        """Take what it has said since the last time; whether it has started."""
        while not self.has_started:
            try:
                said = os.read(self._hears, _SAID_BYTES)
            except BlockingIOError:
                break
            self._said = (self._said + said)[-_SAID_BYTES:]
            if not said:
                break
            if STARTED in self._said:
                self.has_started = True
                printed = self._said.replace(STARTED, b"").decode(errors="replace")
                if printed:
                    write(sys.stderr, printed)
        return self.has_started

    def failed_start(self) -> MpgradError:
        """Why it has ended before it had started; call it after its pidfd has reported the end."""
        self.hear_of_start()
        how, said = self.cause_of_death(), self._said.decode(errors="replace").strip()
        last = f": {said.splitlines()[-1]}" if said else ""
        if not self._is_hopeless and (self._why_killed or self._process.returncode < 0):
            return CoordinatorLost(f"{how} while it started{last}. The next backward tries again.")
        what = interpreter.in_words(self._executable)
        error = EngineClosed(f"{how} while it started{last}. It was started as {what}")
        if "\n" in said:
            error.add_note(f"What it has printed:\n{said}")
        return error

    def say(self, text: str) -> None:
        """Tell the user something about it."""
        say(text)

    def is_stopped(self) -> bool:
        """Whether it got SIGSTOP and no SIGCONT since."""
        return is_stopped(self.pid)

    def cause_of_death(self) -> str:
        """How it ended, in words; call it after its pidfd has reported the end."""
        status = self._process.wait()
        how = self._why_killed or describe_exit(status)
        if self._why_killed is None and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            how = "died (this process ignores SIGCHLD, so the kernel does not say how)"
        return f"the coordinator process (pid {self.pid}) {how}"

    def wait(self) -> int:
        """Wait for its end and kill it if that takes too long; return its exit status."""
        if not has_ended(self.pidfd, STOP_TIMEOUT_S):
            self._process.kill()
        status = self._process.wait()
        os.close(self.pidfd)
        os.close(self._hears)
        self.let_go()
        self.arena.close()
        if self.devices is not None:
            self.devices.close()
        if self.device_board is not None:
            self.device_board.close()
        return status

    def discard(self) -> None:
        """End a coordinator that is not needed."""
        self.kill()
        self.wait()

    def give_up(self, why: str) -> None:
        """Kill it, since it does not start, and another one would not.

        Args:
            why: see ``kill``.
        """
        self._is_hopeless = True
        self.kill(why)

    def kill(self, why: str | None = None) -> None:
        """Kill it at once; the kernel kills its workers with it.

        Args:
            why: the text for ``cause_of_death``, if the signal does not tell it.
        """
        self._is_killed = True  # its death may take a moment
        self._why_killed = self._why_killed or why
        self._process.kill()


_running: weakref.WeakSet[CoordinatorProcess] = weakref.WeakSet()


def _let_go_in_child() -> None:
    """A forked child is not the client: that may end, or become another program, before it."""
    for coordinator in list(_running):
        coordinator.let_go()


os.register_at_fork(after_in_child=_let_go_in_child)


def _device_board(options: EngineOptions) -> DeviceBoard | None:
    """A board with as much host memory as the engine may use, divided among its processes.

    Its pages are used only if CUDA IPC does not work. Its parts are numbered by worker slots; those
    of CPU workers are never touched.
    """
    gpus = len(options.gpus)
    if not gpus:
        return None
    share = max(options.shm_limit // (1 + gpus) // PAGESIZE, 1) * PAGESIZE
    return DeviceBoard.create(1 + options.cpu_workers + gpus, share)


def _client_devices(board: DeviceBoard, gpus: tuple[int, ...]) -> ClientDevices:
    from mpgrad.arrays.cuda.client_devices import ClientDevices

    return ClientDevices(board, gpus)
