"""Interrupts: where signals may strike in a backward, and what time is left after a Ctrl-C.

A handler of the user's may raise (that of Ctrl-C does), or call ``backward()`` itself. It breaks
the sleep of a session and the user's own code. It waits while a message is handled, and while
``.grad`` is changed, which happens whole or not.
"""

from __future__ import annotations

# What ``signal`` wraps: its own functions look up an enum for each handler, 20 us a backward.
import _signal  # type: ignore[import-not-found]
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType, TracebackType
from typing import Any, TypeAlias

from mpgrad.base.standard_streams import say

#: Milliseconds since Ctrl-C that tasks get which are running, and after which a caller who has
#: heard nothing of their end waits no longer.
GRACE_MS, PATIENCE_MS = 1000, 1400

Handler: TypeAlias = Callable[[int, FrameType | None], Any]
#: A call of a handler; or a Ctrl-C that has struck the user's code, for the graph that it was in.
Pending: TypeAlias = tuple[Handler, int, FrameType | None] | KeyboardInterrupt

#: Those that may have a handler, but for faults, which cannot wait.
_SIGNALS = tuple(
    int(number)
    for number in signal.Signals
    if number
    not in (
        signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL,
    )
)  # fmt: skip


def interrupts_deferred() -> AbstractContextManager[None]:
    """Let signals wait until the block is over."""
    return Interrupts().deferred()


class Interrupts:
    """One per session. Outside the main thread nothing is changed: signals strike that one.

    Args:
        clock: the time in seconds.
    """

    #: Whose ``deferred`` the main thread is in, outermost.
    _owner: Interrupts | None = None

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._may_strike = False
        #: What is to be called or raised as soon as it may strike.
        self._pending: list[Pending] = []
        #: The user's handlers, while this has taken their place.
        self._handlers: dict[int, Handler] = {}
        #: When the first one came since no graph was running (seconds), and whether that was said.
        self._since_s: float | None = None
        self._is_stopping = False
        #: Another engine's, whose task this session's graph is part of: signals go there.
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
        owner = Interrupts._owner
        if owner is not None:
            with owner._striking(False), self._inside(owner):
                yield
            if owner._may_strike:
                owner._strike()
            return
        Interrupts._owner = self
        self._take_over()
        try:
            yield
        finally:
            self._give_back()
            Interrupts._owner = None
            self._strike()

    def _take_over(self) -> None:
        self._handlers = _handlers()
        for number in self._handlers:
            _signal.signal(number, self._arrive)

    def _give_back(self) -> None:
        for number, handler in self._handlers.items():
            if _signal.getsignal(number) == self._arrive:  # else the user's code has set another
                _signal.signal(number, handler)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """During the sleep."""
        if self._outer is not None:
            with self._outer.allowed():
                yield
            return
        # A signal strikes the main thread, which a helper thread's sleep is none of. Before the
        # question below: one that came in between would wait until the sleep is over.
        with self._striking(threading.current_thread() is threading.main_thread()):
            self._strike()
            yield

    def user_code(self) -> AbstractContextManager[None]:
        """While a task of the client runs the user's code; its graph has to end, too."""
        return _UserCode(self)

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

    def _note(self, interrupt: KeyboardInterrupt) -> None:
        """It has struck the user's code."""
        (self._outer or self)._pending.append(interrupt)

    def _strike(self) -> None:
        """Call what waits and may strike, in order, also what is behind one that raises."""
        for pending in list(self._pending):
            # A handler may run a backward, in which those behind it strike.
            is_due = any(other is pending for other in self._pending)
            if is_due and (not self._is_stopping or _is_ctrl_c(pending)):
                self._pending.remove(pending)
                try:
                    if isinstance(pending, KeyboardInterrupt):
                        raise pending
                    handler, number, frame = pending
                    handler(number, frame)
                except BaseException:
                    self._strike()
                    raise

    def _arrive(self, number: int, frame: FrameType | None) -> None:
        if Interrupts._owner is not self:  # put back by user code that had found it in force
            self._handlers[number](number, frame)
            return
        if number == signal.SIGINT:
            if self._since_s is None:
                self._since_s = self._clock()
            if any(_is_ctrl_c(pending) for pending in self._pending):
                return
        self._pending.append((self._handlers[number], number, frame))
        if self._may_strike:
            # In case that it strikes where this would be put back.
            self._may_strike = False
            self._strike()
            self._may_strike = True

    # ------------------------------------------------------------------ what time is left

    def begin_to_stop(self, cause: BaseException) -> int:
        """``cause`` has struck; the milliseconds that running tasks have left.

        A Ctrl-C is said once. Only another one strikes from now on, until all has ended.
        """
        owner = self._outer or self
        if owner._since_s is None:
            owner._since_s = self._clock()  # a handler of the user's has raised it
        is_news, owner._is_stopping = not owner._is_stopping, True
        if is_news and isinstance(cause, KeyboardInterrupt):
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


class _UserCode(AbstractContextManager[None]):
    """See ``Interrupts.user_code``.

    No generator: ``contextlib`` would set the traceback of what the user raises, and a frozen
    dataclass refuses that.
    """

    __slots__ = ("_allowed", "_interrupts")

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts, self._allowed = interrupts, interrupts.allowed()

    def __enter__(self) -> None:
        try:
            self._allowed.__enter__()
        except KeyboardInterrupt as interrupt:
            self._interrupts._note(interrupt)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._allowed.__exit__(None, None, None)
        if isinstance(error, KeyboardInterrupt):
            self._interrupts._note(error)


#: What the signals had when it was asked last, and the handlers among that.
_last: tuple[list[Any], dict[int, Handler]] = ([], {})


def _handlers() -> dict[int, Handler]:
    """The handlers that are neither the system's nor say that a signal is ignored; not to change.

    They are asked for in each backward, and nearly always the same ones.
    """
    global _last
    found = list(map(_signal.getsignal, _SIGNALS))
    before, handlers = _last
    if found != before:
        pairs = zip(_SIGNALS, found, strict=True)
        handlers = {number: handler for number, handler in pairs if callable(handler)}
        _last = found, handlers
    return handlers


def _is_ctrl_c(pending: Pending) -> bool:
    return isinstance(pending, KeyboardInterrupt) or pending[1] == signal.SIGINT
