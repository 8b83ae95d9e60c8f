"""CoordinatorWatchdog: notices a coordinator that is stopped, is silent, or does not start."""

from __future__ import annotations

from mpgrad.base import config
from mpgrad.base.start_deadline import StartDeadline, Verdict, cause_of_stop, notice_of_stop
from mpgrad.engine.coordinator_start import CoordinatorProcess

#: The longest wait in milliseconds.
WAIT_MS = 1000
#: The number of waits after which a stopped coordinator is reported, and killed.
NOTICE_AFTER, KILL_AFTER = 3, 30
#: After so many waits a session asks for its graphs.
ASK_AFTER = 10
#: Seconds of a processor in which whatever was started in place of a coordinator must have become
#: one, and in which a coordinator must answer. Either takes a fraction of a second.
RUN_LIMIT_S = 30.0


class CoordinatorWatchdog:
    """Whether the coordinator that a session waits for is stopped (SIGSTOP), or hangs.

    A dead coordinator is noticed by its pidfd. A stopped coordinator is not dead, and a session
    would wait for it forever. So a session that has heard nothing for a while checks, prints a
    warning, and kills the coordinator after a longer time; the rest follows as after any death. A
    coordinator that owes an answer and does nothing, or runs on without one, is killed, too. One
    that gets no processor is neither. Time is counted in waits without an event and not read from
    the clock: the time for which this process itself was stopped (Ctrl-Z, a suspended machine) does
    not count.
    """

    def __init__(self, coordinator: CoordinatorProcess) -> None:
        self._coordinator = coordinator
        limit_s = config.start_timeout_s()
        self._start = StartDeadline(limit_s, max(limit_s, RUN_LIMIT_S))
        #: Waits in a row without an event, after each of which it was found stopped.
        self._stopped = 0
        #: Since it owes an answer.
        self._answer: StartDeadline | None = None

    def note_wait(
        self, *, has_come: bool, waits: str = "a backward", owes_answer: bool = False
    ) -> None:
        """Record a wait; if something ``has_come``, the coordinator is running.

        A coordinator that has been stopped or silent for too long, or does not start, is killed
        here; the next wait sees it die.

        Args:
            has_come: whether the wait had a reason to end.
            waits: what waits for it.
            owes_answer: whether it was asked something that it answers at once.
        """
        if has_come:
            self._stopped, self._answer = 0, None
            return
        is_stopped = self._coordinator.is_stopped()
        self._stopped = self._stopped + 1 if is_stopped else 0
        seconds = self._stopped * WAIT_MS / 1000
        if self._stopped == NOTICE_AFTER:
            left_s = (KILL_AFTER - NOTICE_AFTER) * WAIT_MS / 1000
            pid = self._coordinator.pid
            self._coordinator.say(
                notice_of_stop("the coordinator process", pid, waits, seconds, left_s)
            )
        elif self._stopped >= KILL_AFTER:
            self._coordinator.kill(cause_of_stop(seconds))
        if not self._coordinator.hear_of_start():
            self._judge_start(is_stopped=is_stopped)
        elif owes_answer and not is_stopped:
            self._judge_silence()

    def _judge_silence(self) -> None:
        use, limit_s = self._coordinator.processor_use(), KILL_AFTER * WAIT_MS / 1000
        if self._answer is None:
            self._answer = StartDeadline(limit_s, use.ran_ns / 1e9 + RUN_LIMIT_S)
            self._answer.look(0.0, use, is_stopped=False)
        elif self._answer.look(WAIT_MS / 1000, use, is_stopped=False) is Verdict.LATE:
            idle_s = self._answer.idle_s
            how = f"did nothing for {idle_s:g} s" if idle_s >= limit_s else "ran on"
            self._coordinator.kill(f"{how} and gave no answer, and was killed")

    def _judge_start(self, *, is_stopped: bool) -> None:
        start = self._start
        verdict = start.look(
            WAIT_MS / 1000, self._coordinator.processor_use(), is_stopped=is_stopped
        )
        if verdict is Verdict.STOPPED:
            self._coordinator.kill(cause_of_stop(start.stopped_s))
        elif verdict is Verdict.LATE:
            self._coordinator.give_up(start.words())
