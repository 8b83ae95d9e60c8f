"""RpcService: the calls of this process and those of others, over the carrier of its group.

Messages are handled by who has the turn of the group (MemberThread). Functions run on threads of
their own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from mpgrad.distributed.autograd.contexts import DistAutogradContext, recording_in
from mpgrad.distributed.autograd.crossing import NO_MESSAGE, Departure, Recorded, arriving
from mpgrad.distributed.autograd.dist_engine import DistEngine
from mpgrad.distributed.carrier.messages import (
    BackwardMessage,
    Call,
    CallEnded,
    ContextReleased,
    ForkConfirmed,
    ForkHeld,
    ForkReleased,
    IdleAnswered,
    IdleReported,
    RpcMessage,
    RpcReady,
)
from mpgrad.distributed.futures import Future
from mpgrad.distributed.group_member import Frames
from mpgrad.distributed.member_thread import MemberThread
from mpgrad.distributed.rpc.call_pickles import packed, unpacked
from mpgrad.distributed.rpc.calling_threads import CallingThreads
from mpgrad.distributed.rpc.functions import checked_future, is_async
from mpgrad.distributed.rpc.leaving import Leaving
from mpgrad.distributed.rpc.own_calls import NO_CONTEXT, NO_VALUE, OwnCalls, Packed, name_of
from mpgrad.distributed.rpc.references import Home, PassedOn, References
from mpgrad.distributed.states.incarnations import first_number
from mpgrad.distributed.states.remote_values import ForkAdded, ForkDropped, Identity
from mpgrad.errors import HostLost
from mpgrad.recording.graph.node import (
    begin_sequence_at,
    continue_sequence_from,
    upcoming_sequence_nr,
)
from mpgrad.wire.packed_texts import pack_text, unpack_text
from mpgrad.wire.remote_error import encode_error

#: Seconds between two looks at what is still under way.
PAUSE_S = 0.01


class WorkerInfo(NamedTuple):
    """A process that takes calls."""

    name: str
    id: int

    def __repr__(self) -> str:
        return f"WorkerInfo(id={self.id}, name={self.name})"


class RpcService:
    """One process's part.

    Args:
        thread: of the group; all its ranks take calls.
        name: of this process.
        reduce_reference: how a reference travels, and whom it adds to what is passed on; None for
            other objects.
        reopens: a rank that dies may come back as another process.
        threads: run what others call.
    """

    def __init__(
        self,
        thread: MemberThread,
        name: str,
        reduce_reference: Callable[[Any, list[PassedOn]], tuple[Any, ...] | None],
        *,
        reopens: bool = False,
        threads: CallingThreads | None = None,
    ) -> None:
        member = thread.member
        self.rank, self.ranks = member.rank, member.ranks
        self.thread, self._reduce_reference = thread, reduce_reference
        #: By rank, the number of its present process.
        self.numbers = member.numbers
        self._ready: dict[int, RpcReady] = {}
        #: By rank, the number of the process that has said that it is ready.
        self._greeted: dict[int, int] = {}
        self.all_ready = threading.Event()
        self._lost: dict[int, str] = {}
        self.threads = threads or CallingThreads()
        self.references = References(
            self.rank, self.numbers, self._lost, lambda to, message: self._deliver(to, message, [])
        )
        self._leaving = Leaving(
            self.rank, self.ranks, self._lost, lambda rank: member.membership.has_left(rank),
            lambda to, message: self._deliver(to, message, []), reopens=reopens,
        )  # fmt: skip
        self._own = RpcReady(pack_text(name), _digest_of_main(), member.calls_parts)
        #: The ranks that have ended this service already, and begun the next one.
        self._moved_on: set[int] = set()
        self.is_over = False
        self.autograd = DistEngine(
            self.rank, f"rank {self.rank} ({name})", self._deliver, thread.do, self.threads.run,
            thread.wait_until, first_number(self.numbers[self.rank]),
        )  # fmt: skip
        self.calls = OwnCalls(
            self.rank, self.numbers, self.autograd, self.references, self._packed,
            self._deliver, thread.do, self.threads.run, reopens=reopens,
        )  # fmt: skip

    def begin(self) -> None:
        """Take calls; functions that are called ask for the service of this process."""
        self.thread.ask(self._begin)

    def _begin(self) -> None:
        self.thread.member.attach(self)
        self._note_ready(self.rank, self._own)
        for rank in range(self.ranks):
            if rank != self.rank:
                self.thread.member.tell(rank, self._own)

    # ------------------------------------------------------------------ who is there

    def infos(self) -> list[WorkerInfo]:
        """All processes, by rank.

        Raises:
            HostLost: one has died before it was ready.
        """
        for rank, cause in list(self._lost.items()):
            if rank not in self._ready:
                raise HostLost(rank, cause, "init_rpc")
        return [WorkerInfo(unpack_text(self._ready[rank].name), rank) for rank in range(self.ranks)]

    def _note_ready(self, rank: int, message: RpcReady) -> None:
        self._ready[rank] = message
        # The first word of a process that was started again may have come before it was known.
        is_first = self._greeted.get(rank) != self.numbers[rank]
        self._greeted[rank] = self.numbers[rank]
        if is_first and rank != self.rank and self.numbers[self.rank] > 0:
            self.thread.member.tell(rank, self._own)
        if len(self._ready) == self.ranks:
            self.all_ready.set()

    # ------------------------------------------------------------------ calls of this process

    def _packed(
        self,
        value: Any,
        what: str,
        to: int,
        context: DistAutogradContext | None,
        message: int = NO_MESSAGE,
    ) -> Packed:
        """The frames of ``value``, and what it is as a message of ``context``, of that number."""
        mains = self._ready[to].main, self._own.main
        departure, passed = Departure(context, to), list[PassedOn]()
        frames = packed(
            value,
            what,
            same_main=to == self.rank or (mains[0] == mains[1] != ""),
            reduce=lambda obj: self._reduce_reference(obj, passed) or departure.reduced(obj),
        )
        return Packed(frames, departure.record(self.autograd.contexts, what, message), passed)

    def _deliver(self, to: int, message: RpcMessage, frames: Frames) -> None:
        if self.is_over:
            return
        if to != self.rank:
            self.thread.member.tell(to, message, frames)
            return
        self.handle(to, message, [memoryview(bytes(frame)) for frame in frames])

    @property
    def outstanding(self) -> int:
        """Calls that wait for an answer, or run here, and references that are on their way."""
        return self.calls.count + self.threads.busy + self.references.on_their_way

    def drain(self, patience_s: float) -> None:
        """Wait until what others have called here is answered, for some time."""
        deadline = time.monotonic() + patience_s
        while self.threads.busy and time.monotonic() < deadline:
            time.sleep(PAUSE_S)

    def end(self) -> None:
        """Say nothing any more: the others may have the next service already."""
        has_turn = threading.Event()
        with contextlib.suppress(RuntimeError):  # the group has ended
            self.thread.do(has_turn.set)
            has_turn.wait()  # so it has said all that the last message makes it say
        self.is_over = True

    # ------------------------------------------------------------------ values and references

    def own(self, value: Identity, fork: Identity, result: Future) -> None:
        """Keep ``result`` here under ``value``, held by this process's ``fork``."""
        self.references.keep(value, result)
        added = ForkAdded(value, fork, self.rank, -1)
        self.thread.ask(lambda: self.references.note(added))

    def hold(self, home: Home, value: Identity, fork: Identity, parent: int) -> None:
        """This process has got a reference to a value of another one, or its own."""
        self.thread.ask(lambda: self.references.hold(home, value, fork, parent))

    def release(self, home: Home, value: Identity, fork: Identity) -> None:
        """A reference has died; called by the garbage collector, on any thread."""
        if self.is_over:
            return
        self.references.add_dead(home, value, fork)
        with contextlib.suppress(RuntimeError):  # the group has ended
            self.thread.ask(self.references.send_releases)

    def report_idle(self) -> Future:
        """Tell what this process has to do; see ``Leaving.report``."""
        answer = Future()
        self.thread.do(lambda: self._leaving.report(self.outstanding, answer))
        return answer

    # ------------------------------------------------------------------ a part of the member

    def handle(self, sender: int, message: RpcMessage, frames: Frames) -> bool:
        """Take a message of another rank, or of this one; False if it is for the next service."""
        if isinstance(message, RpcReady) and message.life > self._own.life:
            self._moved_on.add(sender)
        if sender in self._moved_on:
            return False
        if sender in self._ready or isinstance(message, RpcReady):  # else of a former service
            self._take(sender, message, frames)
        return True

    def _take(self, sender: int, message: RpcMessage, frames: Frames) -> None:
        if isinstance(message, Call):
            self._begin_call(sender, message, frames)
        elif isinstance(message, CallEnded):
            self.calls.end(message, frames)
        elif isinstance(message, ForkHeld):
            added = ForkAdded(message.value, message.fork, sender, message.parent)
            self.references.note(added)
        elif isinstance(message, ForkReleased):
            for value, fork in message.forks:
                self.references.note(ForkDropped(value, fork))
        elif isinstance(message, ForkConfirmed):
            self.references.confirm(message.fork)
        elif isinstance(message, BackwardMessage):
            self.autograd.handle(sender, message, frames)
        elif isinstance(message, IdleReported):
            self._leaving.take_report(sender, message.busy)
        elif isinstance(message, IdleAnswered):
            self._leaving.take_answer(message)
        else:
            self._note_ready(sender, message)

    def gone(self, rank: int, cause: str) -> None:
        """A rank has died or left: calls of it fail, and it holds nothing any more."""
        self._lost[rank] = cause
        if rank not in self._ready and not self._leaving.may_return(rank):
            self.all_ready.set()  # it never will be
        self.references.gone(rank)
        self.autograd.gone(rank, cause, returns=self._leaving.may_return(rank))
        self.calls.gone(rank, cause)
        self._leaving.gone(rank)

    def returned(self, rank: int, number: int) -> None:
        """A rank that was lost has another process: from now on calls go there."""
        del self._lost[rank]
        self.autograd.returned(rank)
        self.thread.member.tell(rank, self._own)
        self.references.returned(rank)
        self.calls.returned(rank, number)
        self._leaving.returned(rank)

    def expire(self, now: float) -> None:
        """Fail the calls that took too long."""
        self.calls.expire(now)

    def next_deadline(self) -> float:
        """When ``expire`` has to be called next."""
        return self.calls.next_deadline

    # ------------------------------------------------------------------ calls of others

    def _begin_call(self, caller: int, message: Call, frames: Frames) -> None:
        result: Future | None = None
        if message.value != NO_VALUE:
            result = self.references.begin(message.value, message.fork, caller)
        context = None
        if message.context != NO_CONTEXT:
            context = self.autograd.contexts.find_or_add(message.context)
            loss = None if context else self.autograd.contexts.loss(message.context)
            if loss is not None:
                self._deliver(caller, ContextReleased(message.context, *loss), [])
        if context is not None:
            context.state.span(caller, f"it had called rank {self.rank}")
            context.learn(caller, message.upstream)
        who = caller, self.numbers[caller]
        self.threads.run(lambda: self._run(who, message, frames, result, context))

    def _run(
        self,
        who: tuple[int, int],
        message: Call,
        frames: Frames,
        keep: Future | None,
        context: DistAutogradContext | None,
    ) -> None:
        """On a thread of its own: call the function, and answer."""
        self.all_ready.wait()  # it may call others
        begin_sequence_at(message.sequence_nr)
        done, what = Future(), "the result of a call"
        done.add_done_callback(lambda done: self._answer(who, message, done, keep, context, what))
        with recording_in(context):
            try:
                with arriving(context, message.message, who[0]):
                    function, args, kwargs = unpacked(frames)
                what = f"the result of a call of {name_of(function)}"
                frames.clear()
                value = function(*args, **kwargs)
                later = checked_future(value) if is_async(function) else None
            except BaseException as error:
                done.set_exception(error)
                return
            if later is None:
                done.set_result(value)
            else:
                later.add_done_callback(lambda later: _follow(done, later))

    def _answer(
        self,
        who: tuple[int, int],
        call: Call,
        done: Future,
        keep: Future | None,
        context: DistAutogradContext | None,
        what: str,
    ) -> None:
        error, value = done._error, done._value
        if keep is not None:
            _follow(keep, done)
            error = value = None
        packed = Packed([], Recorded(NO_MESSAGE, ()), ())
        if error is None:
            try:
                packed = self._packed(value, what, who[0], context, call.answer)
            except Exception as failure:  # whatever the user's classes raise
                error = failure
        if error is not None:
            where = f"rank {self.rank} ({unpack_text(self._own.name)})"
            packed = packed._replace(frames=[encode_error(error, where)])
        message, upstream = packed.recorded
        answer = CallEnded(
            call.number, error is not None, message, upcoming_sequence_nr(), upstream
        )
        with contextlib.suppress(RuntimeError):  # the group has ended
            self.thread.do(lambda: self._reply(who, answer, packed))

    def _reply(self, who: tuple[int, int], answer: CallEnded, packed: Packed) -> None:
        """To the process that has called, if that is still there."""
        caller, number = who
        if caller not in self._lost and number == self.numbers[caller]:
            self.references.pass_on(packed.passed, caller)
            self._deliver(caller, answer, packed.frames)


def _follow(future: Future, done: Future) -> None:
    continue_sequence_from(done._sequence_nr)
    if done._error is not None:
        future.set_exception(done._error)
    else:
        future.set_result(done._value)


def _digest_of_main() -> str:
    """Of the file that runs as ``__main__``; empty where there is none, as in a notebook."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if path is None or not os.path.isfile(path):
        return ""
    with open(path, "rb") as file:
        return hashlib.blake2b(file.read(), digest_size=16).hexdigest()
