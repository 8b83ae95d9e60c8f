"""fork() and wait(): one call that runs while the caller goes on."""

from __future__ import annotations

import concurrent.futures
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from mpgrad.autograd.running import engine_slot
from mpgrad.base.user_frames import level_of_caller
from mpgrad.calls.array_library import ArrayLibrary
from mpgrad.calls.call import failure_noted
from mpgrad.calls.own_tensors import LIBRARY
from mpgrad.engine.calls_in_workers import Answered, depth_of_calls
from mpgrad.engine.engine import current_engine
from mpgrad.engine.submitter import OF_PARENT, Submission, has_lock, is_serving_thread
from mpgrad.errors import EngineClosed
from mpgrad.parallel import placing
from mpgrad.parallel.buffers_of_forks import BuffersOfFork
from mpgrad.parallel.calls_of_map import CallsOfMap

#: The states of a Future that has a result, or will have none.
_ENDED = frozenset({"FINISHED", "CANCELLED", "CANCELLED_AND_NOTIFIED"})


class ForkFuture(concurrent.futures.Future[Any]):
    """The result of a fork, which may not be there yet.

    It is a ``concurrent.futures.Future``: ``add_done_callback``, ``as_completed``,
    ``asyncio.wrap_future`` and waiting in any thread work. ``cancel()`` is True only before the
    call has been sent to a worker.
    """

    #: Whether somebody has asked for the result, or will: then a failure needs no warning.
    is_asked_for = False
    #: The buffers that it reaches; None: it has run at once.
    buffers: BuffersOfFork | None = None
    #: Says that nobody wants the result any more, see ``Submitter.stop``.
    stop: Callable[[int | None], None] = staticmethod(lambda grace_ms: None)

    def __init__(self) -> None:
        super().__init__()
        self._pid = os.getpid()
        frame = sys._getframe(level_of_caller() - 1)
        #: The user's line that has begun it.
        self._place = frame.f_code.co_filename, frame.f_lineno

    def result(self, timeout: float | None = None) -> Any:
        """The result, when it is there.

        Raises:
            BaseException: what the call has raised.
            TimeoutError: it has not ended after ``timeout`` seconds.
            concurrent.futures.CancelledError: it was cancelled.
            EngineClosed: it runs in the parent of this process, which was forked meanwhile.
            RuntimeError: a callback of another fork waits for this one, which runs still; or a
                signal handler that has interrupted ``fork``.
        """
        self._ask()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the call has raised, when it has ended; None: nothing."""
        self._ask()
        return super().exception(timeout)

    wait = result

    def _ask(self) -> None:
        self.is_asked_for = True
        if self.buffers is not None:
            self.buffers.ask()
        # Not done(): a thread of the parent may have held the lock.
        if self._state not in _ENDED and self._pid != os.getpid():
            raise EngineClosed(OF_PARENT)
        if has_lock() and not self.done():
            raise RuntimeError(
                "a signal handler waits for a fork, and has interrupted what hands forks over, so "
                "this one cannot end meanwhile. Let the handler set a flag, and wait elsewhere"
            )
        if is_serving_thread() and not self.done():
            raise RuntimeError(
                "a callback of a fork waits for another fork, which cannot end meanwhile: "
                "callbacks run in the thread that receives all results. Give that one a "
                "callback, too, or wait in another thread"
            )

    def __del__(self) -> None:
        if self.is_asked_for or not self.done() or self.cancelled() or sys.is_finalizing():
            return
        error = super().exception()
        if error is not None:
            text = (
                "a fork has failed, and nobody has asked for its result: "
                f"{type(error).__name__}: {error}"
            )
            # Not the line that runs now, perhaps on the thread that serves forks.
            warnings.warn_explicit(text, RuntimeWarning, *self._place)


def fork(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> ForkFuture:
    """Begin ``fn(*args, **kwargs)`` in a worker, recorded there, and go on.

    What travels, what is an error and where the backward runs is as in ``parallel_map``. With
    ``Engine("local")``, and inside another branch, it runs at once.

    Args:
        fn: any callable.
        args, kwargs: its arguments; do not change tensors among them before the call has ended.

    Returns:
        A Future; ``mg.wait(future)`` is ``future.result()``.

    Raises:
        TypeError: something cannot be pickled; the error names it.
    """
    return fork_of(LIBRARY, fn, args, kwargs)


def fork_of(
    library: ArrayLibrary,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    seed: tuple[int, int, int] | None = None,
    begins: Callable[[ForkFuture], None] = lambda future: None,
) -> ForkFuture:
    """``fork`` for the tensors of ``library``.

    Args:
        library, fn, args, kwargs: see there.
        seed: as for ``CallsOfMap``.
        begins: is told the Future before the call goes to a worker.
    """
    if not callable(fn):
        raise TypeError(f"fn must be callable, not {type(fn).__name__}")
    future = ForkFuture()
    if engine_slot.is_inside_rule():
        _run_now(future, lambda: fn(*args, **kwargs))
        return future
    made = CallsOfMap(library, fn, [args], (), kwargs, [range(1)], is_sum=False, seed=seed)
    future.buffers = made.begin_fork()
    if not _is_for_workers(made):
        _run_now(future, failure_noted(made.name)(lambda: made.run_here()[0]))
        return future
    _submit(made, future, begins)
    return future


def wait(future: concurrent.futures.Future[Any]) -> Any:
    """The result of a fork: as ``future.result()``.

    Raises:
        TypeError: ``future`` is none.
        BaseException: what the call has raised.
    """
    if not isinstance(future, concurrent.futures.Future):
        raise TypeError(f"wait() takes the Future of a fork, not {type(future).__name__}")
    return future.result()


def _is_for_workers(made: CallsOfMap) -> bool:
    if made.is_on_gpu:
        return False
    mode = placing.mode()
    if mode != "auto":
        return mode == "process"
    execution = current_engine().execution_for_calls()
    # Several forks are under way at a time, as a rule.
    is_worth_it = placing.is_worth_it(made.key, execution.workers, execution.workers)
    return is_worth_it and execution.start_for_calls()


def _run_now(future: ForkFuture, run: Callable[[], Any]) -> None:
    future.set_running_or_notify_cancel()
    try:
        future.set_result(run())
    except Exception as error:
        future.set_exception(error)


def _submit(made: CallsOfMap, future: ForkFuture, begins: Callable[[ForkFuture], None]) -> None:
    execution = current_engine().execution_for_calls()
    # The Node is made when the answer comes, on another thread, but stands here in the program.
    place = made.place()
    versions = made.versions()
    made.take_own_memory()

    def end(answered: Sequence[Answered] | BaseException) -> None:
        try:
            if isinstance(answered, BaseException):
                raise answered
            ended = execution.ended_branches
            result = made.result_of(answered[0], ended, place, versions)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    submission = Submission(
        [made.request(0)],
        made.captured,
        made.keep,
        depth_of_calls(),
        future.set_running_or_notify_cancel,
        end,
    )
    future.stop = submission.stopping(execution.submitter)
    begins(future)
    execution.submitter.submit(submission)
