"""How long it takes until all know of a death, and until a training goes on after one."""

from __future__ import annotations

import os
import signal
import time

from benchmarks.hosts.program import Program
from benchmarks.hosts.ray_calls import TwoNodes

LOST_RANKS, TRAINING_RANKS = 3, 4
#: Seconds of training between two deaths.
LIFE_S = 0.5


def until_lost_s(number: signal.Signals) -> float:
    """From when a rank gets the signal until the last of the others has got HostLost."""
    with Program("dying_ranks.py", LOST_RANKS) as program:
        pids = [int(words[0]) for _, words in program.said("ready", LOST_RANKS)]
        time.sleep(LIFE_S)
        struck = time.monotonic()
        os.kill(pids[-1], number)
        return _last(program.said("lost", LOST_RANKS - 1)) - struck


def until_lost_without_raylet_s(cluster: TwoNodes) -> float:
    """The same from when the raylet of one of two hosts is killed: its agent ends with it."""
    with Program("dying_ranks.py", 1, address=cluster.address) as program:
        program.said("ready", 2)
        time.sleep(LIFE_S)
        struck = cluster.kill_second()
        return _last(program.said("lost")) - struck


def _last(said: list[tuple[int, list[str]]]) -> float:
    return max(float(words[-1]) for _, words in said)


def until_training_s(deaths: int) -> list[float]:
    """From each death of a rank until the last rank has committed a step again."""
    found, struck = [], 0.0
    with Program("restarted_ranks.py", TRAINING_RANKS, restarts=deaths) as program:
        for death in range(deaths + 1):
            said = program.said("committed", TRAINING_RANKS)
            if death:
                found.append(_last(said) - struck)
            if death == deaths:
                break
            pids = {rank: int(words[0]) for rank, words in said}
            time.sleep(LIFE_S)
            struck = time.monotonic()
            os.kill(pids[death % TRAINING_RANKS], signal.SIGKILL)
    return found
