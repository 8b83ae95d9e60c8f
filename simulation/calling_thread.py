"""CallingThread: user code that sleeps in the simulation's time.

A session blocks where a user's thread blocks. So each has a thread of its own here, too, and only
one runs at a time: it runs while somebody waits in ``resume``, and sleeps in ``suspend``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NoReturn

from simulation.virtual_time import VirtualTime


class ProcessDied(BaseException):
    """The process of this thread is gone: nothing that it would still do counts."""


class CallingThread:
    """A thread that stands still unless it is resumed.

    Args:
        time: the World's.
        body: what it does.
    """

    def __init__(self, time: VirtualTime, body: Callable[[], None]) -> None:
        self._time, self._body = time, body
        #: Counts its sleeps: whoever wants to end one must mean this very one.
        self._sleeps = 0
        self._is_listening = False
        self._may_go, self._is_back = threading.Lock(), threading.Lock()
        self._may_go.acquire()
        self._is_back.acquire()
        #: What it finds when it goes on, and what ended it.
        self._thrown: BaseException | None = None
        self._failure: BaseException | None = None
        self.has_begun = self.has_ended = False
        #: Nothing that its code still does counts.
        self._is_dead = False

    def resume(self, thrown: BaseException | None = None) -> None:
        """Let it run until it sleeps again or ends.

        Args:
            thrown: what its sleep raises.

        Raises:
            Exception: what its body raised.
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
            BaseException: what ``resume`` was given.
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
        """Something of the user's takes time; only ``wake_up`` breaks it."""
        self._sleeps += 1
        self._time.after(delay_us, self._end_sleep, self._sleeps)
        self.suspend()

    def listen(self, timeout_ms: int | None) -> None:
        """Sleep until something comes."""
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
        """Something has come."""
        if self._is_listening:
            self.wake_up()

    def wake_up(self, thrown: BaseException | None = None) -> None:
        """End its sleep, whatever it waits for."""
        self._end_sleep(self._sleeps, thrown)

    def _end_sleep(self, sleep: int, thrown: BaseException | None = None) -> None:
        if not self.has_ended and sleep == self._sleeps:
            self._sleeps += 1
            self.resume(thrown)

    # ------------------------------------------------------------------ its end

    def end(self) -> None:
        """The process is gone."""
        if self.has_begun and not self.has_ended:
            self._is_dead = True
            self.resume(ProcessDied())

    def fail(self, error: Exception) -> NoReturn:
        """In the thread itself: something that must not happen has happened."""
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
