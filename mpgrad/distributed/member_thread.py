"""MemberThread: the thread of a process that belongs to a group: it waits for messages and time.

The member, and the carrier, belong to one thread at a time: to whoever has the turn. That is this
thread while it takes messages, and any other that finds it waiting. A thread that waits for what a
message brings takes the messages itself meanwhile, for one thread fewer has to wake up then.
"""

from __future__ import annotations

import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

from mpgrad.autograd.running.deferred_interrupts import Deferred, interrupts_deferred
from mpgrad.distributed.carrier.contract import HostCarrier
from mpgrad.distributed.generation import Generation
from mpgrad.distributed.rendezvous import AGAIN_S, Meeting

#: Seconds that a rank which leaves waits until the others have read its farewell, and with it all
#: that it has sent before.
FAREWELL_S_MAX = 5.0
#: Seconds after which the thread looks at the time, at the latest. A thread that gives the member a
#: later deadline need not wake it. Others that wait see a signal then, if it came just before they
#: fell asleep.
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
        #: Whether ranks that are started again take their places.
        self.reopens = meeting.reopens
        self._requests: deque[Callable[[], None]] = deque()
        # The garbage collector may ask for something while this thread asks.
        self._lock = threading.RLock()
        self._turn = threading.Lock()
        self._sleeps_until = 0.0
        self._leaves_until: float | None = None
        self._sleep = _Sleep(self._generation.carrier)
        #: Held by the thread that receives instead of this one, and where that sleeps. A handler of
        #: a signal that strikes there may wait for another message, or leave.
        self._receiving = threading.RLock()
        self._receivers_sleep = _Sleep(self._generation.carrier)
        #: What threads wait for, and what tells them that it is there.
        self._awaited: list[tuple[Callable[[], bool], Callable[[], None]]] = []
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
            self._sleep.end()

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
                self._tell()
                if self.member.next_deadline() < self._sleeps_until:
                    self._sleep.end()
            finally:
                self._turn.release()

    def wait_until(self, is_there: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait for what a message brings, and receive here meanwhile if nobody else does.

        Args:
            is_there: becomes true by what somebody does who has the turn; any thread asks it.
            timeout_s: how long at most; None: without an end.

        Returns:
            Whether it is there.
        """
        if is_there():
            return True
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        with interrupts_deferred() as deferred:
            if self._receiving.acquire(blocking=False):
                self._receive_until(is_there, deadline, deferred)
            if not is_there():
                self._be_told(is_there, deadline, deferred)
        return is_there()

    def leave(self) -> None:
        """Say farewell, wait until it was read, and end the thread."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a process group cannot be ended by its own thread")
        try:
            self.ask(self._begin_to_leave)
        except RuntimeError:  # it has ended already
            return
        self._watch(
            is_watched=True
        )  # this may be a handler of a signal, on the thread that receives
        self._thread.join()

    def _begin_to_leave(self) -> None:
        self._leaves_until = time.monotonic() + FAREWELL_S_MAX
        self.member.leave()

    # ------------------------------------------------------------------ threads that wait

    def _receive_until(
        self, is_there: Callable[[], bool], deadline: float, deferred: Deferred
    ) -> None:
        """Take all messages; the time is looked after by the other thread."""
        awaited = is_there, self._receivers_sleep.end
        try:
            self._awaited.append(awaited)
            self._watch(is_watched=False)
            while not is_there() and not self._generation.is_over:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    break
                with deferred.lifted():
                    self._receivers_sleep.sleep(min(left_s, LOOK_S))
                with self._turn:
                    try:
                        self._take()
                    except BaseException as error:
                        self._fail(error)
                        raise
                    if len(self._awaited) > 1:
                        self._tell()
                    if self._may_end():
                        self._sleep.end()
        finally:
            self._awaited.remove(awaited)
            self._watch(is_watched=True)
            self._receiving.release()

    def _watch(self, *, is_watched: bool) -> None:
        """Whether what comes wakes the group's own thread."""
        with self._lock:
            if not self._generation.is_over:
                self._sleep.watch(is_watched=is_watched)

    def _be_told(self, is_there: Callable[[], bool], deadline: float, deferred: Deferred) -> None:
        """Another thread receives; or nothing comes any more."""
        told = threading.Event()
        awaited = is_there, told.set
        self._awaited.append(awaited)
        try:
            while not is_there() and (left_s := deadline - time.monotonic()) > 0:
                with deferred.lifted():
                    told.wait(min(left_s, LOOK_S))
        finally:
            self._awaited.remove(awaited)

    def _tell(self) -> None:
        """Tell those who wait for something that is there now; who calls this has the turn."""
        for is_there, tell in tuple(self._awaited):
            if is_there():
                tell()

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            with self._turn:
                self._generation.begin()
                sleep_s = self._sleep_s()
            asks_at = 0.0
            while not self._may_end():
                self._sleep.sleep(sleep_s)
                with self._turn:
                    self._take()
                    while self._requests:
                        self._requests.popleft()()
                    now = time.monotonic()
                    self.member.expire(now)
                    if now >= asks_at:
                        self._generation.ask()
                        asks_at = now + AGAIN_S
                    self._tell()
                    sleep_s = self._sleep_s()
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._end()

    def _take(self) -> None:
        """Take all messages that are there; who calls this has the turn."""
        if self._generation.is_over:
            return
        for event in self._generation.carrier.receive(0):
            self._generation.take(event)

    def _fail(self, error: BaseException) -> None:
        self.member.fail(f"the thread of the process group has failed: {error!r}")

    def _end(self) -> None:
        with self._turn, self._lock:
            self._generation.end()  # from now on nobody receives
        self._receivers_sleep.end()
        # What was asked for too late to be begun.
        self.member.fail("the process group has ended")
        while self._requests:
            self._requests.popleft()()
        self._tell()

    def _may_end(self) -> bool:
        if self._leaves_until is None:
            return False
        return self.member.membership.may_go or time.monotonic() >= self._leaves_until

    def _sleep_s(self) -> float:
        now = time.monotonic()
        until = min(self.member.next_deadline(), self._leaves_until or math.inf, now + LOOK_S)
        self._sleeps_until = now if self._requests else until
        return max(0.0, self._sleeps_until - now)


class _Sleep:
    """Where a thread waits for what the carrier can receive."""

    def __init__(self, carrier: HostCarrier) -> None:
        self._carrier = carrier.fileno()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._carrier, select.EPOLLIN)
        self._epoll.register(self._wake, select.EPOLLIN)

    def sleep(self, longest_s: float) -> None:
        """Until there may be something, or somebody ends it."""
        for descriptor, _ in self._epoll.poll(longest_s):
            if descriptor == self._wake:
                os.eventfd_read(self._wake)

    def end(self) -> None:
        """Let ``sleep`` return, now or as soon as it is called; from any thread."""
        os.eventfd_write(self._wake, 1)

    def watch(self, *, is_watched: bool) -> None:
        """Whether what comes ends the sleep; from any thread, also for one that lasts."""
        self._epoll.modify(self._carrier, select.EPOLLIN if is_watched else 0)

    def __del__(self) -> None:
        self._epoll.close()
        os.close(self._wake)
