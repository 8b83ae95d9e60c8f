"""Leftovers: what an engine must not leave behind: processes, descriptors, shared memory."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import psutil

#: Seconds to wait for what never comes: processes may be slow to end on a busy machine.
PATIENCE_S = 30.0
_POLL_S = 0.005
#: Where shared memory has names.
_NAMED = "/dev/shm"


class Leftovers(NamedTuple):
    """What is there at one moment."""

    #: Descendants of this process that are no zombies.
    processes: frozenset[int]
    #: Open descriptors of this process.
    descriptors: int
    shared_memory: frozenset[str]

    @classmethod
    def now(cls) -> Leftovers:
        """Look."""
        gc.collect()
        return cls(
            descendants(os.getpid()),
            len(os.listdir("/proc/self/fd")),
            _named(),
        )

    def beyond(self, before: Leftovers) -> str:
        """In words, what is here and was not there ``before``; empty if nothing."""
        names = self.shared_memory - before.shared_memory
        found: dict[str, frozenset[int] | frozenset[str]] = {
            "processes": self.processes - before.processes,
            "in /dev/shm": names and names - _of_others(names),
        }
        words = [f"{what} {sorted(map(str, left))}" for what, left in found.items() if left]
        if self.descriptors > before.descriptors:
            words.append(f"{self.descriptors - before.descriptors} descriptors")
        return ", ".join(words)


def _named() -> frozenset[str]:
    """The files in /dev/shm."""
    if not os.path.isdir(_NAMED):
        return frozenset()
    with os.scandir(_NAMED) as entries:
        return frozenset(entry.name for entry in entries if entry.is_file())


def _of_others(names: Iterable[str]) -> frozenset[str]:
    """Those of ``names`` in /dev/shm that a process maps that is no descendant of this one."""
    by_inode = {}
    for name in names:
        with contextlib.suppress(OSError):
            by_inode[str(os.stat(f"{_NAMED}/{name}").st_ino)] = name
    mine, found = {os.getpid(), *descendants(os.getpid())}, set()
    for pid in set(psutil.pids()) - mine:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as lines:
            # address, permissions, offset, device, inode, path: a semaphore's is of another name.
            rows = (line.split(maxsplit=5) for line in lines if _NAMED in line)
            found |= {by_inode[row[4]] for row in rows if row[4] in by_inode}
    return frozenset(found)


def left_since(before: Leftovers, patience_s: float = PATIENCE_S) -> str:
    """What is still left beyond ``before`` after at most ``patience_s`` seconds, in words."""
    wait_until(lambda: not Leftovers.now().beyond(before), patience_s)
    return Leftovers.now().beyond(before)


def descendants(pid: int) -> frozenset[int]:
    """Process ids of the living children, grandchildren, ... of ``pid``."""
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return frozenset()
    return frozenset(child.pid for child in children if is_alive(child.pid))


def is_alive(pid: int) -> bool:
    """Whether ``pid`` runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> bool:
    """Ask again and again until ``condition()`` is true; False after ``patience_s`` seconds."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
