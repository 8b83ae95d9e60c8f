"""Operation: one rank's part in one collective; Work: what its caller waits for."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import numpy as np

from mpgrad.distributed.carrier.messages import cut
from mpgrad.distributed.futures import Future
from mpgrad.distributed.states.collective_state import CollectiveState
from mpgrad.distributed.states.reduction_tree import ADD_RIGHT, REPLACE, Receive, Send, Step

#: MemberThread.wait_until.
WaitUntil = Callable[[Callable[[], bool], float | None], bool]
#: Two flat arrays and the one that gets the result, as NumPy's binary functions.
Combine = Callable[..., Any]
SaysLate = Callable[[float, Sequence[int]], str]
#: Into how many equal segments an array is cut, or where each begins, and the end of the last one.
Cuts: TypeAlias = int | Sequence[int]


def timed_out(timeout_s: float, missing: Sequence[int]) -> str:
    """What to say of ranks that have not come in time."""
    return f"Timed out waiting {1000 * timeout_s:.0f}ms for rank {', '.join(map(str, missing))}"


class Work:
    """What an asynchronous collective gives: wait for it, or ask whether it is done."""

    def __init__(self, what: str, finish: Callable[[], None] | None = None) -> None:
        self.what = what
        self._is_over = False
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        #: Puts the result into the caller's tensors; called once, by who asks first.
        self._finish = finish
        #: What it fills: a tensor, or a list of tensors.
        self.outputs: list[Any] = []
        #: Of a receive, the rank of the world whose tensor has come; -1 before, and otherwise.
        self.sender = -1
        #: How to wait for the end; None until a group has begun it.
        self.wait_until: WaitUntil | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end; the tensors have their values from here on.

        Args:
            timeout: how long; by default the group's.

        Raises:
            TimeoutError: ``timeout`` has passed; the operation goes on.
            HostLost: a rank is lost.
            CollectiveTimeout: it took too long.
            RuntimeError: the ranks do not do the same.
        """
        if not self._is_over_after(None if timeout is None else timeout.total_seconds()):
            raise TimeoutError(f"{self.what} is not complete after {timeout}")
        if self._error is not None:
            raise self._error
        self._finish_once()
        return True

    def is_completed(self) -> bool:
        """Whether it is over, well or not."""
        if self.is_success():
            self._finish_once()
        return self._is_over

    def is_success(self) -> bool:
        """Whether it is over and went well."""
        return self._is_over and self._error is None

    def exception(self) -> BaseException | None:
        """What went wrong; None if nothing has."""
        return self._error

    def source_rank(self) -> int:
        """The rank of the world whose tensor has come, by ``irecv``; -1 before."""
        return self.sender

    _source_rank = source_rank

    def get_future(self) -> Future:
        """The future of the list of what it fills.

        Who first waits for it, or asks whether it is done, runs its callbacks. So the callbacks of
        several collectives run, and begin others, in one order on all ranks.
        """
        future, lock = Future(), threading.RLock()

        def settle(timeout: float | None) -> None:
            with lock:
                if future._is_done or not self._is_over_after(timeout):
                    return
                try:
                    self.wait()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(self.outputs)

        future._settle = settle
        return future

    def end(self, error: BaseException | None) -> None:
        """It is over; called by who has the turn of the group."""
        self._error = error
        self._is_over = True

    def _is_over_after(self, timeout_s: float | None) -> bool:
        """Whether it is over, after so many seconds at most."""
        if self._is_over:
            return True
        assert self.wait_until is not None
        return self.wait_until(lambda: self._is_over, timeout_s)

    def _finish_once(self) -> None:
        with self._lock:
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()


class Operation:
    """One rank's part in one collective.

    Args:
        what: the collective, its dtype and size, in words; equal on all ranks.
        steps: what this rank does, by ranks of the group.
        source: what is sent: flat and contiguous, cut into ``source_cuts`` equal segments, or at
            the places that it has.
        target: what is received, in the same way; may be ``source`` itself.
        combine: adds a received range to the own one.
        finish: called with nothing where the caller waits, once all steps are done.
        is_end: all ranks end with it what they run together.
        says_late: what to say of ranks that have not come within so many seconds.
    """

    def __init__(
        self,
        what: str,
        steps: Sequence[Step],
        source: np.ndarray[Any, Any],
        target: np.ndarray[Any, Any],
        *,
        source_cuts: Cuts = 1,
        target_cuts: Cuts = 1,
        combine: Combine = np.add,
        finish: Callable[[], None] | None = None,
        is_end: bool = False,
        says_late: SaysLate = timed_out,
    ) -> None:
        self.what, self.is_end, self.says_late = what, is_end, says_late
        self.state = CollectiveState(steps)
        self.work = Work(what, finish)
        self._source, self._target = source, target
        self._source_cuts, self._target_cuts = source_cuts, target_cuts
        self._combine = combine
        #: How long it may take; when, on the member's clock, it has failed, and when it asks whom
        #: it waits for.
        self.timeout_s = self.deadline = self.asks_at = math.inf
        #: What has come and waits for its step: frames by (peer, phase).
        self.waiting: dict[tuple[int, int], list[memoryview]] = {}

    def outgoing(self, step: Send) -> list[Any]:
        """The frames of a step's bytes, as they are now."""
        part = _range(self._source, step, self._source_cuts)
        return cut(part.copy().view(np.uint8).data)

    def join(self, step: Receive, frames: Sequence[memoryview]) -> None:
        """Join what came with the rank's own.

        Raises:
            ValueError: it has not the length that it should have.
        """
        mine = _range(self._target, step, self._target_cuts)
        if sum(map(len, frames)) != mine.nbytes:
            raise ValueError(f"{sum(map(len, frames)):,} bytes came, not {mine.nbytes:,}")
        at = 0
        for frame in frames:
            theirs = np.frombuffer(frame, mine.dtype)
            part = mine[at : at + len(theirs)]
            if step.join == REPLACE:
                part[:] = theirs
            elif step.join == ADD_RIGHT:
                self._combine(part, theirs, out=part)
            else:
                self._combine(theirs, part, out=part)
            at += len(theirs)


def _range(array: np.ndarray[Any, Any], step: Step, cuts: Cuts) -> np.ndarray[Any, Any]:
    """The elements of the segments of ``step``."""
    if not isinstance(cuts, int):
        return array[cuts[step.first] : cuts[step.last]]
    length = len(array)
    return array[step.first * length // cuts : step.last * length // cuts]
