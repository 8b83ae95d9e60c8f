"""Killer: sends SIGKILL to an engine's processes at random instants, and keeps count."""

from __future__ import annotations

import os
import random
import signal
import threading
from contextlib import suppress

import mpgrad as mg

#: Seconds between two kills: often shorter than a worker needs to start, or a step to finish.
PAUSES_S = (0.02, 0.6)
#: What a worker has mapped once it has done all its imports, shortly before it is ready.
_MAPPED = "mpgrad-engine-arena"


class Killer(threading.Thread):
    """Strikes workers, whether they work, wait or start, and now and then their parent.

    Args:
        engine: whose processes.
        chance: decides when and whom.
        workers: how many workers to kill.
        coordinators: how many coordinators; they are spread among the others.
    """

    def __init__(
        self, engine: mg.Engine, chance: random.Random, workers: int, coordinators: int
    ) -> None:
        super().__init__(name="killer")
        self._engine, self._chance = engine, chance
        self._left = {"worker": workers, "coordinator": coordinators}
        self._stop_asked = threading.Event()
        #: Kills of workers, and how many of these were still starting.
        self.workers = self.starting = 0
        self.coordinators = 0

    def run(self) -> None:
        while any(self._left.values()):
            if self._stop_asked.wait(self._chance.uniform(*PAUSES_S)):
                return
            kinds, weights = zip(*self._left.items(), strict=True)
            [kind] = self._chance.choices(kinds, weights)
            if self._kill_worker() if kind == "worker" else self._kill_coordinator():
                self._left[kind] -= 1

    def _kill_worker(self) -> bool:
        pids = self._engine.worker_pids()
        if not pids:
            return False
        pid = self._chance.choice(pids)
        maps = _maps_of(pid)
        if not maps or not _kill(pid):
            return False  # the last kill of it has not been noticed yet
        self.workers += 1
        self.starting += _MAPPED not in maps
        return True

    def _kill_coordinator(self) -> bool:
        pid = self._engine.coordinator_pid
        if pid is None or not _maps_of(pid) or not _kill(pid):
            return False
        self.coordinators += 1
        return True

    def stop(self) -> None:
        """End it, and wait for that."""
        self._stop_asked.set()
        self.join()


def _kill(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def _maps_of(pid: int) -> str:
    """What a process has mapped; nothing if it is dead, even if nobody has noticed."""
    with suppress(OSError), open(f"/proc/{pid}/maps") as maps:
        return maps.read()
    return ""
