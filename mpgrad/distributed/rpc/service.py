"""RpcService: the calls of this process and those of others, over the carrier of its group.

Messages are handled by who has the turn of the group (MemberThread). Functions run on threads of
their own.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mpgrad.distributed.autograd.contexts import DistAutogradContext, recording_in
from mpgrad.distributed.autograd.crossing import NO_MESSAGE, Departure, Recorded, arriving
from mpgrad.distributed.autograd.dist_engine import DistEngine
from mpgrad.distributed.futures import Future
from mpgrad.distributed.group_member import Frames
from mpgrad.distributed.member_thread import MemberThread
from mpgrad.distributed.rpc.call_pickles import packed, unpacked
from mpgrad.distributed.rpc.calling_threads import CallingThreads
from mpgrad.errors import HostLost
from mpgrad.graph.node import (
    begin_sequence_at,
    continue_sequence_from,
    upcoming_sequence_nr,
)
from mpgrad.scheduler.hosts.remote_values import (
    ConfirmFork,
    DropValue,
    ForkAdded,
    ForkDropped,
    HolderGone,
    Identity,
    RemoteValueEvent,
    RemoteValues,
)
from mpgrad.wire.hosts import (
    BackwardMessage,
    Call,
    CallEnded,
    ForkConfirmed,
    ForkHeld,
    ForkReleased,
    RpcMessage,
    RpcReady,
)
from mpgrad.wire.remote_error import decode_error, encode_error

NO_VALUE = (-1, -1)
NO_CONTEXT = -1

#: Seconds between two looks at what is still under way.
PAUSE_S = 0.01


class WorkerInfo(NamedTuple):
    """A process that takes calls."""

    name: str
    id: int


class _Pending(NamedTuple):
    """A call that waits for its answer."""

    to: int
    future: Future
    deadline: float
    what: str
    #: In which it was made; its result belongs to it, too.
    context: DistAutogradContext | None


class RpcService:
    """One process's part.

    Args:
        thread: of the group; all its ranks take calls.
        name: of this process.
        reduce_reference: how a reference travels to a rank; None for other objects.
    """

    def __init__(
        self,
        thread: MemberThread,
        name: str,
        reduce_reference: Callable[[Any, int], tuple[Any, ...] | None],
    ) -> None:
        self.rank, self.ranks = thread.member.rank, thread.member.ranks
        self.thread, self._reduce_reference = thread, reduce_reference
        self._ready: dict[int, RpcReady] = {}
        self.all_ready = threading.Event()
        self._lost: dict[int, str] = {}
        self._pending: dict[int, _Pending] = {}
        self._numbers = itertools.count()
        self.threads = CallingThreads()
        self._book = RemoteValues()
        #: The values that this process owns; a future each, as they may not be there yet.
        self._values: dict[Identity, Future] = {}
        #: References that were passed on: kept until the owner knows of the new ones.
        self._passed_on: dict[Identity, tuple[int, Any]] = {}
        #: (owner, value, fork) of references that have died; any thread appends.
        self._released: deque[tuple[int, Identity, Identity]] = deque()
        self._own = RpcReady(name, _digest_of_main())
        self.autograd = DistEngine(
            self.rank, f"rank {self.rank} ({name})", self._deliver,
            thread.do, self.threads.run, thread.wait_until,
        )  # fmt: skip
        thread.ask(self._begin)

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
        for rank, cause in self._lost.items():
            if rank not in self._ready:
                raise HostLost(rank, cause, "init_rpc")
        return [WorkerInfo(self._ready[rank].name, rank) for rank in range(self.ranks)]

    def _note_ready(self, rank: int, message: RpcReady) -> None:
        self._ready[rank] = message
        if len(self._ready) == self.ranks:
            self.all_ready.set()

    # ------------------------------------------------------------------ calls of this process

    def call(
        self,
        to: int,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        timeout_s: float,
        value: Identity = NO_VALUE,
        fork: Identity = NO_VALUE,
    ) -> Future:
        """Call ``function`` in rank ``to``; with ``value`` its result stays there under that name.

        Raises:
            TypeError: the function or an argument cannot travel.
        """
        name = _name_of(function)
        context = self.autograd.contexts.of_this_thread()
        what = f"a call of {name}"
        frames, recorded = self._packed((function, tuple(args), kwargs), what, to, context)
        future, number = Future(), next(self._numbers)
        deadline = time.monotonic() + timeout_s if timeout_s > 0 else math.inf
        pending = _Pending(to, future, deadline, name, context)
        context_id = NO_CONTEXT
        if context is not None:
            context.state.span(to)
            context_id = context.id
        head = Call(
            number, value, fork, context_id,
            recorded.message, upcoming_sequence_nr(), recorded.upstream,
        )  # fmt: skip

        def begin() -> None:
            if to in self._lost:
                future.set_exception(self._error(pending))
                return
            self._pending[number] = pending
            self._deliver(to, head, frames)

        self.thread.do(begin)
        return future

    def _packed(
        self, value: Any, what: str, to: int, context: DistAutogradContext | None
    ) -> tuple[Frames, Recorded]:
        """The frames of ``value``, and what it is as a message of ``context``."""
        mains = self._ready[to].main, self._own.main
        departure = Departure(context, to)
        frames = packed(
            value,
            what,
            same_main=to == self.rank or (mains[0] == mains[1] != ""),
            reduce=lambda obj: self._reduce_reference(obj, to) or departure.reduced(obj),
        )
        return frames, departure.record(self.autograd.contexts, what)

    def _deliver(self, to: int, message: RpcMessage, frames: Frames) -> None:
        if to != self.rank:
            self.thread.member.tell(to, message, frames)
            return
        self.handle(to, message, [memoryview(bytes(frame)) for frame in frames])

    def _error(self, pending: _Pending) -> HostLost:
        return HostLost(pending.to, self._lost[pending.to], f"rpc of {pending.what}")

    @property
    def outstanding(self) -> int:
        """Calls that wait for an answer, or run here, and references that are on their way."""
        return len(self._pending) + self.threads.busy + len(self._passed_on)

    def drain(self, patience_s: float) -> None:
        """Wait until what others have called here is answered, for some time."""
        deadline = time.monotonic() + patience_s
        while self.threads.busy and time.monotonic() < deadline:
            time.sleep(PAUSE_S)

    # ------------------------------------------------------------------ values and references

    def own(self, value: Identity, fork: Identity, result: Future) -> None:
        """Keep ``result`` here under ``value``, held by this process's ``fork``."""
        self._values[value] = result
        self.thread.ask(lambda: self._note(ForkAdded(value, fork, self.rank, -1)))

    def value(self, value: Identity) -> Future:
        """What this process owns under that name; the caller has a reference to it.

        The call that makes it may not have come yet.
        """
        return self._values.setdefault(value, Future())

    @property
    def values(self) -> int:
        """How many values this process owns."""
        return len(self._values)

    def new_identity(self) -> Identity:
        """A name for a value or a reference that nobody else has."""
        return self.rank, next(self._numbers)

    def keep_while_passed_on(self, fork: Identity, to: int, reference: Any) -> None:
        """Keep ``reference`` until its owner knows of the ``fork`` that goes to rank ``to``."""
        self._passed_on[fork] = to, reference

    def hold(self, owner: int, value: Identity, fork: Identity, parent: int) -> None:
        """This process has got a reference to a value of rank ``owner``."""
        self.thread.ask(lambda: self._deliver(owner, ForkHeld(value, fork, parent), []))

    def release(self, owner: int, value: Identity, fork: Identity) -> None:
        """A reference has died; called by the garbage collector, on any thread."""
        self._released.append((owner, value, fork))
        with contextlib.suppress(RuntimeError):  # the group has ended
            self.thread.ask(self._send_releases)

    def _send_releases(self) -> None:
        by_owner: dict[int, list[tuple[Identity, Identity]]] = {}
        while self._released:
            owner, value, fork = self._released.popleft()
            by_owner.setdefault(owner, []).append((value, fork))
        for owner, forks in by_owner.items():
            if owner not in self._lost:
                self._deliver(owner, ForkReleased(tuple(forks)), [])

    def _note(self, event: RemoteValueEvent) -> None:
        for instruction in self._book.handle_event(event):
            if isinstance(instruction, DropValue):
                self._values.pop(instruction.value, None)
            elif isinstance(instruction, ConfirmFork) and instruction.parent not in self._lost:
                self._deliver(instruction.parent, ForkConfirmed(instruction.fork), [])

    # ------------------------------------------------------------------ a part of the member

    def handle(self, sender: int, message: RpcMessage, frames: Frames) -> None:
        """Take a message of another rank, or of this one."""
        if isinstance(message, Call):
            self._begin_call(sender, message, frames)
        elif isinstance(message, CallEnded):
            self._end_call(message, frames)
        elif isinstance(message, ForkHeld):
            self._note(ForkAdded(message.value, message.fork, sender, message.parent))
        elif isinstance(message, ForkReleased):
            for value, fork in message.forks:
                self._note(ForkDropped(value, fork))
        elif isinstance(message, ForkConfirmed):
            self._passed_on.pop(message.fork, None)
        elif isinstance(message, BackwardMessage):
            self.autograd.handle(sender, message, frames)
        else:
            self._note_ready(sender, message)

    def gone(self, rank: int, cause: str) -> None:
        """A rank has died or left: calls of it fail, and it holds nothing any more."""
        self._lost[rank] = cause
        if rank not in self._ready:
            self.all_ready.set()  # it never will be
        for number, pending in list(self._pending.items()):
            if pending.to == rank:
                del self._pending[number]
                pending.future.set_exception(self._error(pending))
        for fork, (to, _) in list(self._passed_on.items()):
            if to == rank:
                del self._passed_on[fork]
        self._note(HolderGone(rank))
        self.autograd.gone(rank, cause)

    def expire(self, now: float) -> None:
        """Fail the calls that took too long."""
        for number, pending in list(self._pending.items()):
            if now >= pending.deadline:
                del self._pending[number]
                error = RuntimeError(
                    f"RPC ran for more than set timeout: {pending.what} in rank {pending.to}"
                )
                pending.future.set_exception(error)

    def next_deadline(self) -> float:
        """When ``expire`` has to be called next."""
        return min((pending.deadline for pending in self._pending.values()), default=math.inf)

    # ------------------------------------------------------------------ calls of others

    def _begin_call(self, caller: int, message: Call, frames: Frames) -> None:
        result: Future | None = None
        if message.value != NO_VALUE:
            result = self._values.setdefault(message.value, Future())
            self._note(ForkAdded(message.value, message.fork, caller, -1))
        context = None
        if message.context != NO_CONTEXT:
            context = self.autograd.contexts.find_or_add(message.context)
        if context is not None:
            context.state.span(caller)
            context.learn(caller, message.upstream)
        self.threads.run(lambda: self._run(caller, message, frames, result, context))

    def _run(
        self,
        caller: int,
        message: Call,
        frames: Frames,
        keep: Future | None,
        context: DistAutogradContext | None,
    ) -> None:
        """On a thread of its own: call the function, and answer."""
        self.all_ready.wait()  # it may call others
        begin_sequence_at(message.sequence_nr)
        done, what = Future(), "the result of a call"
        done.add_done_callback(
            lambda done: self._answer(caller, message.number, done, keep, context, what)
        )
        with recording_in(context):
            try:
                with arriving(context, message.message, caller):
                    function, args, kwargs = unpacked(frames)
                what = f"the result of a call of {_name_of(function)}"
                frames.clear()
                value = function(*args, **kwargs)
            except BaseException as error:
                done.set_exception(error)
                return
            if not getattr(function, "_mpgrad_async_execution", False):
                done.set_result(value)
            elif isinstance(value, Future):
                value.add_done_callback(lambda inner: _follow(done, inner))
            else:
                text = f"must return a Future, not {value!r}"
                done.set_exception(
                    RuntimeError(f"Functions decorated with @rpc.async_execution {text}")
                )

    def _answer(
        self,
        caller: int,
        number: int,
        done: Future,
        keep: Future | None,
        context: DistAutogradContext | None,
        what: str,
    ) -> None:
        error, value, recorded = done._error, done._value, Recorded(NO_MESSAGE, ())
        if keep is not None:
            _follow(keep, done)
            error = value = None
        frames: Frames = []
        if error is None:
            try:
                frames, recorded = self._packed(value, what, caller, context)
            except TypeError as failure:
                error = failure
        if error is not None:
            frames = [encode_error(error, f"rank {self.rank} ({self._own.name})")]
        answer = CallEnded(
            number, error is not None, recorded.message, upcoming_sequence_nr(), recorded.upstream
        )
        with contextlib.suppress(RuntimeError):  # the group has ended
            self.thread.do(lambda: self._reply(caller, answer, frames))

    def _reply(self, caller: int, answer: CallEnded, frames: Frames) -> None:
        if caller not in self._lost:
            self._deliver(caller, answer, frames)

    def _end_call(self, message: CallEnded, frames: Frames) -> None:
        pending = self._pending.pop(message.number, None)
        if pending is None:  # it has timed out
            return
        if message.is_error:
            pending.future.set_exception(decode_error(bytes(frames[0])))
            return
        if pending.context is not None:
            pending.context.learn(pending.to, message.upstream)
        # Unpickling runs the user's code, which must not hold up the messages of others.
        self.threads.run(lambda: _resolve(pending, message, frames))


def _name_of(function: Callable[..., Any]) -> str:
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
