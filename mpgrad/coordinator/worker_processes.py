"""WorkerSpawner: starts worker processes; WorkerChild: one of them, as its parent sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import msgspec

from mpgrad.base.environ import LIBRARY_THREADS
from mpgrad.base.exits import has_ended, is_stopped
from mpgrad.base.processor_use import ProcessorUse, processor_use
from mpgrad.coordinator.reaper import End, Reaper
from mpgrad.coordinator.worker_template import ForkedProcess, WorkerTemplate
from mpgrad.scheduler.graph_spec import ON_CPU
from mpgrad.shm.status_board import StatusBoard
from mpgrad.wire.setup import (
    CoordinatorSetup,
    WorkerSetup,
    send_bare_setup,
    send_setup,
    spawn,
)

#: Added to a worker's out-of-memory score, in thousandths of the machine's memory.
_OOM_SCORE_ADJUSTMENT = 300
_OOM_SCORE_MAX = 1000

#: How a worker ends at a fault: its own, or an abort of C code.
_FAULTS = frozenset(
    -number
    for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
)

#: glibc returns freed arrays to the kernel at once, and the next temporary faults its pages in
#: again. These limits (in bytes; both are needed) make it keep them.
_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
}


#: The bytes of a stack that are kept.
_STACK_BYTES_MAX = 16 * 1024


class WorkerChild:
    """See ``Child``.

    Args:
        process: its process.
        reaper: waits for its end.
        stack_fd: a file to which it writes its Python stack at a fault; closed with the pidfd.
    """

    def __init__(
        self, process: subprocess.Popen[bytes] | ForkedProcess, reaper: Reaper, stack_fd: int
    ) -> None:
        self._process, self._reaper, self._stack_fd = process, reaper, stack_fd
        self.pid, self.pidfd = process.pid, os.pidfd_open(process.pid)

    def kill(self) -> None:
        self._process.kill()

    def is_stopped(self) -> bool:
        return is_stopped(self.pid)

    def processor_use(self) -> ProcessorUse:
        return processor_use(self.pid)

    def has_ended(self, timeout_s: float) -> bool:
        return has_ended(self.pidfd, timeout_s)

    def reap(self) -> End:
        end = self._reaper.reap(self._process)
        os.close(self.pidfd)
        has_left_one = end.status in _FAULTS or end.status > 0
        stack = os.pread(self._stack_fd, _STACK_BYTES_MAX, 0) if has_left_one else b""
        os.close(self._stack_fd)
        return end._replace(stack=stack.decode(errors="replace").strip())


class WorkerSpawner:
    """See ``Spawner``.

    Args:
        setup: of the coordinator.
        board: passed to every worker.
    """

    def __init__(self, setup: CoordinatorSetup, board: StatusBoard) -> None:
        self._setup, self._board = setup, board
        self._reaper = Reaper()
        self._template: WorkerTemplate | None = None

    def prepare(self) -> None:
        """Start the template of the CPU workers, if they may be forked from one: threads of BLAS
        survive no fork."""
        if self._setup.cpu_workers and self._setup.blas_threads == 1:
            with contextlib.suppress(OSError):  # the start of a worker will say so
                self._template = self._make_template()

    def start(self, peer: str, slot: int, device: int, arena: int) -> WorkerChild:
        with contextlib.ExitStack() as undo:
            stack_fd = os.memfd_create("mpgrad-stack")
            undo.callback(os.close, stack_fd)
            setup = self._setup_of(peer, slot, device, arena, stack_fd)
            forked = self._forked(stack_fd, device)
            process, writer = forked or self._spawned((*self._inherited(device), stack_fd))
            undo.callback(process.wait)
            undo.callback(process.kill)
            undo.callback(os.close, writer)
            child = WorkerChild(process, self._reaper, stack_fd)
            undo.pop_all()
        _die_before_the_client(process.pid)
        if forked:
            send_bare_setup(writer, setup)
        else:
            send_setup(writer, self._setup.origin, setup)
        return child

    def close(self) -> None:
        """End what helps to start workers; they themselves have ended."""
        if self._template is not None:
            self._template.close()

    def _make_template(self) -> WorkerTemplate:
        setup = msgspec.structs.replace(
            self._setup_of("template", 0, ON_CPU, -1, -1), cpus=(), preload=self._setup.preload
        )
        inherited = self._inherited(ON_CPU)
        return WorkerTemplate(
            self._setup.origin,
            lambda own: self._spawned((*inherited, *own)),
            setup,
            self._setup.start_timeout_s,
        )

    def _forked(self, stack_fd: int, device: int) -> tuple[ForkedProcess, int] | None:
        """A worker that the template has forked, and where to write its setup; None: it has not."""
        if self._template is None or device != ON_CPU:
            return None
        reader, writer = os.pipe()
        process = self._template.fork(reader, stack_fd)
        os.close(reader)
        if process is None:
            os.close(writer)
            return None
        return process, writer

    def _spawned(self, inherited: tuple[int, ...]) -> tuple[subprocess.Popen[bytes], int]:
        executable = os.fsdecode(self._setup.executable)
        return spawn(executable, "mpgrad.workers", inherited, self._variables())

    def _inherited(self, device: int) -> tuple[int, ...]:
        setup = self._setup
        shared = (setup.client_arena_fd, setup.engine_arena_fd, self._board.fd)
        return shared if device == ON_CPU else (*shared, setup.device_board_fd)

    def _setup_of(
        self, peer: str, slot: int, device: int, arena: int, stack_fd: int
    ) -> WorkerSetup:
        setup = self._setup
        return WorkerSetup(
            endpoint=setup.endpoint,
            peer=peer,
            coordinator_pid=os.getpid(),
            client_arena_fd=setup.client_arena_fd,
            engine_arena_fd=setup.engine_arena_fd,
            board_fd=self._board.fd,
            slot=slot,
            environment=setup.worker_environment,
            stack_fd=stack_fd,
            device=device,
            device_arena=arena,
            device_board_fd=setup.device_board_fd,
            cpus=setup.cpus_of_workers[slot] if slot < len(setup.cpus_of_workers) else (),
        )

    def _variables(self) -> dict[str, str]:
        """Variables that BLAS and the allocator read when they are loaded."""
        malloc = {name: os.environ.get(name, value) for name, value in _MALLOC.items()}
        return {**malloc, **dict.fromkeys(LIBRARY_THREADS, str(self._setup.blas_threads))}


def _die_before_the_client(pid: int) -> None:
    """Make the kernel prefer worker ``pid`` to the client and the coordinator if memory runs out.

    A second kill often follows the first, because the memory of the killed process is not free yet
    when another one asks for a page. The engine replaces workers; it cannot replace the client.
    """
    with contextlib.suppress(OSError):  # it has died already, or the kernel refuses
        own = int(Path("/proc/self/oom_score_adj").read_text())
        adjusted = min(own + _OOM_SCORE_ADJUSTMENT, _OOM_SCORE_MAX)
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(adjusted))
