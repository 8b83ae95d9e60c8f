"""The engines that run on this machine, found in /proc: their processes, and what these do.

Only engines of the own user can be looked at: the board is read through the coordinator's
descriptor, which the kernel shows to nobody else.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mpgrad.scheduler.graph_spec import ON_CPU
from mpgrad.shm.hosts_board import HostFigures, hosts_of_client
from mpgrad.shm.status_board import (
    BoardFigures,
    QueueFigures,
    board_of,
    figures_in,
    queues_in,
    workers_in,
)

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class ProcessUse(NamedTuple):
    """What a process has used so far."""

    pid: int
    cpu_seconds: float
    resident_bytes: int


class WorkerUse(NamedTuple):
    """A worker, its GPU (-1: none), the tasks that it holds, which one it runs (graph, task,
    attempt; None: nothing), and its branches: their number and their bytes."""

    process: ProcessUse
    device: int
    held: int
    running: tuple[int, int, int] | None
    branches: tuple[int, int] = (0, 0)


class GpuUse(NamedTuple):
    """What all programs together use of a GPU, as ``nvidia-smi`` says: a share of its time, and
    bytes."""

    number: int
    busy: float
    used_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class EngineUse:
    """One engine.

    Attributes:
        client, coordinator: its processes.
        program: the client's command line.
        workers: by slot.
        figures: what the coordinator has to do.
        queues: the tasks that wait, by device and lane.
    """

    client: ProcessUse
    program: str
    coordinator: ProcessUse
    workers: tuple[WorkerUse, ...]
    figures: BoardFigures
    queues: tuple[QueueFigures, ...]


class ClusterUse(NamedTuple):
    """A client with hosts of a cluster, its command line, and the hosts."""

    client: ProcessUse
    program: str
    hosts: list[HostFigures]


def used_clusters() -> list[ClusterUse]:
    """Those of all clients of this user."""
    found = []
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (hosts := hosts_of_client(int(entry.name))):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                program = " ".join(_command(entry.name))
                found.append(ClusterUse(_use(int(entry.name)), program, hosts))
    return sorted(found, key=lambda one: one.client.pid)


def running_engines() -> list[EngineUse]:
    """All engines of this user, by the number of the client."""
    found = []
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and "mpgrad.coordinator" in _command(entry.name):
            with contextlib.suppress(OSError, ValueError, LookupError):  # it has ended meanwhile
                found.append(_engine(int(entry.name)))
    return sorted(found, key=lambda engine: engine.client.pid)


def _engine(coordinator: int) -> EngineUse:
    board = board_of(coordinator)
    figures = figures_in(board)
    client = int(_stat(coordinator)[1])
    workers = tuple(
        WorkerUse(_use(worker.pid), worker.device, worker.held, running, branches)
        for worker, running, branches in workers_in(board)
        if _lives(worker.pid)
    )
    program, queues = " ".join(_command(client)), tuple(queues_in(board))
    return EngineUse(_use(client), program, _use(coordinator), workers, figures, queues)


#: What nvidia-smi is asked for.
_OF_GPUS = "index,utilization.gpu,memory.used,memory.total"


def gpus_in_use(engines: Sequence[EngineUse]) -> list[GpuUse]:
    """The GPUs that workers of these engines have; none without ``nvidia-smi``."""
    ours = {worker.device for engine in engines for worker in engine.workers} - {ON_CPU}
    command = shutil.which("nvidia-smi") if ours else None
    if command is None:
        return []
    done = subprocess.run(
        [command, f"--query-gpu={_OF_GPUS}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = []
    for line in done.stdout.splitlines():
        with contextlib.suppress(ValueError):  # a figure that this GPU does not have
            number, busy, used, total = map(int, line.split(","))
            if number in ours:
                found.append(GpuUse(number, busy / 100, used << 20, total << 20))
    return found


def _lives(pid: int) -> bool:
    return (_PROC / str(pid)).exists()


def _command(pid: int | str) -> list[str]:
    with contextlib.suppress(OSError):
        return (_PROC / str(pid) / "cmdline").read_text(errors="replace").rstrip("\0").split("\0")
    return []


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name, which may hold spaces."""
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _use(pid: int) -> ProcessUse:
    fields = _stat(pid)
    ticks = int(fields[11]) + int(fields[12])
    return ProcessUse(pid, ticks / _TICKS, int(fields[21]) * _PAGE)
