"""Interrupts: when signals may interrupt a backward, and how long it waits after a Ctrl-C.

A signal handler may raise (that of Ctrl-C does), or call ``backward()`` itself. It may interrupt
sleep of a session and user code. It is deferred while a message is handled, and while ``.grad`` is
changed, which happens completely or not at all.
"""

from __future__ import annotations

# The module behind ``signal``, whose functions look up an enum for each handler (slow).
import _signal  # type: ignore[import-not-found]
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import FrameType, TracebackType
from typing import Any, TypeAlias

from mpgrad.base.standard_streams import say

#: Milliseconds after Ctrl-C that running tasks have, and after which a caller that has heard
#: nothing of their end stops waiting.
GRACE_MS, PATIENCE_MS = 1000, 1400

Handler: TypeAlias = Callable[[int, FrameType | None], Any]
#: A call of a handler; or a Ctrl-C that has interrupted user code, for the graph around it.
Pending: TypeAlias = tuple[Handler, int, FrameType | None] | KeyboardInterrupt

#: The signals that may have a handler, except faults, which cannot be deferred.
_SIGNALS = tuple(
    int(number)
    for number in signal.Signals
    if number
    not in (
        signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL,
    )
)  # fmt: skip


def interrupts_deferred() -> Deferred:
    """Defer signals until the end of the block."""
    return Deferred(Interrupts())


class Interrupts:
    """One per session. It does nothing outside the main thread, which alone gets signals.

    Args:
        clock: the time in seconds.
    """

    #: The instance whose ``deferred`` the main thread is in, the outermost one.
    _owner: Interrupts | None = None

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._may_strike = False
        #: The handlers to call, or exceptions to raise, as soon as they may interrupt.
        self._pending: list[Pending] = []
        #: The user's handlers while this object has replaced them.
        self._handlers: dict[int, Handler] = {}
        #: The time of the first Ctrl-C since no graph was running, and whether it was reported.
        self._since_s: float | None = None
        self._is_stopping = False
        #: Of another engine whose task runs this session's graph: it gets the signals.
        self._outer: Interrupts | None = None

    # ------------------------------------------------------------------ when it may interrupt

    def deferred(self) -> Deferred:
        """Defer signals while messages are handled."""
        return Deferred(self)

    def _take_over(self) -> None:
        self._handlers = _handlers()
        for number in self._handlers:
            _signal.signal(number, self._arrive)

    def _give_back(self) -> None:
        for number, handler in self._handlers.items():
            if _signal.getsignal(number) == self._arrive:  # else user code has set another one
                _signal.signal(number, handler)

    def allowed(self) -> AbstractContextManager[None]:
        """Allow signals during the sleep."""
        return _Allowed(self)

    def user_code(self) -> AbstractContextManager[None]:
        """While a task of the client runs the user's code; its graph has to end, too."""
        return _UserCode(self)

    def _note(self, interrupt: KeyboardInterrupt) -> None:
        """It has struck the user's code."""
        (self._outer or self)._pending.append(interrupt)

    def _strike(self) -> None:
        """Call the pending handlers that may interrupt, in order, also after one that raises."""
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
        if Interrupts._owner is not self:  # user code found this handler and set it again
            self._handlers[number](number, frame)
            return
        if number == signal.SIGINT:
            if self._since_s is None:
                self._since_s = self._clock()
            if any(_is_ctrl_c(pending) for pending in self._pending):
                return
        self._pending.append((self._handlers[number], number, frame))
        if self._may_strike:
            # It may interrupt at the place where this would be restored.
            self._may_strike = False
            self._strike()
            self._may_strike = True

    # ------------------------------------------------------------------ the time that is left

    def begin_to_stop(self, cause: BaseException) -> int:
        """Record that ``cause`` has interrupted; return the milliseconds left for running tasks.

        A Ctrl-C is reported once. From now on only another one interrupts, until all has ended.
        """
        owner = self._outer or self
        if owner._since_s is None:
            owner._since_s = self._clock()  # a handler of the user raised it
        is_news, owner._is_stopping = not owner._is_stopping, True
        if is_news and isinstance(cause, KeyboardInterrupt):
            say(
                f"stopping: running tasks have {GRACE_MS / 1000:g} s, then their workers are "
                "replaced (press Ctrl-C again to stop at once)"
            )
        return max(0, GRACE_MS - owner._age_ms())

    @property
    def patience_ms(self) -> int | None:
        """The longest wait for the end; None while nothing is being stopped."""
        owner = self._outer or self
        return max(0, PATIENCE_MS - owner._age_ms()) if owner._is_stopping else None

    def forget(self) -> None:
        """No graph is running any more."""
        self._since_s, self._is_stopping = None, False

    def _age_ms(self) -> int:
        return 0 if self._since_s is None else int((self._clock() - self._since_s) * 1000)


# These are entered several times in each backward, so they are no generators.


class Deferred(AbstractContextManager["Deferred"]):
    """See ``Interrupts.deferred``."""

    __slots__ = ("_interrupts", "_is_on_main_thread", "_outer", "_owner", "_struck")

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        #: Whose signals are deferred for longer than this block; None if it is the outermost one.
        self._owner: Interrupts | None = None

    def __enter__(self) -> Deferred:
        interrupts = self._interrupts
        self._outer = interrupts._outer
        self._is_on_main_thread = threading.current_thread() is threading.main_thread()
        if not self._is_on_main_thread:
            # Perhaps a helper thread, for which the main thread waits in user code.
            self._owner = interrupts
        elif Interrupts._owner is not None:
            self._owner = Interrupts._owner
            interrupts._outer = None if self._owner is interrupts else self._owner
        else:
            Interrupts._owner = interrupts
            interrupts._take_over()
            self._struck = True
            return self
        self._struck, self._owner._may_strike = self._owner._may_strike, False
        return self

    def lifted(self) -> AbstractContextManager[None]:
        """Within the block: allow what was allowed before it."""
        return self._interrupts.allowed() if self._struck else nullcontext()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        interrupts, owner = self._interrupts, self._owner
        if owner is None:
            interrupts._give_back()
            Interrupts._owner = None
            interrupts._strike()
            return
        interrupts._outer = self._outer
        owner._may_strike = self._struck
        if self._struck and self._is_on_main_thread and kind is None:
            owner._strike()


class _Allowed(AbstractContextManager[None]):
    """See ``Interrupts.allowed``."""

    __slots__ = ("_interrupts", "_struck")

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts

    def __enter__(self) -> None:
        while self._interrupts._outer is not None:
            self._interrupts = self._interrupts._outer
        interrupts = self._interrupts
        self._struck = interrupts._may_strike
        try:
            # A signal interrupts the main thread, not the sleep of a helper thread. This must come
            # before the check below: a signal in between would wait until the sleep ends.
            interrupts._may_strike = threading.current_thread() is threading.main_thread()
            interrupts._strike()
        except BaseException:
            interrupts._may_strike = self._struck
            raise

    def __exit__(self, *_: object) -> None:
        self._interrupts._may_strike = self._struck


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
    """The user's handlers: neither the default nor "ignore". Do not change the dictionary.

    Each backward asks for them, and they are nearly always the same.
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
