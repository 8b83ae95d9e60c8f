"""processor_use(): how long a process has used a processor, or has waited for one that is free."""

from __future__ import annotations

import os
from typing import NamedTuple

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class ProcessorUse(NamedTuple):
    """Of the main thread of a process, in nanoseconds."""

    ran_ns: int
    #: Ready to run, while others had the processors: it was not idle.
    waited_ns: int


def processor_use(pid: int) -> ProcessorUse:
    """What ``pid`` has used so far; nothing if it has gone."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            ran, waited, _ = map(int, file.read().split())
            return ProcessorUse(ran, waited)
    except (OSError, ValueError):
        pass  # a kernel without these figures
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # Behind the name, which may hold anything.
            fields = file.read().rpartition(b")")[2].split()
            return ProcessorUse((int(fields[11]) + int(fields[12])) * _TICK_NS, 0)
    except (OSError, ValueError, IndexError):
        return ProcessorUse(0, 0)
