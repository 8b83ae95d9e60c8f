"""Killer: sends SIGKILL to an engine's processes at random instants, and counts the kills."""

from __future__ import annotations

import os
import random
import signal
import threading
from contextlib import suppress

import psutil

import mpgrad as mg
from mpgrad.scheduler.coordinator_state import KILLS_MAX

#: Seconds between two kills: often shorter than a worker needs to start, or a step to finish.
PAUSES_S = (0.02, 0.6)
WORKERS_PER_TEMPLATE = 20
#: The modules that a worker has mapped after all its imports, shortly before it is ready.
_MAPPED = "mpgrad-engine-arena"


class Killer(threading.Thread):
    """Kills workers while they work, wait or start, at times their template or the coordinator.

    Args:
        engine: the engine.
        chance: chooses the time and the process.
        workers: the number of workers to kill; one template for every 20 of them.
        coordinators: the number of coordinators to kill, spread among the workers.
    """

    def __init__(
        self, engine: mg.Engine, chance: random.Random, workers: int, coordinators: int
    ) -> None:
        super().__init__(name="killer")
        self._engine, self._chance = engine, chance
        self._left = {
            "worker": workers,
            "coordinator": coordinators,
            "template": workers // WORKERS_PER_TEMPLATE,
        }
        self._kill_one = {
            "worker": self._kill_worker,
            "coordinator": self._kill_coordinator,
            "template": self._kill_template,
        }
        self._stop_asked = threading.Event()
        #: Kills of workers, and how many of these were still starting.
        self.workers = self.starting = 0
        self.coordinators = self.templates = 0
        self._in_step = 0

    def step_begins(self) -> None:
        """Count the kills of a step anew: an engine gives up an item at ``KILLS_MAX`` of them."""
        self._in_step = 0

    def run(self) -> None:
        while any(self._left.values()):
            if self._stop_asked.wait(self._chance.uniform(*PAUSES_S)):
                return
            if self._in_step >= KILLS_MAX - 1:  # a busy machine is slower than the kills
                continue
            kinds, weights = zip(*self._left.items(), strict=True)
            [kind] = self._chance.choices(kinds, weights)
            if self._kill_one[kind]():
                self._left[kind] -= 1
                self._in_step += 1

    def _kill_worker(self) -> bool:
        pids = self._engine.worker_pids()
        if not pids:
            return False
        pid = self._chance.choice(pids)
        maps = _maps_of(pid)
        if not maps or not _kill(pid):
            return False  # its last kill has not been noticed yet
        self.workers += 1
        self.starting += _MAPPED not in maps
        return True

    def _kill_coordinator(self) -> bool:
        pid = self._engine.coordinator_pid
        if pid is None or not _maps_of(pid) or not _kill(pid):
            return False
        self.coordinators += 1
        return True

    def _kill_template(self) -> bool:
        pids, coordinator = self._engine.worker_pids(), self._engine.coordinator_pid
        if coordinator is None or not pids:
            return False
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(coordinator).children()
            # Others are workers that start, of which the engine has not told yet.
            others = [child for child in children if child.pid not in pids]
            if others and _kill(min(others, key=psutil.Process.create_time).pid):
                self.templates += 1
                return True
        return False

    def stop(self) -> None:
        """Stop the thread and wait for its end."""
        self._stop_asked.set()
        self.join()


def _kill(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def _maps_of(pid: int) -> str:
    """The mappings of a process; empty if it is dead, even before its parent notices."""
    with suppress(OSError), open(f"/proc/{pid}/maps") as maps:
        return maps.read()
    return ""
