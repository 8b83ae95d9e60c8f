"""Supervisor: starts workers, notices their deaths, and knows their names.

It decides nothing about tasks: a death becomes a WorkerDied event for the core. The spawner knows
how a process is started. The watchdog is imported where it is used, because the first workers start
before anything else is loaded.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mpgrad.base.handles import WORKER_DEVICE_ARENA
from mpgrad.scheduler.events import WorkerDied, WorkerUnavailable
from mpgrad.scheduler.graph_spec import ON_CPU
from mpgrad.shm.status_board import BoardFigures, QueueFigures, StatusBoard, WorkerFigures

if TYPE_CHECKING:
    from mpgrad.base.processor_use import ProcessorUse
    from mpgrad.coordinator.reaper import End
    from mpgrad.coordinator.worker_watchdog import Sight

#: The number of workers in a row that may die by their own fault before one is ready.
FAILED_STARTS_MAX = 3
#: The number of workers in a row in one slot that may die by SIGKILL before one is ready. SIGKILL
#: comes from outside and says nothing about the next worker; one incident may kill all that are
#: starting, hence the count per slot.
KILLED_STARTS_MAX = 50
#: Seconds that all workers together have to exit when the engine closes.
GRACE_S = 0.2


class Child(Protocol):
    """A child process as its parent sees it."""

    @property
    def pid(self) -> int: ...

    @property
    def pidfd(self) -> int:
        """A descriptor that becomes readable when it dies."""
        ...

    def kill(self) -> None: ...

    def is_stopped(self) -> bool:
        """Whether it got SIGSTOP and no SIGCONT since."""
        ...

    def processor_use(self) -> ProcessorUse:
        """How long it has run, or would have run, so far."""
        ...

    def has_ended(self, timeout_s: float) -> bool:
        """Whether it ends within ``timeout_s`` seconds."""
        ...

    def reap(self) -> End:
        """Wait for its end, and close its pidfd."""
        ...


class Spawner(Protocol):
    """Starts worker processes."""

    def start(self, peer: str, slot: int, device: int, arena: int) -> Child:
        """Start a worker process.

        Args:
            peer: its name.
            slot: its row of the status board.
            device: the number of its GPU, or ON_CPU.
            arena: the number of the memory that it exports, or -1.

        Raises:
            OSError: the system allows no more processes; nothing is left open.
        """
        ...


class WorkerProcess(NamedTuple):
    """One incarnation of a worker slot."""

    peer: str
    slot: int
    child: Child
    #: The number of its GPU and of the memory that it exports, for a GPU worker; else -1.
    device: int
    arena: int


class Supervisor:
    """The parent of the workers.

    Args:
        cpu_workers: the number of CPU slots.
        gpus: the GPU of each further slot.
        board: where each worker reports what it runs.
        spawner: starts processes.
        clock: the time in seconds.
    """

    def __init__(
        self,
        cpu_workers: int,
        gpus: tuple[int, ...],
        board: StatusBoard,
        spawner: Spawner,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cpu_workers, self._gpus = cpu_workers, gpus
        self._board, self._spawner, self._clock = board, spawner, clock
        self._by_pidfd: dict[int, WorkerProcess] = {}
        self._by_peer: dict[str, WorkerProcess] = {}
        self._incarnations: dict[int, int] = {}
        #: The number of the next arena: each process that exports device memory has its own.
        self._arenas = 0
        self._joined: set[str] = set()
        self._failed_starts = 0
        self._killed_starts: Counter[int] = Counter()
        #: Why no worker will start, once that is known.
        self._hopeless: str | None = None
        self.restarts = 0

    def start(self, slot: int) -> WorkerProcess:
        """Start the next incarnation of ``slot``; its pidfd becomes readable when it dies."""
        incarnation = self._incarnations.get(slot, 0) + 1
        self._incarnations[slot] = incarnation
        self.restarts += incarnation > 1
        self._board.clear(slot)
        self._board.note_branches(slot, 0, 0)
        peer, device, arena = f"w{slot}.{incarnation}", self._gpu_of(slot), -1
        if device != ON_CPU:
            arena = WORKER_DEVICE_ARENA + self._arenas
            self._arenas += 1
        child = self._spawner.start(peer, slot, device, arena)
        worker = WorkerProcess(peer, slot, child, device, arena)
        self._by_pidfd[child.pidfd] = self._by_peer[peer] = worker
        return worker

    @property
    def slots(self) -> int:
        """The number of workers: CPU workers first, then GPU workers."""
        return self._cpu_workers + len(self._gpus)

    def device_of(self, peer: str) -> tuple[int, int]:
        """A worker's GPU and the number of its memory there, or (ON_CPU, -1)."""
        worker = self._by_peer[peer]
        return worker.device, worker.arena

    def _gpu_of(self, slot: int) -> int:
        at = slot - self._cpu_workers
        return self._gpus[at] if 0 <= at < len(self._gpus) else ON_CPU

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
        return tuple(worker.child.pid for worker in workers)

    def branches(self) -> tuple[int, int]:
        """The number and the bytes of the branches in all workers."""
        held = [self._board.branches(worker.slot) for worker in self._by_pidfd.values()]
        return sum(count for count, _ in held), sum(nbytes for _, nbytes in held)

    def report(
        self, figures: BoardFigures, queues: Sequence[QueueFigures], held: Mapping[str, int]
    ) -> None:
        """Write on the board what there is to do; ``mpgrad top`` reads it.

        Args:
            figures, queues: of the core.
            held: by worker, the number of its tasks.
        """
        workers = [WorkerFigures(0, ON_CPU, 0)] * self.slots
        for worker in self._by_pidfd.values():
            row = WorkerFigures(worker.child.pid, worker.device, held.get(worker.peer, 0))
            workers[worker.slot] = row
        self._board.report(figures, queues, workers)

    def is_current(self, peer: str) -> bool:
        """Whether ``peer`` names a living incarnation."""
        return peer in self._by_peer

    def fence(self, peer: str) -> None:
        """Kill a worker that broke the protocol or hangs; its death is reported like any other."""
        worker = self._by_peer.get(peer)
        if worker is not None:
            worker.child.kill()

    def starting(self) -> list[WorkerProcess]:
        """The workers that are not ready yet."""
        return [one for one in self._by_pidfd.values() if one.peer not in self._joined]

    def give_up(self, peer: str, how: str) -> None:
        """Kill a worker that does not start; its death is reported as the end of all starts.

        Args:
            peer: the worker.
            how: how it ended.
        """
        self._hopeless = f"{_name(self._by_peer[peer])} {how} before it was ready"
        self.fence(peer)

    def sight(self, peer: str) -> Sight:
        """What worker ``peer`` is doing right now."""
        from mpgrad.coordinator.worker_watchdog import Sight

        worker = self._by_peer[peer]
        running = self._board.read(worker.slot)
        return Sight(peer, _name(worker), running, worker.child.is_stopped())

    def reap(self, pidfd: int) -> WorkerDied | WorkerUnavailable | int:
        """Reap a dead worker; return the event for the core, or the slot to start again.

        A worker that dies before it is ready has no tasks to recover: start its slot again, at most
        ``FAILED_STARTS_MAX`` times (``KILLED_STARTS_MAX`` times after SIGKILL).
        """
        worker = self._by_pidfd.pop(pidfd)
        del self._by_peer[worker.peer]
        end = worker.child.reap()
        is_killed, cause = end.is_killed, f"{_name(worker)} {end.words}"
        if worker.peer in self._joined:
            self._joined.discard(worker.peer)
            running = self._board.read(worker.slot)
            return WorkerDied(worker.peer, cause, is_killed, running, end.stack)
        if self._hopeless is not None:
            return WorkerUnavailable(self._hopeless)
        self._failed_starts += not is_killed
        self._killed_starts[worker.slot] += is_killed
        killed = self._killed_starts[worker.slot]
        if self._failed_starts >= FAILED_STARTS_MAX or killed >= KILLED_STARTS_MAX:
            why = f": {end.stack.splitlines()[-1]}\n{end.stack}" if end.stack else ""
            text = f"workers die before they are ready; the last one: {cause}{why}"
            return WorkerUnavailable(text)
        return worker.slot

    def stop_all(self) -> None:
        """Give the workers ``GRACE_S`` to exit, then kill and reap them."""
        deadline = self._clock() + GRACE_S
        for worker in self._by_pidfd.values():
            if not worker.child.has_ended(max(0.0, deadline - self._clock())):
                worker.child.kill()
        for worker in self._by_pidfd.values():
            worker.child.reap()
        self._by_pidfd.clear()
        self._by_peer.clear()


def _name(worker: WorkerProcess) -> str:
    return f"worker {worker.peer} (pid {worker.child.pid})"
