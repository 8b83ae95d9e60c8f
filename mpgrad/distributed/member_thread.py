"""MemberThread: the thread of a process that belongs to a group: it waits for messages and time.

ZeroMQ's sockets belong to one thread. Here it is this one; all others hand it what they want done.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable

from mpgrad.distributed.generation import Generation
from mpgrad.distributed.rendezvous import Meeting

#: Seconds that a rank which leaves waits until the others have read its farewell, and with it all
#: that it has sent before.
FAREWELL_S_MAX = 5.0


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
            self._generation.begin()
            while not self._may_end():
                for event in self._generation.carrier.receive(self._timeout_ms()):
                    self._generation.take(event)
                while self._requests:
                    self._requests.popleft()()
                self.member.expire(time.monotonic())
        except BaseException as error:
            text = f"the thread of the process group has failed: {error!r}"
            self.member.fail(text)
            raise
        finally:
            with self._lock:
                self._generation.end()
            # What was asked for too late to be begun.
            self.member.fail("the process group has ended")
            while self._requests:
                self._requests.popleft()()

    def _may_end(self) -> bool:
        if self._leaves_until is None:
            return False
        return self.member.membership.may_go or time.monotonic() >= self._leaves_until

    def _timeout_ms(self) -> int | None:
        if self._requests:
            return 0
        until = min(self.member.next_deadline(), self._leaves_until or math.inf)
        if until == math.inf:
            return None
        return max(0, math.ceil((until - time.monotonic()) * 1000))
