"""OwnCalls: the calls of this process that wait for an answer."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mpgrad.distributed.autograd.contexts import Contexts, DistAutogradContext, recording_in
from mpgrad.distributed.autograd.crossing import Recorded, arriving
from mpgrad.distributed.futures import Future
from mpgrad.distributed.group_member import Frames
from mpgrad.distributed.rpc.call_pickles import unpacked
from mpgrad.distributed.rpc.references import Home, PassedOn, References
from mpgrad.errors import HostLost
from mpgrad.graph.node import begin_sequence_at, upcoming_sequence_nr
from mpgrad.scheduler.hosts.incarnations import first_number
from mpgrad.scheduler.hosts.pending_calls import (
    CallAnswered,
    CalleeGone,
    CalleeReturned,
    CallEvent,
    CallMade,
    FailCall,
    PendingCalls,
    SendCall,
    TimePassed,
)
from mpgrad.scheduler.hosts.remote_values import Identity
from mpgrad.wire.hosts import Call, CallEnded, ForkReleased
from mpgrad.wire.remote_error import decode_error

NO_VALUE = (-1, -1)
NO_CONTEXT = -1


class Packed(NamedTuple):
    """What leaves for another process."""

    frames: Frames
    recorded: Recorded
    passed: Sequence[PassedOn]


#: Makes it of a value, for a rank, in a context.
Pack = Callable[[Any, str, int, DistAutogradContext | None], Packed]
#: Runs something, perhaps later.
Do = Callable[[Callable[[], None]], None]


class _Pending:
    """A call that waits for its answer.

    Attributes:
        context: in which it was made; its result belongs to it, too.
        home: where the value will be that it makes, if it makes one.
        packed: what it sends; nothing once it need not be sent again.
    """

    def __init__(
        self,
        head: Call,
        packed: Packed,
        to: int,
        what: str,
        context: DistAutogradContext | None,
        home: Home | None,
    ) -> None:
        self.head, self.to, self.what = head, to, what
        self.packed: Packed | None = packed
        self.context, self.home, self.future = context, home, Future()


class OwnCalls:
    """Those of one process. ``make`` is called on any thread, all else with the turn of the group.

    Args:
        rank: of this process.
        numbers: by rank, the number of its present process; the group's.
        contexts: of this process.
        references: of this process.
        pack: makes what a call sends.
        deliver: sends to a rank, this one included.
        do: runs with the turn of the group (MemberThread).
        run: runs on another thread.
    """

    def __init__(
        self,
        rank: int,
        numbers: list[int],
        contexts: Contexts,
        references: References,
        pack: Pack,
        deliver: Callable[[int, Call | ForkReleased, Frames], None],
        do: Do,
        run: Do,
    ) -> None:
        self._present, self._contexts, self._references = numbers, contexts, references
        self._pack, self._deliver, self._do, self._run = pack, deliver, do, run
        self._numbers = itertools.count(first_number(numbers[rank]))
        self._calls, self._pending = PendingCalls(numbers), dict[int, _Pending]()
        #: Why each rank was last lost; it may be back.
        self._causes: dict[int, str] = {}

    @property
    def count(self) -> int:
        """How many there are."""
        return self._calls.count

    def make(
        self,
        to: int,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        timeout_s: float,
        value: Identity = NO_VALUE,
        fork: Identity = NO_VALUE,
        *,
        home: Home | None = None,
        repeats: bool = False,
        what: str = "",
    ) -> Future:
        """Call ``function`` in rank ``to``; with ``value`` its result stays there under that name.

        Args:
            to, function, args, kwargs: whom to call, and with what.
            timeout_s: 0 for any time.
            value, fork: the names of the result, and of the first reference to it.
            home: the process that it is for, or, with ``value``, will be for; by default the
                present one.
            repeats: if that dies before it answers, the next one is called.
            what: it is, for errors; by default the name of ``function``.

        Raises:
            TypeError: the function or an argument cannot travel.
        """
        name, number = what or name_of(function), next(self._numbers)
        callee = self._present[to] if home is None else home.number
        context = self._contexts.of_this_thread()
        values = function, tuple(args), kwargs
        packed = self._pack(values, f"a call of {name}", to, context)
        deadline = time.monotonic() + timeout_s if timeout_s > 0 else math.inf
        context_id = NO_CONTEXT
        if context is not None:
            context.state.span(to)
            context_id = context.id
            repeats = False  # the context is gone with the callee
        head = Call(
            number, value, fork, context_id,
            packed.recorded.message, upcoming_sequence_nr(), packed.recorded.upstream,
        )  # fmt: skip
        makes = None if value == NO_VALUE else home
        pending = _Pending(head, packed, to, name, context, makes)
        made = CallMade(number, to, callee, deadline, repeats)

        def begin() -> None:
            self._pending[number] = pending
            self._note(made)
            if not repeats and number in self._pending and callee <= self._present[to]:
                pending.packed = None

        self._do(begin)
        return pending.future

    def _note(self, event: CallEvent) -> None:
        for step in self._calls.handle_event(event):
            if isinstance(step, SendCall):
                self._send_call(self._pending[step.call])
            elif isinstance(step, FailCall):
                pending = self._pending.pop(step.call)
                pending.future.set_exception(self._error(pending, is_lost=step.is_lost))

    def _send_call(self, pending: _Pending) -> None:
        packed, to = pending.packed, pending.to
        assert packed is not None
        self._references.pass_on(packed.passed, to)
        if pending.home is not None:
            pending.home.number = self._present[to]
        self._deliver(to, pending.head, packed.frames)
        if pending.home is not None and pending.home.is_released:
            value, fork = pending.head.value, pending.head.fork
            self._deliver(to, ForkReleased(((value, fork),)), [])

    def _error(self, pending: _Pending, *, is_lost: bool) -> Exception:
        if not is_lost:
            return RuntimeError(
                f"RPC ran for more than set timeout: {pending.what} in rank {pending.to}"
            )
        cause = self._causes.get(pending.to, "it was started again")
        return HostLost(pending.to, cause, f"rpc of {pending.what}", of_calls=True)

    def end(self, message: CallEnded, frames: Frames) -> None:
        if not self._calls.handle_event(CallAnswered(message.number)):
            return  # it has timed out
        pending = self._pending.pop(message.number)
        if message.is_error:
            pending.future.set_exception(decode_error(bytes(frames[0])))
            return
        if pending.context is not None:
            pending.context.learn(pending.to, message.upstream)
        # Unpickling runs the user's code, which must not hold up the messages of others.
        self._run(lambda: _resolve(pending, message, frames))

    def gone(self, rank: int, cause: str) -> None:
        """A rank's process has died or left."""
        self._causes[rank] = cause
        self._note(CalleeGone(rank))

    def returned(self, rank: int, number: int) -> None:
        """A rank has a process again."""
        self._note(CalleeReturned(rank, number))

    def expire(self, now: float) -> None:
        """Fail those that took too long."""
        self._note(TimePassed(now))

    @property
    def next_deadline(self) -> float:
        """When ``expire`` has to be called next."""
        return self._calls.next_deadline


def name_of(function: Callable[..., Any]) -> str:
    """What errors call it."""
    name: str = getattr(function, "__qualname__", repr(function))
    return name


def _resolve(pending: _Pending, message: CallEnded, frames: Frames) -> None:
    begin_sequence_at(message.sequence_nr)
    with recording_in(pending.context):
        try:
            with arriving(pending.context, message.message, pending.to):
                value = unpacked(frames)
        except BaseException as error:
            pending.future.set_exception(error)
        else:
            pending.future.set_result(value)
