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

from mpgrad.base import config
from mpgrad.base.exits import describe_exit, is_stopped
from mpgrad.base.handles import ENGINE_ARENA
from mpgrad.base.hash_seed import hash_seed_for_children
from mpgrad.base.topology import bindings
from mpgrad.devices.device_board import DeviceBoard
from mpgrad.engine.kernel_limits import (
    FOR_ENGINE,
    require_descriptors,
    require_hard_limit,
    require_pidfds,
    require_processes,
    require_real_threads,
)
from mpgrad.engine.options import EngineOptions
from mpgrad.shm.arena import client_arena
from mpgrad.shm.mapped_arena import ForeignArena
from mpgrad.shm.segment import Segment
from mpgrad.wire.endpoint import Endpoint
from mpgrad.wire.environment import capture_environment
from mpgrad.wire.setup import CoordinatorSetup, JournalPlan, python_command, send_setup, spawn

if TYPE_CHECKING:
    from mpgrad.devices.client_devices import ClientDevices

#: The address space of the engine's arena; only written pages take memory.
ENGINE_ARENA_BYTES = 1 << 40
#: The seconds that the coordinator has to stop its workers and exit.
STOP_TIMEOUT_S = 2.0


class CoordinatorProcess:
    """A running coordinator as its client sees it.

    Args:
        options: of the Engine.
    """

    def __init__(self, options: EngineOptions) -> None:
        self.journal = JournalPlan(options.journal, config.journal_directory())
        self._is_killed = False
        self._why_killed: str | None = None
        #: The engine was closed: a thread that still waits for an answer gets an error.
        self.is_closed = False
        require_real_threads()
        require_descriptors(FOR_ENGINE, "an engine")
        require_hard_limit(options.cpu_workers)
        require_pidfds()
        require_processes(1 + options.cpu_workers + len(options.gpus))
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
            try:
                self._process = self._spawn(segment, lifeline, options)
            finally:
                os.close(lifeline)
            undo.callback(self._process.wait)
            undo.callback(self._process.kill)
            self.pid = self._process.pid
            self.pidfd = os.pidfd_open(self.pid)
            undo.callback(os.close, self.pidfd)
            self.arena = ForeignArena.over(segment, number=ENGINE_ARENA)
            #: Who it hears: processes of this user.
            self.user = os.geteuid()
            undo.pop_all()
        _running.add(self)

    def _spawn(
        self, segment: Segment, lifeline: int, options: EngineOptions
    ) -> subprocess.Popen[bytes]:
        client_fd = client_arena().segment.fd
        client_arena().segment.require_open()
        python_path = _python_path()
        board_fd = self.device_board.fd if self.device_board is not None else -1
        inherited = (client_fd, segment.fd, lifeline, *([board_fd] if board_fd >= 0 else []))
        try:
            process, writer = spawn(
                python_command(sys.executable, "mpgrad.coordinator"),
                inherited,
                {
                    **os.environ,
                    "PYTHONPATH": python_path,
                    "PYTHONHASHSEED": hash_seed_for_children(),
                },
            )
        except OSError as error:
            why = "`ulimit -u` and the cgroup's pids.max say how many processes there may be"
            if error.errno == errno.ENOMEM:
                why = "the machine or the cgroup has no memory left, or `ulimit -v` forbids it"
            elif error.errno in (errno.EACCES, errno.ENOENT):
                why = f"user {os.geteuid()} cannot run {sys.executable}"
            raise OSError(
                error.errno,
                f"the coordinator process cannot be started: {error.strerror} ({why}; "
                'Engine(mode="local") needs none)',
            ) from error
        send_setup(
            writer,
            CoordinatorSetup(
                endpoint=self.endpoint,
                client_pid=os.getpid(),
                cpu_workers=options.cpu_workers,
                gpus=options.gpus,
                device_board_fd=board_fd,
                shm_limit=options.shm_limit,
                client_arena_fd=client_fd,
                engine_arena_fd=segment.fd,
                worker_environment=capture_environment(),
                blas_threads=options.blas_threads,
                executable=sys.executable,
                python_path=python_path,
                task_timeout_s=options.task_timeout_s,
                journal=self.journal,
                lifeline_fd=lifeline,
                cpus_of_workers=tuple(bindings(options.pin, options.cpu_workers)),
            ),
        )
        return process

    def last_words(self) -> str:
        """The path of its journal in words, if it wrote one."""
        # Imported here, since this module is loaded before the coordinator can start.
        from mpgrad.wire.journal_keeper import words_about

        words = words_about(self.journal, self.pid)
        return f" {words}" if words else ""

    def is_alive(self) -> bool:
        return not self._is_killed and self._process.poll() is None

    def let_go(self) -> None:
        """Close this process's end of the lifeline."""
        lifeline, self._lifeline = self._lifeline, -1
        if lifeline >= 0:
            os.close(lifeline)

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
        try:
            status = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        os.close(self.pidfd)
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


def _python_path() -> str:
    """Lets the children find this mpgrad; they take over ``sys.path`` themselves later."""
    home = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([home, inherited]) if inherited else home


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
    from mpgrad.devices.client_devices import ClientDevices  # not needed on most machines

    return ClientDevices(board, gpus)
