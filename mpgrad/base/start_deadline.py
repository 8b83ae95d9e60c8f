"""StartDeadline: how long a child that starts has done nothing, and how long it was stopped.

Time is counted in looks and not read from the clock, so that the time for which the watching
process itself was stopped (Ctrl-Z, a suspended machine) does not count.
"""

from __future__ import annotations

from enum import Enum

from mpgrad.base.processor_use import ProcessorUse

#: Seconds after which a stopped child is reported.
NOTICE_AFTER_S = 3.0
#: Less than this share of a second is nothing: many programs wake up now and then, and wait again.
_LEAST_SHARE = 0.001


class Verdict(Enum):
    """What a look has found."""

    WAIT = "wait"
    #: It has been stopped for a while: its user should know.
    NOTICE = "notice"
    #: It has been stopped for too long.
    STOPPED = "stopped"
    #: It has done nothing for too long, or too much.
    LATE = "late"


class StartDeadline:
    """The looks at one child.

    Args:
        limit_s: the seconds for which it may do nothing.
        run_limit_s: the seconds of a processor that it may use.
    """

    def __init__(self, limit_s: float, run_limit_s: float = float("inf")) -> None:
        self._limit_s, self._run_limit_s = limit_s, run_limit_s
        self._busy_ns = 0
        #: Seconds without use of a processor, all together; and seconds in a row in which it was
        #: found stopped.
        self.idle_s = self.stopped_s = 0.0

    def look(self, seconds: float, use: ProcessorUse, *, is_stopped: bool) -> Verdict:
        """Judge the time since the last look.

        Args:
            seconds: since then.
            use: of a processor, so far.
            is_stopped: whether it is stopped (SIGSTOP) now.
        """
        busy_s, self._busy_ns = (sum(use) - self._busy_ns) / 1e9, sum(use)
        if busy_s < _LEAST_SHARE * seconds:
            self.idle_s += seconds
        was_s, self.stopped_s = self.stopped_s, self.stopped_s + seconds if is_stopped else 0.0
        if self.idle_s >= self._limit_s or use.ran_ns >= 1e9 * self._run_limit_s:
            return Verdict.STOPPED if is_stopped else Verdict.LATE
        if was_s < NOTICE_AFTER_S <= self.stopped_s:
            return Verdict.NOTICE
        return Verdict.WAIT

    def words(self) -> str:
        """How a child ended that was ``LATE``."""
        if self.idle_s < self._limit_s:
            return f"used a processor for {self._run_limit_s:g} s without an answer and was killed"
        return (
            f"did nothing for {self.idle_s:g} s and was killed (MPGRAD_START_TIMEOUT sets that "
            "time)"
        )


def notice_of_stop(who: str, pid: int, waits: str, stopped_s: float, left_s: float) -> str:
    """Says of a stopped child that it is, and what helps.

    Args:
        who: the child.
        pid: its number.
        waits: what waits for it.
        stopped_s: for how long it has been stopped.
        left_s: until it is killed.
    """
    return (
        f"{who} (pid {pid}) has been stopped (SIGSTOP) for {stopped_s:g} s, and {waits} waits for "
        f"it. `kill -CONT {pid}` lets it go on; in {left_s:g} s it is killed."
    )


def cause_of_stop(stopped_s: float) -> str:
    """How a child ended that was stopped for too long."""
    return f"was stopped (SIGSTOP) for {stopped_s:g} s and killed"
