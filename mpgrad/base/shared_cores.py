"""Which processes share the cores of this one: those that the same program has started beside it.

Each of them would otherwise start as many workers as there are cores. Standard library only.
"""

from __future__ import annotations

import os
import re
import sys
from typing import NamedTuple

from mpgrad.base import machine
from mpgrad.base.standard_streams import say

#: Who starts processes and says how many: the variable with their number, the one with the name of
#: this process, and the name of the first.
_TOLD = (
    ("pytest-xdist", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_WORKER", "gw0"),
    ("torchrun", "LOCAL_WORLD_SIZE", "LOCAL_RANK", "0"),
)


class SharedCores(NamedTuple):
    """The processes that share the cores.

    Attributes:
        starter: who has started them, in words.
        processes: their number, with this process; at least 2.
        is_first: whether this process speaks for all of them.
    """

    starter: str
    processes: int
    is_first: bool

    @property
    def share(self) -> int:
        """The cores of each process, at least 1."""
        return max(1, machine.available_cpus() // self.processes)

    def say_once(self) -> None:
        """Tell the user; once, and only the first of the processes."""
        global _is_said
        if _is_said or not self.is_first:
            return
        _is_said = True
        where = "backward passes stay in this process" if self.share == 1 else "each has its share"
        say(
            f"{self.starter} runs {self.processes} processes on {machine.available_cpus()} cores: "
            f"{where} (Engine(cpu_workers=...) or MPGRAD_CPU_WORKERS decides otherwise)"
        )


def shared_cores() -> SharedCores | None:
    """Who shares the cores with this process; None if nobody is known to.

    A process that may use fewer cores than its parent has its share already.
    """
    if _has_own_cores():
        return None
    told = [found for entry in _TOLD if (found := _told(*entry)) is not None]
    starter = _starter()
    seen = [] if starter is None else [_seen(starter)]
    most = max([*told, *seen], key=lambda found: found.processes, default=None)
    return most if most is not None and most.processes > 1 else None


def _told(starter: str, number: str, name: str, first: str) -> SharedCores | None:
    text = os.environ.get(number, "")
    return (
        SharedCores(starter, int(text), os.environ.get(name) == first) if text.isdecimal() else None
    )


def _starter() -> str | None:
    """Who has started this process beside others; None if it is a program of its own."""
    module = sys.modules.get("multiprocessing.process")
    if module is not None and module.parent_process() is not None:
        kind = type(module.current_process()).__module__
        return "joblib" if "loky" in kind else "multiprocessing"
    if os.environ.get("SERVER_SOFTWARE", "").startswith("gunicorn"):
        return "gunicorn"
    return "os.fork()" if _is_forked else None


def _seen(starter: str) -> SharedCores:
    """The children of the parent with the same command line, but for numbers (of descriptors)."""
    own, parent = _command(os.getpid()), os.getppid()
    alike = [pid for pid in _children(parent) if _command(pid) == own]
    return SharedCores(starter, len(alike), not alike or min(alike) == os.getpid())


def _children(parent: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{parent}/task"):
            with open(f"/proc/{parent}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    except OSError:  # a system without that file, or a parent that has ended
        return []
    return found


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", errors="replace") as file:
            return re.sub(r"\d+", "0", file.read())
    except OSError:
        return ""


def _has_own_cores() -> bool:
    try:
        return len(os.sched_getaffinity(0)) < len(os.sched_getaffinity(os.getppid()))
    except (AttributeError, OSError):  # another system, or somebody else's process
        return False


_is_said = False
_is_forked = False


def _note_fork() -> None:
    global _is_forked, _is_said
    _is_forked, _is_said = True, False


os.register_at_fork(after_in_child=_note_fork)
