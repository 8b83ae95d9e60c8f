"""Supervisor: starts worker processes, sees them die, and knows what each of them is called.

It decides nothing about tasks; a death becomes a WorkerLost event for the core. The core's words
are imported where they are needed: the first workers are started before anything else is loaded.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mpgrad.coordinator.reaper import Reaper
from mpgrad.exits import is_stopped
from mpgrad.shm.status_board import StatusBoard
from mpgrad.wire.setup import CoordinatorSetup, WorkerSetup, send_setup, spawn

if TYPE_CHECKING:
    from mpgrad.coordinator.watchdog import Sight
from mpgrad.handles import WORKER_DEVICE_ARENA
from mpgrad.scheduler.events import WorkerLost, WorkerUnavailable
from mpgrad.scheduler.graph_spec import ON_CPU

#: Workers that may die in a row before one is ready, by their own fault: the next ones would, too.
FAILED_STARTS_MAX = 3
#: The same by SIGKILL, which comes from outside and says nothing about the next one: in one slot,
#: because one incident may strike all that are starting. A start takes a third of a second.
KILLED_STARTS_MAX = 50
#: Seconds that all workers together get to leave by themselves when the engine closes.
GRACE_S = 0.2
#: To the kernel a worker holds more memory than it does, by these thousandths of all there is.
_OOM_SCORE_ADJUSTMENT = 300
_OOM_SCORE_MAX = 1000

_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")

#: glibc gives freed arrays back to the kernel at once, and the next temporary faults its pages in
#: again: 3,800 page faults per backward of 32 layers 512 wide, 85 with these (bytes; both needed).
_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
}


class WorkerProcess(NamedTuple):
    """One incarnation of a worker slot."""

    peer: str
    slot: int
    process: subprocess.Popen[bytes]
    pidfd: int
    #: Number of the GPU of a GPU worker, and of the memory that it exports; else -1.
    device: int
    arena: int


class Supervisor:
    """The parent of the workers."""

    def __init__(self, setup: CoordinatorSetup) -> None:
        self._setup = setup
        self.board = StatusBoard.create()
        self._by_pidfd: dict[int, WorkerProcess] = {}
        self._by_peer: dict[str, WorkerProcess] = {}
        self._incarnations: dict[int, int] = {}
        #: Each process that exports device memory does so under a number of its own.
        self._arenas = 0
        self._joined: set[str] = set()
        self._reaper = Reaper()
        self._failed_starts = 0
        self._killed_starts: Counter[int] = Counter()
        self.restarts = 0

    def start(self, slot: int) -> WorkerProcess:
        """Start the next incarnation of ``slot``; its pidfd becomes readable when it dies."""
        incarnation = self._incarnations.get(slot, 0) + 1
        self._incarnations[slot] = incarnation
        self.restarts += incarnation > 1
        self.board.clear(slot)
        setup = self._setup
        process, writer = spawn(
            [setup.executable, "-P", "-m", "mpgrad.workers"],
            self._inherited(slot),
            self._environment(),
        )
        try:
            pidfd = os.pidfd_open(process.pid)
        except OSError:
            os.close(writer)
            process.kill()
            process.wait()
            raise
        _die_before_the_client(process.pid)
        device, arena = self._gpu_of(slot), -1
        if device != ON_CPU:
            arena = WORKER_DEVICE_ARENA + self._arenas
            self._arenas += 1
        worker = WorkerProcess(f"w{slot}.{incarnation}", slot, process, pidfd, device, arena)
        self._by_pidfd[worker.pidfd] = self._by_peer[worker.peer] = worker
        self._send_setup(writer, worker)
        return worker

    @property
    def slots(self) -> int:
        """How many workers there are to be: those of the CPU, and behind them those of GPUs."""
        return self._setup.cpu_workers + len(self._setup.gpus)

    def device_of(self, peer: str) -> tuple[int, int]:
        """A worker's GPU and the number of its memory there, or (ON_CPU, -1)."""
        worker = self._by_peer[peer]
        return worker.device, worker.arena

    def _inherited(self, slot: int) -> tuple[int, ...]:
        setup = self._setup
        shared = (setup.client_arena_fd, setup.engine_arena_fd, self.board.fd)
        return shared if self._gpu_of(slot) == ON_CPU else (*shared, setup.device_board_fd)

    def _gpu_of(self, slot: int) -> int:
        at = slot - self._setup.cpu_workers
        return self._setup.gpus[at] if 0 <= at < len(self._setup.gpus) else ON_CPU

    def _send_setup(self, writer: int, worker: WorkerProcess) -> None:
        setup = self._setup
        send_setup(
            writer,
            WorkerSetup(
                endpoint=setup.endpoint,
                peer=worker.peer,
                coordinator_pid=os.getpid(),
                client_arena_fd=setup.client_arena_fd,
                engine_arena_fd=setup.engine_arena_fd,
                board_fd=self.board.fd,
                slot=worker.slot,
                environment=setup.worker_environment,
                device=worker.device,
                device_arena=worker.arena,
                device_board_fd=setup.device_board_fd,
            ),
        )

    def _environment(self) -> dict[str, str]:
        """What BLAS and the allocator read when they are loaded, so it has to stand here."""
        threads = str(self._setup.blas_threads)
        return {
            **_MALLOC,
            **os.environ,
            **dict.fromkeys(_BLAS_THREADS, threads),
            "PYTHONPATH": self._setup.python_path,
        }

    def joined(self, peer: str) -> None:
        """``peer`` is ready for tasks."""
        self._joined.add(peer)
        self._failed_starts = 0
        self._killed_starts.clear()

    @property
    def ready_count(self) -> int:
        return sum(worker.peer in self._joined for worker in self._by_pidfd.values())

    def pids(self) -> tuple[int, ...]:
        workers = sorted(self._by_pidfd.values(), key=lambda worker: worker.slot)
        return tuple(worker.process.pid for worker in workers)

    def is_current(self, peer: str) -> bool:
        """Whether ``peer`` names a living incarnation."""
        return peer in self._by_peer

    def fence(self, peer: str) -> None:
        """Kill a worker that broke the protocol or hangs; its death is reported as any other."""
        worker = self._by_peer.get(peer)
        if worker is not None:
            worker.process.kill()

    def sight(self, peer: str) -> Sight:
        """What worker ``peer`` is doing right now."""
        from mpgrad.coordinator.watchdog import Sight

        worker = self._by_peer[peer]
        running = self.board.read(worker.slot)
        return Sight(peer, _name(worker), running, is_stopped(worker.process.pid))

    def reap(self, pidfd: int) -> WorkerLost | WorkerUnavailable | int:
        """A worker has died: the event for the core, or the slot to start again.

        A worker that was never ready is nobody's loss: its slot is started again a few times.
        """
        worker = self._by_pidfd.pop(pidfd)
        del self._by_peer[worker.peer]
        os.close(pidfd)
        end = self._reaper.reap(worker.process)
        is_killed, cause = end.is_killed, f"{_name(worker)} {end.words}"
        if worker.peer in self._joined:
            self._joined.discard(worker.peer)
            running = self.board.read(worker.slot)
            return WorkerLost(worker.peer, cause, is_killed, running)
        self._failed_starts += not is_killed
        self._killed_starts[worker.slot] += is_killed
        killed = self._killed_starts[worker.slot]
        if self._failed_starts >= FAILED_STARTS_MAX or killed >= KILLED_STARTS_MAX:
            return WorkerUnavailable(f"workers die before they are ready; the last one: {cause}")
        return worker.slot

    def stop_all(self) -> None:
        """Wait a moment for the workers to leave, then kill and reap them."""
        deadline = time.monotonic() + GRACE_S
        for worker in self._by_pidfd.values():
            try:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
        for worker in self._by_pidfd.values():
            worker.process.wait()


def _die_before_the_client(pid: int) -> None:
    """Have the kernel end worker ``pid`` before the client or the coordinator, if memory runs out.

    A second kill often follows the first: what the killed process held is not free yet when the
    next one asks for a page. The engine replaces workers; the client nobody replaces.
    """
    with contextlib.suppress(OSError):  # a process that has died already, or a kernel that refuses
        own = int(Path("/proc/self/oom_score_adj").read_text())
        adjusted = min(own + _OOM_SCORE_ADJUSTMENT, _OOM_SCORE_MAX)
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(adjusted))


def _name(worker: WorkerProcess) -> str:
    return f"worker {worker.peer} (pid {worker.process.pid})"
