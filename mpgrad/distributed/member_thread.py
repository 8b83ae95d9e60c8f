"""MemberThread: the thread of a process that belongs to a group: it waits for messages and time.

ZeroMQ's sockets belong to one thread. Here it is this one; all others hand it what they want done.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable

from mpgrad.distributed.group_member import Frames, GroupMember
from mpgrad.distributed.rendezvous import Meeting
from mpgrad.wire.host_carrier import CarrierEvent, HostArrival, HostDisconnected

#: Seconds that a rank which leaves waits until the others have read its farewell, and with it all
#: that it has sent before.
FAREWELL_S_MAX = 5.0


class MemberThread:
    """Runs one GroupMember on one carrier.

    Args:
        rank: of the world.
        meeting: the ranks; its carrier belongs to this thread from now on.
    """

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self._labels = meeting.labels
        self._rank_of_label = {label: k for k, label in enumerate(meeting.labels)}
        self._rank_of_name = {name: k for k, name in enumerate(meeting.names)}
        self._early = meeting.early
        self._carrier = meeting.carrier
        self.member = GroupMember(rank, len(self._labels), self._send)
        self._requests: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._leaves_until: float | None = None
        self._is_over = False
        #: Frames of processes that are no members.
        self.ignored = 0
        self._thread = threading.Thread(target=self._run, name="mpgrad-group", daemon=True)
        self._thread.start()

    def ask(self, request: Callable[[], None]) -> None:
        """Have ``request`` called on the thread.

        Raises:
            RuntimeError: it has ended.
        """
        with self._lock:
            if self._is_over:
                raise RuntimeError("the process group has ended")
            self._requests.append(request)
            self._carrier.wake()

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
            for arrival in self._early:
                self._take(arrival)
            while not self._may_end():
                for event in self._carrier.receive(self._timeout_ms()):
                    self._take(event)
                while self._requests:
                    self._requests.popleft()()
                self.member.expire(time.monotonic())
        except BaseException as error:
            text = f"the thread of the process group has failed: {error!r}"
            self.member.fail(text)
            raise
        finally:
            with self._lock:
                self._is_over = True
                self._carrier.close(0)
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

    def _take(self, event: CarrierEvent) -> None:
        if isinstance(event, HostArrival):
            sender = self._rank_of_name.get(event.sender)
            if sender is None:
                self.ignored += 1
            else:
                self.member.handle(sender, event.frames)
        elif isinstance(event, HostDisconnected):
            self._lose(event.peer, event.cause)
        else:
            self._lose(event.peer, "it cannot be reached")

    def _lose(self, label: str, cause: str) -> None:
        rank = self._rank_of_label.get(label)
        if rank is not None:
            self.member.disconnected(rank, cause)

    def _send(self, rank: int, frames: Frames) -> None:
        if not self._is_over:
            self._carrier.send(self._labels[rank], frames)
