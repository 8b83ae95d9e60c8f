"""OwnCalls: the calls of this process that wait for an answer, and those that may be made again.

A call with ``repeat=True`` whose answer takes a graph along, in an autograd context, is kept until
a backward of that has ended well. If the callee dies before, the call is made again in the next
process of its rank. What it answers then is compared: the graph behind it replaces the lost one.
"""

from __future__ import annotations

import itertools
import math
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from mpgrad.distributed.autograd.contexts import DistAutogradContext, recording_in
from mpgrad.distributed.autograd.crossing import NO_MESSAGE, Recorded, arriving
from mpgrad.distributed.autograd.dist_engine import DistEngine
from mpgrad.distributed.carrier.messages import Call, CallEnded, ForkReleased
from mpgrad.distributed.futures import Future
from mpgrad.distributed.group_member import Frames
from mpgrad.distributed.rpc.call_pickles import unpacked
from mpgrad.distributed.rpc.references import Home, PassedOn, References
from mpgrad.distributed.states.context_state import over
from mpgrad.distributed.states.incarnations import first_number
from mpgrad.distributed.states.pending_calls import (
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
from mpgrad.distributed.states.remote_values import Identity
from mpgrad.errors import HostLost
from mpgrad.recording.graph.node import begin_sequence_at, upcoming_sequence_nr
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
        made: how it was made, and how many seconds it may take.
        digest: of an answer that has come before; None: none has.
    """

    def __init__(
        self,
        head: Call,
        packed: Packed | None,
        what: str,
        context: DistAutogradContext | None,
        home: Home | None,
        made: CallMade,
        timeout_s: float,
        digest: int | None = None,
    ) -> None:
        self.head, self.packed, self.what, self.to = head, packed, what, made.to
        self.context, self.home, self.future = context, home, Future()
        self.made, self.timeout_s, self.digest = made, timeout_s, digest

    def answered(self, message: CallEnded, frames: Frames) -> _Pending:
        """The same call, if it has to be made again."""
        head = msgspec.structs.replace(self.head, answer=message.message)
        return _Pending(
            head, self.packed, self.what, self.context, None, self.made, self.timeout_s,
            _digest(frames),
        )  # fmt: skip


class OwnCalls:
    """Those of one process. ``make`` is called on any thread, all else with the turn of the group.

    Args:
        rank: of this process.
        numbers: by rank, the number of its present process; the group's.
        autograd: of this process.
        references: of this process.
        pack: makes what a call sends.
        deliver: sends to a rank, this one included.
        do: runs with the turn of the group (MemberThread).
        run: runs on another thread.
        reopens: a process that dies may come back.
    """

    def __init__(
        self,
        rank: int,
        numbers: list[int],
        autograd: DistEngine,
        references: References,
        pack: Pack,
        deliver: Callable[[int, Call | ForkReleased, Frames], None],
        do: Do,
        run: Do,
        *,
        reopens: bool,
    ) -> None:
        self._present, self._autograd, self._references = numbers, autograd, references
        self._rank, self._contexts, self._reopens = rank, autograd.contexts, reopens
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
        context_id = NO_CONTEXT
        if context is not None:
            context.state.span(to, "" if repeats else f"{name} was called without repeat=True")
            context_id = context.id
        head = Call(
            number, value, fork, context_id,
            packed.recorded.message, upcoming_sequence_nr(), packed.recorded.upstream,
        )  # fmt: skip
        makes = None if value == NO_VALUE else home
        made = CallMade(number, to, callee, _deadline(timeout_s), repeats)
        pending = _Pending(head, packed, name, context, makes, made, timeout_s)

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
                error = self._error(pending, is_lost=step.is_lost)
                if pending.digest is None:
                    pending.future.set_exception(error)
                else:
                    self._end_context(pending, "no other one has answered its calls again in time")

    def _send_call(self, pending: _Pending) -> None:
        packed, to = pending.packed, pending.to
        assert packed is not None
        self._references.pass_on(packed.passed, to)
        if pending.home is not None:
            pending.home.number = self._present[to]
        head, context = pending.head, pending.context
        if context is not None and self._contexts.known(context.id) is None:
            # The next process of a rank does not know that it was left.
            head = msgspec.structs.replace(head, context=NO_CONTEXT)
        self._deliver(to, head, packed.frames)
        if pending.home is not None and pending.home.is_released:
            value, fork = pending.head.value, pending.head.fork
            self._deliver(to, ForkReleased(((value, fork),)), [])

    def _error(self, pending: _Pending, *, is_lost: bool) -> Exception:
        if not is_lost:
            return RuntimeError(
                f"RPC ran for more than set timeout: {pending.what} in rank {pending.to}"
            )
        loss = pending.to, self._causes.get(pending.to, "it was started again")
        if pending.context is not None and pending.made.repeats:
            loss = self._contexts.loss(pending.context.id) or loss  # which may be another rank's
        return HostLost(*loss, f"rpc of {pending.what}", of_calls=True)

    def end(self, message: CallEnded, frames: Frames) -> None:
        if not self._calls.handle_event(CallAnswered(message.number)):
            return  # it has timed out
        pending = self._pending.pop(message.number)
        if pending.digest is not None:
            self._compare(pending, message, frames)
            return
        if message.is_error:
            pending.future.set_exception(decode_error(bytes(frames[0])))
            return
        if pending.context is not None:
            pending.context.learn(pending.to, message.upstream)
            self._keep(pending, pending.context, message, frames)
        # Unpickling runs the user's code, which must not hold up the messages of others.
        self._run(lambda: _resolve(pending, message, frames))

    def _keep(
        self, pending: _Pending, context: DistAutogradContext, message: CallEnded, frames: Frames
    ) -> None:
        """Keep what has to be called again as long as the context goes on without its callee."""
        if pending.head.value != NO_VALUE:
            context.state.span(pending.to, "it owned what remote() had made")
        elif (
            self._reopens
            and pending.made.repeats
            and message.message != NO_MESSAGE
            and not context.state.has_counted
            and pending.to != self._rank
            and self._contexts.known(context.id) is not None
        ):
            context.answered[message.number] = pending.answered(message, frames)

    def _compare(self, pending: _Pending, message: CallEnded, frames: Frames) -> None:
        """Whether what was called again has answered the same."""
        context = pending.context
        assert context is not None
        if self._contexts.known(context.id) is None:
            return
        same = not message.is_error and message.message == pending.head.answer
        if not same or _digest(frames) != pending.digest:
            self._end_context(pending, f"{pending.what} gave another result, called again")
            return
        context.answered[message.number] = pending
        context.repeated.pop(message.number, None)

    def _end_context(self, pending: _Pending, why: str) -> None:
        context = pending.context
        if context is None or self._contexts.known(context.id) is None:
            return
        loss = over((pending.to, self._causes[pending.to]), why)
        self._autograd.release(context.id, loss)

    def gone(self, rank: int, cause: str) -> None:
        """A rank's process has died or left; of contexts, those are left that go on without it."""
        self._causes[rank] = cause
        self._note(CalleeGone(rank))
        for context in self._contexts.all():
            for number, pending in sorted(context.answered.items()):
                if pending.to == rank:
                    context.repeated[number] = self._pending[number] = pending
                    context.mended = rank, cause
                    del context.answered[number]
                    self._note(pending.made._replace(deadline=_deadline(pending.timeout_s)))
        for pending in list(self._pending.values()):
            own = pending.context
            if pending.to == rank and own is not None and self._contexts.known(own.id) is None:
                self._note(pending.made._replace(repeats=False))

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


def _deadline(timeout_s: float) -> float:
    return time.monotonic() + timeout_s if timeout_s > 0 else math.inf


def _digest(frames: Frames) -> int:
    """Of an answer: it finds mistakes, no forgeries."""
    found = 0
    for frame in frames:
        found = zlib.crc32(frame, found)
    return found


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
