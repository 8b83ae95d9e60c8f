"""DerivativeTask: branches that a backward of torch differentiates in a worker, by one task.

As in mpgrad's own backward, branches that one task has recorded are differentiated by one task.
torch runs every BeginBranch that is ready before it waits for a branch. The last one of a task
submits it; if torch waits earlier, what has begun is submitted without the others.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from mpgrad.base.thread_state import PerThread
from mpgrad.calls.fork_function import Lifetime
from mpgrad.engine.calls_in_workers import Answered, Request, depth_of_calls
from mpgrad.engine.engine import current_engine
from mpgrad.engine.packed_arrays import PackedArrays
from mpgrad.engine.submitter import Submission
from mpgrad.wire.captured_state import capture_state


class Derived(Future[Any]):
    """The gradients of a branch, which may not be there yet.

    Attributes:
        stop: see ``Submitter.stop``.
    """

    stop: Callable[[int | None], None]


class _Key(NamedTuple):
    backward: int
    slot: int
    task: tuple[int, int]


class _Waiting(PerThread):
    """The tasks that wait for more branches. The Futures of these keep them."""

    def __init__(self) -> None:
        self.tasks: weakref.WeakValueDictionary[_Key, DerivativeTask]
        self.tasks = weakref.WeakValueDictionary()


_waiting = _Waiting()


class DerivativeTask:
    """The derivatives that one task computes."""

    def __init__(self, key: _Key) -> None:
        self._key, self._execution = key, current_engine().execution_for_calls()
        self._requests: list[Request] = []
        self._ends: list[Callable[[Answered | BaseException], None]] = []
        self._stop: Callable[[int | None], None] | None = None

    @classmethod
    def of(cls, backward: int, lifetime: Lifetime) -> DerivativeTask:
        """The task for a branch, in a backward with this number."""
        key = _Key(backward, lifetime.slot, lifetime.task)
        found = _waiting.tasks.get(key)
        if found is None:
            found = _waiting.tasks[key] = cls(key)
        return found

    def add(self, request: Request, end: Callable[[Answered | BaseException], None]) -> None:
        """Compute one more derivative; ``end`` gets its answer, or the exception."""
        self._requests.append(request)
        self._ends.append(end)
        _, count = self._key.task
        if len(self._requests) == count:
            self.submit()

    def submit(self) -> None:
        """Let them be computed; others will have another task."""
        _waiting.tasks.pop(self._key, None)
        submission = Submission(
            self._requests,
            capture_state(),
            PackedArrays(),
            depth_of_calls(),
            lambda: True,
            self._end,
        )
        self._stop = submission.stopping(self._execution.submitter)
        self._execution.submitter.submit(submission)

    def _end(self, found: Sequence[Answered] | BaseException) -> None:
        for at, end in enumerate(self._ends):
            end(found if isinstance(found, BaseException) else found[at])

    def stop(self, grace_ms: int | None) -> None:
        """Nobody will ask for any of them; see ``Submitter.stop``."""
        if self._stop is None:
            _waiting.tasks.pop(self._key, None)
        else:
            self._stop(grace_ms)


def submit_waiting(backward: int) -> None:
    """Submit what waits for more branches: the backward with this number waits itself."""
    for key, task in [*_waiting.tasks.items()]:
        if key.backward == backward:
            task.submit()
