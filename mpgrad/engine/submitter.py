"""Submitter: submits calls for which nobody waits yet, and says how they have ended.

One thread owns a session as long as any of these calls is under way. It is the only thread beside
the callers' own that talks to the coordinator.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from mpgrad.base.thread_state import PerThread
from mpgrad.calls.call import FAILED, Derivative
from mpgrad.engine.calls_in_workers import (
    Answered,
    Request,
    messages_of,
    no_client_task,
    opened,
    tasks_of,
    times_of,
    warn,
)
from mpgrad.engine.failure import error_of_calls
from mpgrad.engine.packed_arrays import PackedArrays
from mpgrad.engine.session import Session, next_graph_number
from mpgrad.engine.session_pool import SessionPool
from mpgrad.errors import BytesCorrupted, CoordinatorLost, EngineClosed, MpgradError
from mpgrad.scheduler.events import ANY_SLOT
from mpgrad.scheduler.instructions import CompleteGraph
from mpgrad.wire.captured_state import CapturedState

#: The calls under way for each worker; later ones wait here, where they can be cancelled.
AHEAD = 4
#: Seconds that the thread waits for another call before it ends.
IDLE_S = 10.0
#: Seconds that an engine which is closed waits for the end of the thread.
END_S_MAX = 10.0
#: What a forked child is told of calls that were under way.
OF_PARENT = "the call ran in the parent of this process, which alone has its result"
#: What is told of a call that was stopped.
UNWANTED = "nobody wanted the call any more"
#: What is told of a call that an engine was running, or was to run, when it was closed.
CLOSED = (
    "the engine was closed before {what} had ended. Wait for all forks and backwards before the "
    "end of its `with` block, or before its close()"
)


class _Serving(PerThread):
    is_here = False
    #: Whether this thread holds the lock that the serving thread needs.
    has_lock = False


_serving = _Serving()


@contextlib.contextmanager
def serving_here() -> Iterator[None]:
    """Let the calling thread be one that serves calls."""
    _serving.is_here = True
    try:
        yield
    finally:
        _serving.is_here = False


def is_serving_thread() -> bool:
    """Whether the calling thread is the one that serves calls: it must wait for none of them."""
    return _serving.is_here


def has_lock() -> bool:
    """Whether the calling thread is inside ``submit`` or ``stop``: a signal handler, which must
    wait for no call then."""
    return _serving.has_lock


@contextlib.contextmanager
def _noted(condition: threading.Condition) -> Iterator[None]:
    """Hold the lock of ``condition``, as ``has_lock`` says."""
    before, _serving.has_lock = _serving.has_lock, True
    try:
        with condition:
            yield
    finally:
        _serving.has_lock = before


class Stopper(Protocol):
    """Who runs submissions."""

    def stop(self, submission: Submission, grace_ms: int | None) -> object:
        """See ``Submitter.stop``."""


@dataclass(eq=False)
class Submission:
    """Calls that one task runs, and who wants to know how they end.

    Attributes:
        requests: the calls.
        captured, keep: see ``run_calls``.
        depth: see ``depth_of_calls``.
        begin: is asked before they are sent: False drops them.
        end: gets what each has given, or the exception of the first that has raised.
    """

    requests: Sequence[Request]
    captured: CapturedState
    keep: PackedArrays
    depth: int
    begin: Callable[[], bool]
    end: Callable[[Sequence[Answered] | BaseException], None]
    recoveries: int = 0
    is_begun: bool = False

    def begins(self) -> bool:
        """Whether somebody still wants the call, which begins now or has begun before."""
        self.is_begun = self.is_begun or self.begin()
        return self.is_begun

    def stopping(self, submitter: Stopper) -> Callable[[int | None], None]:
        """``submitter.stop`` of this call, which keeps neither alive."""
        known, runs = weakref.ref(self), weakref.ref(submitter)

        def stop(grace_ms: int | None) -> None:
            submission, submitter = known(), runs()
            if submission is not None and submitter is not None:
                submitter.stop(submission, grace_ms)

        return stop

    @property
    def name(self) -> str:
        """For errors."""
        call = self.requests[0].call
        return call.call.backward_in_words if isinstance(call, Derivative) else call.name

    def closed(self) -> EngineClosed:
        """The error of one that had not ended when its engine was closed."""
        is_forward = not isinstance(self.requests[0].call, Derivative)
        return EngineClosed(CLOSED.format(what=f"{'the call of ' * is_forward}{self.name}"))

    def fail(self, error: BaseException) -> None:
        """End with ``error``, unless it was cancelled before it began."""
        if self.begins():
            self.tell(error)

    def drop(self) -> None:
        """It will not run, or not again: only of one that has begun somebody waits for the end."""
        if self.is_begun:
            self.tell(EngineClosed(UNWANTED))

    def tell(self, found: Sequence[Answered] | BaseException) -> None:
        """Say how they have ended. What a callback of its Future raises (SystemExit, which a Future
        lets pass) ends neither the thread that serves all calls nor another call."""
        if isinstance(found, BaseException):
            call = self.requests[0].call
            FAILED.add(call.call.name if isinstance(call, Derivative) else call.name)
        try:
            self.end(found)
        except BaseException as error:
            args = type(error), error, error.__traceback__, threading.current_thread()
            threading.excepthook(threading.ExceptHookArgs(args))


class Submitter:
    """The calls of one engine for which nobody waits yet. Thread-safe.

    Args:
        sessions: of the engine.
        may_run_again: whether a call may run again after its coordinator died, after so many
            times.
    """

    def __init__(
        self,
        sessions: SessionPool,
        may_run_again: Callable[[CoordinatorLost, int], bool],
    ) -> None:
        self._sessions, self._may_run_again = sessions, may_run_again
        self._condition = threading.Condition()
        self._queue: deque[Submission] = deque()
        self._running: dict[int, Submission] = {}
        self._to_stop: deque[tuple[Submission, int | None]] = deque()
        self._thread: threading.Thread | None = None
        self._wake_fd = -1

    def submit(self, submission: Submission) -> None:
        """Let a call run as soon as there is room."""
        with _noted(self._condition):
            self._queue.append(submission)
            if self._thread is None:
                try:
                    self._start()
                except BaseException:
                    self._queue.clear()  # it is the only one, and the caller is told
                    raise
            else:
                os.eventfd_write(self._wake_fd, 1)
                self._condition.notify()

    def _start(self) -> None:
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        args = weakref.ref(self), self._condition, self._wake_fd
        thread = threading.Thread(target=_serve, args=args, name="mpgrad-submitter", daemon=True)
        try:
            thread.start()
        except BaseException:
            os.close(self._wake_fd)
            raise
        self._thread = thread

    def stop(self, submission: Submission, grace_ms: int | None) -> bool:
        """Nobody wants a call any more. One that runs may end; after ``grace_ms`` milliseconds its
        worker is replaced. True: it had not begun, and nobody is told how it ends."""
        with _noted(self._condition):
            is_waiting = submission in self._queue
            if is_waiting:
                self._queue.remove(submission)
            elif self._thread is not None:
                self._to_stop.append((submission, grace_ms))
                os.eventfd_write(self._wake_fd, 1)
        if is_waiting:
            submission.drop()
        return is_waiting and not submission.is_begun

    def close(self) -> None:
        """End the calls that nobody will answer any more: the engine has been closed."""
        with self._condition:
            waiting = [*self._queue]
            self._queue.clear()
        for submission in waiting:
            submission.fail(submission.closed())
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            with self._condition:
                self._condition.notify()
            thread.join(timeout=END_S_MAX)

    def abandon(self) -> list[Submission]:
        """In a forked child, which has neither the thread nor the processes: what was under way."""
        return [*self._running.values(), *self._queue]

    # ------------------------------------------------------------------ the thread

    def goes_on(self, *, is_over: bool) -> bool:
        """Whether the thread has work, or waits for a call. It has the lock.

        Args:
            is_over: whether it has waited long enough.
        """
        if self._queue or not (is_over or self._sessions.is_closed):
            return True
        self._thread = None
        return False

    def serve(self) -> None:
        """Run the calls that wait, and those that come meanwhile."""
        while self._queue:
            try:
                with self._sessions.session() as session:
                    session.watch(self._wake_fd)
                    try:
                        self._serve_session(session)
                    finally:
                        session.unwatch(self._wake_fd)
            except CoordinatorLost as lost:
                self._recover(lost)
            except BaseException as error:
                self._fail_all(error)

    def _serve_session(self, session: Session) -> None:
        while True:
            self._submit_waiting(session)
            if not self._running:
                return
            session.step()
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)
            while self._to_stop:
                stopped, grace_ms = self._to_stop.popleft()
                for number in [at for at, one in self._running.items() if one is stopped]:
                    session.cancel(number, grace_ms)
            for number in [*self._running]:
                self._look_at(number, session)

    def _submit_waiting(self, session: Session) -> None:
        while len(self._running) < AHEAD * session.workers:
            with self._condition:
                if not self._queue:
                    return
                submission = self._queue.popleft()
            if submission.begins():
                self._send(session, submission)

    def _send(self, session: Session, submission: Submission) -> None:
        number = next_graph_number()
        self._running[number] = submission  # whatever happens now is told to it
        submission.keep.engine_arena = self._sessions.coordinator.arena
        chunks, calls = [submission.requests], len(submission.requests)
        try:
            tasks = iter(
                [
                    *tasks_of(
                        chunks, submission.captured, submission.keep, self._sessions.initializer
                    )
                ]
            )
        except Exception as error:
            self._end(number, error)
            return
        messages = messages_of(
            tasks, 1, calls, session.peer, number, session.workers, submission.depth
        )
        session.submit(messages, no_client_task)

    def _look_at(self, number: int, session: Session) -> None:
        outcome = session.take_outcome(number)
        if outcome is None:
            return
        # It counts as running until it has been told: the coordinator may die before that.
        submission = self._running[number]
        kept, requests = session.kept_of(number), submission.requests
        ended = self._sessions.ended_branches
        if not isinstance(outcome, CompleteGraph):
            self._fail(number, error_of_calls(outcome, lambda _: submission.name))
            return
        warn(kept, lambda _: 0)
        took_us = times_of(outcome, [requests], session)
        try:
            found = opened(outcome.captures, took_us, self._sessions, session, [requests])
        except BytesCorrupted as error:
            self._fail(number, error)
            return
        pairs = [*zip(requests, found, strict=True)]
        ended.extend([at for one, gave in pairs for at in one.left_behind(gave.answer.slot)])
        if not any(gave.lacks_room for gave in found):
            self._end(number, found)
            return
        try:
            submission.requests = [
                one.with_room(gave.answer.nbytes, gave.answer.slot) if gave.lacks_room else one
                for one, gave in pairs
            ]
        except MpgradError as error:
            self._end(number, error)
        else:
            del self._running[number]
            self._send(session, submission)

    def _fail(self, number: int, error: BaseException) -> None:
        """End it with an error; nobody will ask for the branches that workers have recorded."""
        requests = self._running[number].requests
        branches = [(ANY_SLOT, at) for one in requests for at in one.recorded]
        self._sessions.ended_branches.extend(branches)
        self._end(number, error)

    def _end(self, number: int, found: Sequence[Answered] | BaseException) -> None:
        self._running.pop(number).tell(found)

    def _recover(self, lost: CoordinatorLost) -> None:
        running, self._running = [*self._running.values()], {}
        again = []
        for submission in running:
            if self._may_run_again(lost, submission.recoveries):
                submission.recoveries += 1
                again.append(submission)
            else:
                submission.tell(lost)
        with self._condition:
            self._queue.extendleft(reversed(again))

    def _fail_all(self, error: BaseException) -> None:
        with self._condition:
            failed = [*self._running.values(), *self._queue]
            self._running = {}
            self._queue.clear()
        is_closed = self._sessions.is_closed and isinstance(error, EngineClosed)
        for submission in failed:
            submission.fail(submission.closed() if is_closed else error)


def _serve(known: weakref.ref[Submitter], condition: threading.Condition, wake_fd: int) -> None:
    """What the thread does. While it waits for a call it does not keep the engine alive."""
    _serving.is_here = True
    is_over = False
    while (submitter := known()) is not None:
        with condition:
            if not submitter.goes_on(is_over=is_over):
                break
            if not submitter._queue:
                del submitter
                is_over = not condition.wait(IDLE_S)
                continue
        is_over = False
        submitter.serve()
    os.close(wake_fd)
