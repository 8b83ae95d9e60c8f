"""The engines that run on this machine, found in /proc: their processes, and what these do.

Only engines of the own user can be looked at: the board is read through the coordinator's
descriptor, which the kernel shows to nobody else.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mpgrad.shm.status_board import BoardFigures, board_of, figures_in, workers_in

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class ProcessUse(NamedTuple):
    """What a process has used so far."""

    pid: int
    cpu_seconds: float
    resident_bytes: int


class WorkerUse(NamedTuple):
    """A worker and what it runs: graph, task, attempt; None: nothing."""

    process: ProcessUse
    running: tuple[int, int, int] | None


@dataclass(frozen=True)
class EngineUse:
    """One engine.

    Attributes:
        client, coordinator: its processes.
        program: the client's command line.
        workers: by slot.
        figures: what the coordinator has to do.
    """

    client: ProcessUse
    program: str
    coordinator: ProcessUse
    workers: tuple[WorkerUse, ...]
    figures: BoardFigures


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
        WorkerUse(_use(pid), running) for pid, running in workers_in(board).items() if _lives(pid)
    )
    return EngineUse(_use(client), " ".join(_command(client)), _use(coordinator), workers, figures)


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
