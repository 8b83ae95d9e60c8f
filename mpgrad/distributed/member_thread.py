"""MemberThread: the thread of a process that belongs to a group: it waits for messages and time.

The member, and the socket that it sends by, belong to one thread at a time: to whoever has the
turn. That is this thread while it takes messages, and any other that finds it waiting.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable

from mpgrad.autograd.running.deferred_interrupts import interrupts_deferred
from mpgrad.distributed.generation import Generation
from mpgrad.distributed.rendezvous import Meeting

#: Seconds that a rank which leaves waits until the others have read its farewell, and with it all
#: that it has sent before.
FAREWELL_S_MAX = 5.0
#: Seconds after which the thread looks at the time, at the latest. A thread that gives the member a
#: later deadline need not wake it.
LOOK_S = 1.0


class MemberThread:
    """Runs one Generation: its GroupMember on its carrier.

    Args:
        rank: of the world.
        meeting: the ranks; its carrier belongs to this thread from now on.
    """

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self._generation = Generation(rank, meeting)
        self.member = self._generation.member
        self._requests: deque[Callable[[], None]] = deque()
        # The garbage collector may ask for something while this thread asks.
        self._lock = threading.RLock()
        self._turn = threading.Lock()
        self._sleeps_until = 0.0
        self._leaves_until: float | None = None
        self._thread = threading.Thread(target=self._run, name="mpgrad-group", daemon=True)
        self._thread.start()

    def ask(self, request: Callable[[], None]) -> None:
        """Have ``request`` called on the thread.

        Raises:
            RuntimeError: it has ended.
        """
        with self._lock:
            if self._generation.is_over:
                raise RuntimeError("the process group has ended")
            self._requests.append(request)
            self._generation.carrier.wake()

    def do(self, request: Callable[[], None]) -> None:
        """Have ``request`` called, here and now if nobody has the turn; else as ``ask`` does.

        It does little, and calls nothing of the user's. No signal interrupts it.

        Raises:
            RuntimeError: the thread has ended.
        """
        with interrupts_deferred():
            if self._requests or not self._turn.acquire(blocking=False):
                self.ask(request)
                return
            try:
                if self._generation.is_over:
                    raise RuntimeError("the process group has ended")
                request()
                if self.member.next_deadline() < self._sleeps_until:
                    self._generation.carrier.wake()
            finally:
                self._turn.release()

    def leave(self) -> None:
        """Say farewell, wait until it was read, and end the thread."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a process group cannot be ended by its own thread")
        try:
            self.ask(self._begin_to_leave)
        except RuntimeError:  # it has ended already
            return
        self._thread.join()

    def _begin_to_leave(self) -> None:
        self._leaves_until = time.monotonic() + FAREWELL_S_MAX
        self.member.leave()

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            with self._turn:
                self._generation.begin()
                timeout_ms = self._timeout_ms()
            while not self._may_end():
                events = self._generation.carrier.receive(timeout_ms)
                with self._turn:
                    for event in events:
                        self._generation.take(event)
                    while self._requests:
                        self._requests.popleft()()
                    self.member.expire(time.monotonic())
                    timeout_ms = self._timeout_ms()
        except BaseException as error:
            text = f"the thread of the process group has failed: {error!r}"
            self.member.fail(text)
            raise
        finally:
            with self._turn, self._lock:
                self._generation.end()
            # What was asked for too late to be begun.
            self.member.fail("the process group has ended")
            while self._requests:
                self._requests.popleft()()

    def _may_end(self) -> bool:
        if self._leaves_until is None:
            return False
        return self.member.membership.may_go or time.monotonic() >= self._leaves_until

    def _timeout_ms(self) -> int:
        now = time.monotonic()
        until = min(self.member.next_deadline(), self._leaves_until or math.inf, now + LOOK_S)
        self._sleeps_until = now if self._requests else until
        return max(0, math.ceil((self._sleeps_until - now) * 1000))
