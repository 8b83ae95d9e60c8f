"""CallingThread: user code that sleeps in the simulation's time.

A session blocks its thread, as in the user's process. So each session has a thread of its own, and
only one thread runs at a time: it runs while another thread waits in ``resume``, and sleeps in
``suspend``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NoReturn

from simulation.virtual_time import VirtualTime


class ProcessDied(BaseException):
    """The process of this thread is dead: none of its later actions counts."""


class CallingThread:
    """A thread that runs only while it is resumed.

    Args:
        time: the World's clock.
        body: the code of the thread.
    """

    def __init__(self, time: VirtualTime, body: Callable[[], None]) -> None:
        self._time, self._body = time, body
        #: The number of its sleeps: a wake-up is meant for one particular sleep.
        self._sleeps = 0
        self._is_listening = False
        self._may_go, self._is_back = threading.Lock(), threading.Lock()
        self._may_go.acquire()
        self._is_back.acquire()
        #: The exception that its sleep raises, and the one that has ended it.
        self._thrown: BaseException | None = None
        self._failure: BaseException | None = None
        self.has_begun = self.has_ended = False
        #: None of the later actions of its code counts.
        self._is_dead = False

    def resume(self, thrown: BaseException | None = None) -> None:
        """Let it run until it sleeps again or ends.

        Args:
            thrown: the exception that its sleep raises.

        Raises:
            Exception: the exception of its body.
        """
        self._thrown = thrown
        if not self.has_begun:
            self.has_begun = True
            threading.Thread(target=self._run, daemon=True).start()
        self._may_go.release()
        self._is_back.acquire()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def suspend(self) -> None:
        """Sleep, in the thread itself.

        Raises:
            BaseException: the argument of ``resume``.
        """
        if self._is_dead:
            raise ProcessDied
        self._is_back.release()
        self._may_go.acquire()
        thrown, self._thrown = self._thrown, None
        if thrown is not None:
            raise thrown

    # ------------------------------------------------------------------ in virtual time

    def sleep(self, delay_us: int) -> None:
        """User code takes some time; only ``wake_up`` interrupts it."""
        self._sleeps += 1
        self._time.after(delay_us, self._end_sleep, self._sleeps)
        self.suspend()

    def listen(self, timeout_ms: int | None) -> None:
        """Sleep until a message arrives."""
        self._sleeps += 1
        self._is_listening = True
        if timeout_ms is not None:
            at_us = self._time.now + 1000 * timeout_ms
            self._time.weakly_at(at_us, self._end_sleep, self._sleeps)
        try:
            self.suspend()
        finally:
            self._is_listening = False

    def on_arrival(self) -> None:
        """A message has arrived."""
        if self._is_listening:
            self.wake_up()

    def wake_up(self, thrown: BaseException | None = None) -> None:
        """End its sleep, whatever it is waiting for."""
        self._end_sleep(self._sleeps, thrown)

    def _end_sleep(self, sleep: int, thrown: BaseException | None = None) -> None:
        if not self.has_ended and sleep == self._sleeps:
            self._sleeps += 1
            self.resume(thrown)

    # ------------------------------------------------------------------ its end

    def end(self) -> None:
        """The process is dead."""
        if self.has_begun and not self.has_ended:
            self._is_dead = True
            self.resume(ProcessDied())

    def fail(self, error: Exception) -> NoReturn:
        """Report, in the thread itself, an error that must not happen."""
        self._failure, self._is_dead = error, True
        raise ProcessDied

    def _run(self) -> None:
        self._may_go.acquire()
        try:
            if self._thrown is None:
                self._body()
        except ProcessDied:
            pass
        except BaseException as error:
            self._failure = error
        finally:
            self.has_ended = True
            self._is_back.release()
