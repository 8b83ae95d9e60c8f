"""CallingThread: user code that sleeps in the simulation's time.

A session blocks where a user's thread blocks. So each has a thread of its own here, too, and only
one runs at a time: it runs while somebody waits in ``resume``, and sleeps in ``suspend``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class ProcessDied(BaseException):
    """The process of this thread is gone: nothing that it would still do counts."""


class CallingThread:
    """A thread that stands still unless it is resumed."""

    def __init__(self, body: Callable[[], None]) -> None:
        self._body = body
        self._may_go, self._is_back = threading.Lock(), threading.Lock()
        self._may_go.acquire()
        self._is_back.acquire()
        #: What it finds when it goes on, and what ended it.
        self._thrown: BaseException | None = None
        self._failure: BaseException | None = None
        self.has_begun = self.has_ended = False

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
        self._is_back.release()
        self._may_go.acquire()
        thrown, self._thrown = self._thrown, None
        if thrown is not None:
            raise thrown

    def end(self) -> None:
        """The process is gone."""
        if self.has_begun and not self.has_ended:
            self.resume(ProcessDied())

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
