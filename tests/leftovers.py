"""Leftovers: what an engine must not leave behind: processes, descriptors, names in /dev/shm."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable
from typing import NamedTuple

import psutil

#: Seconds to wait for what never comes: processes may be slow to end on a busy machine.
PATIENCE_S = 60.0
_POLL_S = 0.005


class Leftovers(NamedTuple):
    """What is there at one moment."""

    #: Descendants of this process that are no zombies.
    processes: frozenset[int]
    #: Open descriptors of this process.
    descriptors: int

    @classmethod
    def now(cls) -> Leftovers:
        """Look."""
        gc.collect()
        return cls(
            descendants(os.getpid()),
            len(os.listdir("/proc/self/fd")),
        )

    def beyond(self, before: Leftovers) -> str:
        """In words, what is here and was not there ``before``; empty if nothing."""
        processes = self.processes - before.processes
        words = [f"processes {sorted(map(str, processes))}"] if processes else []
        if self.descriptors > before.descriptors:
            words.append(f"{self.descriptors - before.descriptors} descriptors")
        return ", ".join(words)


def named_memory_of(pid: int) -> set[str]:
    """The files in /dev/shm that the process ``pid`` maps or has open: an engine makes none."""
    with open(f"/proc/{pid}/maps") as lines:
        # address, permissions, offset, device, inode, path
        found = {line.split(maxsplit=5)[5].strip() for line in lines if "/dev/shm/" in line}
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            target = os.readlink(f"/proc/{pid}/fd/{number}")
            found |= {target} if target.startswith("/dev/shm/") else set()
    return found


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
    """Whether ``pid`` runs; a zombie does not, once its other threads have ended, too."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1
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
