"""Faults: the kinds of faults in a simulation, their probabilities, and their counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from random import Random

#: Processes of one worker slot that may die in one World, fewer than the core's limit of deaths
#: without progress.
DEATHS_MAX = 15


@dataclass(frozen=True)
class Faults:
    """One probability per kind of fault (0 switches it off).

    Attributes:
        crash_before_reply: per task that runs on a worker; it may have written part of its blocks.
        crash_after_progress: per publication of a running task.
        crash_after_reply: per reply; messages in transit may be lost or arrive after the death.
        kill: per worker: SIGKILL from outside at any time.
        kill_all: per World: SIGKILL to all workers at once, at some times.
        die_at_start: per worker process: it dies before it is ready.
        stall: per task: it hangs until its worker is fenced.
        late_reply: per stall: the task ends after all, when the fence is already under way.
        lengthy: per task: it takes seconds, even if its graph is cancelled.
        stop: per task: SIGSTOP from outside while it runs or soon after, SIGCONT much later.
        duplicate_progress: per publication of a running task.
        duplicate_reply: per reply of a worker.
        forge: per task: the reply names a block of another task.
        raise_rule: per graph: one to three of its rules raise.
        cancel: per graph: the caller cancels it at any time.
        vanish: per client process: it dies with all its sessions at any time.
        orphan: per nested backward: its client dies while it runs.
        rejoin: per client process that vanished: another one runs its graphs again.
        breach: per session: it sends a forbidden message, and is cut off.
        small_arena: per World: the arena is too small, for a while or permanently.
        arena_fills: per World: memory runs out at any time, for a while.
        slow: per worker: its tasks take thirty times as long, so that its credit stays used up.
        unavailable: per worker start: no process can be started any more.
        silence: per World: the coordinator lives and does nothing (``simulation.silence``).
        flip: per block of a worker, in some Worlds: its bytes change (``simulation.flips``).
    """

    crash_before_reply: float = 0.0
    crash_after_progress: float = 0.0
    crash_after_reply: float = 0.0
    kill: float = 0.0
    kill_all: float = 0.0
    die_at_start: float = 0.0
    stall: float = 0.0
    late_reply: float = 0.0
    lengthy: float = 0.0
    duplicate_progress: float = 0.0
    stop: float = 0.0
    duplicate_reply: float = 0.0
    forge: float = 0.0
    raise_rule: float = 0.0
    cancel: float = 0.0
    vanish: float = 0.0
    orphan: float = 0.0
    rejoin: float = 0.0
    breach: float = 0.0
    small_arena: float = 0.0
    arena_fills: float = 0.0
    slow: float = 0.0
    unavailable: float = 0.0
    silence: float = 0.0
    flip: float = 0.0


NO_FAULTS = Faults()
ALL_FAULTS = Faults(
    crash_before_reply=0.03,
    crash_after_progress=0.03,
    crash_after_reply=0.03,
    kill=0.3,
    kill_all=0.1,
    die_at_start=0.1,
    stall=0.02,
    late_reply=0.5,
    lengthy=0.02,
    duplicate_progress=0.1,
    stop=0.02,
    duplicate_reply=0.1,
    forge=0.01,
    raise_rule=0.35,
    cancel=0.2,
    vanish=0.2,
    orphan=0.4,
    rejoin=0.7,
    breach=0.1,
    small_arena=0.6,
    arena_fills=0.5,
    slow=0.3,
    unavailable=0.05,
    silence=0.1,
    flip=0.05,
)


#: Faults that are drawn for every task.
OF_TASKS = (
    "crash_before_reply",
    "crash_after_progress",
    "crash_after_reply",
    "stall",
    "lengthy",
    "stop",
    "duplicate_progress",
    "duplicate_reply",
    "forge",
)


class FaultDice:
    """Draws each fault, and counts those that happened."""

    def __init__(self, faults: Faults, rng: Random) -> None:
        # Each World leaves out about half of the kinds: if everything fails at once, little work
        # gets done, and the interaction of two faults is never seen alone ("swarm testing", Groce
        # et al., 2012). In one World of three, faults of single tasks are four times as frequent,
        # so that the same task is hit again and again.
        self._rng = rng
        intensity = rng.choice((1, 1, 4))
        self.rates = {
            field.name: getattr(faults, field.name)
            * (intensity if field.name in OF_TASKS else 1)
            * rng.randint(0, 1)
            for field in fields(faults)
            if field.name not in ("silence", "flip")  # they have sources of their own
        }
        self.injected: Counter[str] = Counter()

    def strikes(self, kind: str) -> bool:
        """Whether ``kind`` happens now; counted if so."""
        rate = self.rates[kind]
        if rate == 0.0 or self._rng.random() >= rate:
            return False
        self.injected[kind] += 1
        return True
