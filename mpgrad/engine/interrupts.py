"""Interrupts: where Ctrl-C may strike while a session waits for its graph, and what time is left.

It breaks the sleep and the user's own code, and never the handling of a message.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mpgrad.standard_streams import say

#: Milliseconds since Ctrl-C that tasks get which are running, and after which a caller who has
#: heard nothing of their end waits no longer.
GRACE_MS, PATIENCE_MS = 1000, 1400


class Interrupts:
    """One per session. Outside the main thread, or where the user has installed a handler, nothing
    is changed.

    Args:
        clock: the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._may_strike = False
        #: What is to be raised as soon as it may strike.
        self._pending: KeyboardInterrupt | None = None
        #: When the first one came since no graph was running (seconds), and whether that was said.
        self._since_s: float | None = None
        self._is_stopping = False
        #: Another engine's, whose task this session's graph is part of: Ctrl-C goes there.
        self._outer: Interrupts | None = None

    # ------------------------------------------------------------------ where it may strike

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """While messages are handled."""
        if threading.current_thread() is not threading.main_thread():
            # A helper of the main thread, perhaps, which waits for this one in user code.
            with self._striking(False):
                yield
            return
        before = signal.getsignal(signal.SIGINT)
        owner = getattr(before, "__self__", None)
        if isinstance(owner, Interrupts):
            with owner._striking(False), self._inside(owner):
                yield
            if owner._may_strike:
                owner._strike()
        elif before is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._arrive)
            try:
                yield
            finally:
                signal.signal(signal.SIGINT, before)
                self._strike()
        else:
            yield

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """During the sleep."""
        if self._outer is not None:
            with self._outer.allowed():
                yield
            return
        # Ctrl-C strikes the main thread, which a helper thread's sleep is none of. Before the
        # question below: one that came in between would wait until the sleep is over.
        with self._striking(threading.current_thread() is threading.main_thread()):
            self._strike()
            yield

    @contextmanager
    def user_code(self) -> Iterator[None]:
        """While a task of the client runs the user's code; its graph has to end, too."""
        try:
            with self.allowed():
                yield
        except KeyboardInterrupt as interrupt:
            (self._outer or self)._pending = interrupt
            raise

    @contextmanager
    def _striking(self, may_strike: bool) -> Iterator[None]:
        before, self._may_strike = self._may_strike, may_strike
        try:
            yield
        finally:
            self._may_strike = before

    @contextmanager
    def _inside(self, owner: Interrupts) -> Iterator[None]:
        before, self._outer = self._outer, None if owner is self else owner
        try:
            yield
        finally:
            self._outer = before

    def _strike(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            raise pending

    def _arrive(self, *_: object) -> None:
        if self._since_s is None:
            self._since_s = self._clock()
        self._pending = KeyboardInterrupt()
        if self._may_strike:
            # In case that it strikes where this would be put back.
            self._may_strike = False
            self._strike()

    # ------------------------------------------------------------------ what time is left

    def begin_to_stop(self) -> int:
        """It has struck: say so once; the milliseconds that running tasks have left."""
        owner = self._outer or self
        if owner._since_s is None:
            owner._since_s = self._clock()  # a handler of the user's has raised it
        if not owner._is_stopping:
            owner._is_stopping = True
            say(
                f"stopping: tasks that are running get {GRACE_MS / 1000:g} s, then their workers "
                "are replaced (Ctrl-C again: at once)"
            )
        return max(0, GRACE_MS - owner._age_ms())

    @property
    def patience_ms(self) -> int | None:
        """How long to wait for the end at most; None while nothing is to stop."""
        owner = self._outer or self
        return max(0, PATIENCE_MS - owner._age_ms()) if owner._is_stopping else None

    def forget(self) -> None:
        """No graph is running any more."""
        self._since_s, self._is_stopping = None, False

    def _age_ms(self) -> int:
        return 0 if self._since_s is None else int((self._clock() - self._since_s) * 1000)
