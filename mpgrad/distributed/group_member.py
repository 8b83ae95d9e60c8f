"""GroupMember: one rank's part in its groups: performs what the pure states decide.

It knows neither sockets, threads nor a clock: messages and the time come in, and ``send`` takes
messages out. So the simulation runs it as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from mpgrad.distributed.carrier.messages import (
    Disagreement,
    EndAsked,
    EndTold,
    Farewell,
    FarewellRead,
    HostMessage,
    Loss,
    Parcel,
    RpcMessage,
    Segments,
    cut,
    decode_head,
    encode_head,
)
from mpgrad.distributed.operation import Operation, Work, timed_out
from mpgrad.distributed.parcels import Parcels, PendingReceive
from mpgrad.distributed.states.collective_state import SegmentsArrived
from mpgrad.distributed.states.host_membership import (
    AcknowledgeFarewell,
    AskForEnd,
    EndDoubted,
    EndInquired,
    EndReached,
    FailCollectives,
    FarewellSeen,
    HostMembership,
    LeaveRequested,
    LossTold,
    MembershipEvent,
    PeerAwaited,
    PeerDisconnected,
    PeerLeft,
    PeerReturned,
    SayFarewell,
    TellLoss,
)
from mpgrad.distributed.states.reduction_tree import Send, Step
from mpgrad.errors import CollectiveTimeout, HostLost, MpgradError, ProtocolError

#: Messages of collectives that this rank has not begun yet, and parcels that nobody has asked for.
EARLY_MESSAGES_MAX = 100_000

#: Seconds after which a collective that waits asks whether the other rank does the same. Two ranks
#: that do not may both wait for the other's first message.
INQUIRY_S = 2.0
#: The phase of this question, which belongs to no step.
INQUIRY = -1

Frames: TypeAlias = list[Any]
SendFrames: TypeAlias = Callable[[int, Frames], None]


class GroupTable(NamedTuple):
    """One group of ranks."""

    number: int
    #: Ranks of the world, by ranks of the group.
    ranks: tuple[int, ...]


class CallsPart(Protocol):
    """What takes the messages of remote calls."""

    def handle(self, sender: int, message: RpcMessage, frames: Frames) -> bool:
        """Take it; False if it is for the part that comes after this one."""

    def gone(self, rank: int, cause: str) -> None: ...

    def returned(self, rank: int, number: int) -> None: ...

    def expire(self, now: float) -> None: ...

    def next_deadline(self) -> float: ...


class GroupMember:
    """Collectives and parcels of one rank.

    Args:
        rank: of the world.
        ranks: how many there are.
        send: brings frames to a rank; never waits.
        numbers: by rank, how many processes have been this rank before; by default none.
    """

    def __init__(
        self, rank: int, ranks: int, send: SendFrames, numbers: Sequence[int] = ()
    ) -> None:
        self.rank, self.ranks, self._send = rank, ranks, send
        self.numbers, self.membership = [*numbers] or [0] * ranks, HostMembership(rank, ranks)
        #: Frames that could not be understood.
        self.damaged = 0
        self._calls: CallsPart | None = None
        self.calls_parts = 0
        self._early_calls: list[tuple[int, RpcMessage, Frames]] = []
        #: The ranks that can be called no more, and why.
        self._gone: dict[int, str] = {}
        self._running: dict[tuple[int, int], tuple[GroupTable, Operation]] = {}
        #: The number of the next collective of each group.
        self._next: dict[int, int] = {}
        self._early: dict[tuple[int, int], list[tuple[int, Segments, Frames]]] = {}
        self._parcels = Parcels()
        self._held = 0
        #: How many ends this rank has come to; who waits for what others know of the last one.
        self._end = 0
        self._doubt: Work | None = None
        #: How the ranks turned out to do different things.
        self._disagreement = ""
        #: Makes the error of every collective, once the group cannot go on.
        self._broken: Callable[[str], MpgradError | RuntimeError] | None = None
        if self.numbers[rank] > 0:
            self.fail("this rank was started again; groups end with the first rank that dies")

    # ------------------------------------------------------------------ what callers ask for

    def start(
        self, table: GroupTable, operation: Operation, now: float = 0.0, timeout_s: float = math.inf
    ) -> None:
        """Begin a collective of a group that this rank belongs to."""
        number = self._next.get(table.number, 0)
        self._next[table.number] = number + 1
        self._end += operation.is_end
        if self._broken is not None:
            operation.work.end(self._broken(operation.what))
            return
        key = (table.number, number)
        operation.timeout_s, operation.deadline = timeout_s, now + timeout_s
        operation.asks_at = now + INQUIRY_S
        self._running[key] = table, operation
        self._perform(key, operation.state.begin())
        for sender, message, frames in self._early.pop(key, ()):
            self._held -= 1
            self._segments(sender, message, frames)
        self._await(key)

    def post(self, table: GroupTable, to: int, tag: int, what: str, data: memoryview) -> None:
        """Send a parcel to rank ``to`` of the group.

        Raises:
            HostLost: the group cannot go on.
        """
        if self._broken is not None:
            raise self._broken(what)
        self.tell(table.ranks[to], Parcel(table.number, tag, what), cut(data))

    def collect(self, table: GroupTable, tag: int, receive: PendingReceive) -> None:
        """Take a parcel of the group, now or when it comes."""
        if self._broken is not None:
            receive.work.end(self._broken(receive.what))
            return
        parcel = self._parcels.take(table.number, tag, receive.senders)
        if parcel is not None:
            self._held -= 1
            receive.accept(*parcel, self.rank)
            return
        self._parcels.await_(table.number, tag, receive)
        self._await_sender(receive)

    def doubt_end(self, work: Work) -> None:
        """Ask the others for the end that this rank has come to; then ``has_ended`` is right."""
        self._doubt = work
        self._note(EndDoubted())

    @property
    def has_ended(self) -> bool:
        """Whether all ranks are known to have come to the end that this one has come to."""
        return 0 < self._end <= self.membership.ends

    def attach(self, calls: CallsPart) -> None:
        """From now on ``calls`` gets the messages of remote calls."""
        self._calls, self.calls_parts = calls, self.calls_parts + 1
        early, self._early_calls = self._early_calls, []
        for sender, message, frames in early:
            calls.handle(sender, message, frames)
        for rank, cause in self._gone.items():
            calls.gone(rank, cause)

    def fail(self, why: str) -> None:
        """End everything, with a RuntimeError that says ``why``."""
        self._fail(lambda what: RuntimeError(f"{what}: {why}"))

    def leave(self) -> None:
        """Say farewell; ``membership.may_go`` tells when all have read it."""
        self._fail(lambda what: MpgradError(f"{what}: this rank leaves the group"))
        self._note(LeaveRequested())

    # ------------------------------------------------------------------ what comes in

    def handle(self, sender: int, frames: Sequence[Any]) -> None:
        """Take a message of another rank."""
        try:
            message = decode_head(frames[0])
        except (ProtocolError, IndexError):
            self.damaged += 1
            return
        if isinstance(message, Segments | Parcel) and self._broken is not None:
            return
        if isinstance(message, Segments):
            self._segments(sender, message, list(frames[1:]))
        elif isinstance(message, Parcel):
            self._parcel(sender, message, list(frames[1:]))
        elif isinstance(message, Disagreement):
            self._disagree(message.text, tell=None)
        elif isinstance(message, Farewell):
            self._part_from(sender, message)
        elif isinstance(message, FarewellRead):
            self._note(FarewellSeen(sender))
        elif isinstance(message, EndAsked):
            # First the loss: whoever answers that it does not know does not learn it by itself.
            self._note(LossTold(message.lost, message.cause))
            self._note(EndInquired(sender))
        elif isinstance(message, EndTold):
            self._note(EndReached(message.ends, sender))
        elif isinstance(message, Loss):
            self._note(LossTold(message.rank, message.cause))
        elif not isinstance(message, RpcMessage):
            self.damaged += 1
        elif self._calls is None or not self._calls.handle(sender, message, list(frames[1:])):
            self._early_calls.append((sender, message, list(frames[1:])))

    def disconnected(self, peer: int, cause: str) -> None:
        """The connection to a rank has ended."""
        self._note(PeerDisconnected(peer, cause))
        self._part(peer, cause)

    def returned(self, rank: int, number: int) -> None:
        """Another process has the rank of one that had gone. Collectives go on with none."""
        self.numbers[rank] = number
        del self._gone[rank]
        self._note(PeerReturned(rank))
        if self._calls:
            self._calls.returned(rank, number)

    def _part(self, rank: int, cause: str) -> None:
        if rank not in self._gone:
            self._gone[rank] = cause
            if self._calls is not None:
                self._calls.gone(rank, cause)

    def expire(self, now: float) -> None:
        """Fail what should have been over."""
        if self._calls is not None:
            self._calls.expire(now)
        for key, (table, operation) in list(self._running.items()):
            awaited = operation.state.awaited
            if awaited is None or self._broken is not None:
                continue
            rank = table.ranks[awaited]
            if now >= operation.deadline:
                missing = [table.ranks[peer] for peer in operation.state.missing]
                text = operation.says_late(operation.timeout_s, missing)
                self._time_out(operation.what, text, table)
            elif now >= operation.asks_at:
                operation.asks_at = math.inf
                self.tell(rank, Segments(*key, INQUIRY, operation.what))
        for receive in list(self._parcels.awaited):
            if now >= receive.deadline and self._broken is None:
                text = timed_out(receive.timeout_s, receive.senders)
                self._time_out(receive.what, text, None)

    def next_deadline(self) -> float:
        """When ``expire`` has to be called next; infinity for never."""
        running = [operation for _, operation in self._running.values()]
        times = [min(operation.deadline, operation.asks_at) for operation in running]
        times += [receive.deadline for receive in self._parcels.awaited]
        if self._calls is not None:
            times.append(self._calls.next_deadline())
        return min(times, default=math.inf)

    # ------------------------------------------------------------------ collectives

    def _segments(self, sender: int, message: Segments, frames: Frames) -> None:
        key = (message.group, message.number)
        if key not in self._running:
            # Of one that is over, it comes too late; of a later one, too early.
            if message.number >= self._next.get(message.group, 0):
                self._hold(sender)
                self._early.setdefault(key, []).append((sender, message, frames))
            return
        table, operation = self._running[key]
        if sender not in table.ranks:
            self.damaged += 1
            return
        if message.what != operation.what:
            text = (
                f"rank {sender} is in {message.what}, but rank {self.rank} in {operation.what}: all"
                " ranks have to call the same collectives in the same order, with equal sizes"
            )
            self._disagree(text, tell=table)
            return
        event = SegmentsArrived(table.ranks.index(sender), message.phase)
        if operation.state.is_new(event):
            operation.waiting[tuple(event)] = frames  # type: ignore[index]
            self._perform(key, operation.state.handle_event(event))
            self._await(key)

    def _perform(self, key: tuple[int, int], steps: Sequence[Step]) -> None:
        table, operation = self._running[key]
        for step in steps:
            if isinstance(step, Send):
                head = Segments(*key, step.phase, operation.what)
                self.tell(table.ranks[step.peer], head, operation.outgoing(step))
                continue
            try:
                operation.join(step, operation.waiting.pop((step.peer, step.phase)))
            except ValueError as error:
                self._disagree(f"{operation.what}, of rank {step.peer}: {error}", tell=table)
                return
        if operation.state.is_complete:
            del self._running[key]
            if operation.is_end:
                self._note(EndReached(self._end))
            operation.work.end(None)

    def _part_from(self, sender: int, message: Farewell) -> None:
        # What it knows to have gone wrong comes before that it has gone.
        if message.lost >= 0:
            self._note(LossTold(message.lost, message.cause))
        if message.disagreement:
            self._disagree(message.disagreement, tell=None)
        self._note(EndReached(message.ends))
        self._note(PeerLeft(sender))
        why = f" after rank {message.lost} was lost" if message.lost >= 0 else ""
        self._part(sender, f"it has left the group{why}")
        for key in list(self._running):
            self._await(key)
        for receive in list(self._parcels.awaited):
            if sender in receive.senders:
                self._await_sender(receive)

    def _await(self, key: tuple[int, int]) -> None:
        """Tell the membership whom a collective waits for: somebody who has left never answers."""
        if key in self._running:
            table, operation = self._running[key]
            awaited = operation.state.awaited
            if awaited is not None:
                self._note(PeerAwaited(table.ranks[awaited]))

    # ------------------------------------------------------------------ parcels

    def _parcel(self, sender: int, message: Parcel, frames: Frames) -> None:
        receive = self._parcels.receiver(message.group, message.tag, sender)
        if receive is not None:
            receive.accept(sender, message.what, frames, self.rank)
        else:
            self._hold(sender)
            self._parcels.keep(message.group, message.tag, sender, message.what, frames)

    def _await_sender(self, receive: PendingReceive) -> None:
        """Tell the membership whom it waits for, where only one rank could still send it."""
        left = [rank for rank in receive.senders if rank not in self._gone] or receive.senders
        if len(left) == 1 or left is receive.senders:
            self._note(PeerAwaited(left[-1]))

    def _hold(self, sender: int) -> None:
        self._held += 1
        if self._held > EARLY_MESSAGES_MAX:
            text = f"rank {self.rank} is {self._held:,} messages behind rank {sender}"
            self._disagree(text, tell=None)

    # ------------------------------------------------------------------ failure

    def _note(self, event: MembershipEvent) -> None:
        for instruction in self.membership.handle_event(event):
            if isinstance(instruction, TellLoss):
                self._tell_others(range(self.ranks), Loss(instruction.rank, instruction.cause))
            elif isinstance(instruction, FailCollectives):
                rank, cause = instruction
                self._fail(lambda what, rank=rank, cause=cause: HostLost(rank, cause, what))  # type: ignore[misc]
            elif isinstance(instruction, SayFarewell):
                self.tell(instruction.rank, self._farewell())
            elif isinstance(instruction, AcknowledgeFarewell):
                self.tell(instruction.rank, FarewellRead())
            elif isinstance(instruction, AskForEnd):
                loss = self.membership.loss
                assert loss is not None
                self.tell(instruction.rank, EndAsked(loss.rank, loss.cause))
            else:
                self.tell(instruction.rank, EndTold(self.membership.ends))
        if self._doubt is not None and not self.membership.unanswered:
            self._doubt.end(None)
            self._doubt = None

    def _farewell(self) -> Farewell:
        loss = self.membership.loss
        if loss is not None:
            return Farewell(loss.rank, loss.cause, ends=self.membership.ends)
        return Farewell(disagreement=self._disagreement, ends=self.membership.ends)

    def _disagree(self, text: str, *, tell: GroupTable | None) -> None:
        """The ranks do not do the same: nothing of it can be mended."""
        if self._broken is None:
            self._disagreement = text
            if tell is not None:
                self._tell_others(tell.ranks, Disagreement(tell.number, text))
        self._fail(lambda what: RuntimeError(f"{what}: {text}"))

    def _time_out(self, late: str, text: str, table: GroupTable | None) -> None:
        if table is not None:
            told = f"rank {self.rank} in {late}: {text}"
            self._tell_others(table.ranks, Disagreement(table.number, told))
        self._fail(lambda what: CollectiveTimeout(f"{what}: {text}"))

    def _fail(self, error: Callable[[str], MpgradError | RuntimeError]) -> None:
        """End everything that is under way, and everything that comes later."""
        if self._broken is None:
            self._broken = error
        works = [operation.work for _, operation in self._running.values()]
        works += [receive.work for receive in self._parcels.clear()]
        self._running.clear()
        self._early.clear()
        self._held = 0
        for work in works:
            work.end(self._broken(work.what))

    # ------------------------------------------------------------------ sending

    def tell(self, rank: int, message: HostMessage, frames: Sequence[Any] = ()) -> None:
        """Send a message to another rank."""
        self._send(rank, [encode_head(message), *frames])

    def _tell_others(self, ranks: Sequence[int], message: HostMessage) -> None:
        for rank in ranks:
            if rank != self.rank:
                self.tell(rank, message)
