"""PassState: one backward on one host, from the first message to the common end.

The *root* is the host that called ``backward()``. Every host that takes part runs one GraphTask,
its *part*, which waits where a gradient of another host has to come first. When all parts are done,
the root concludes: all hosts take their gradients, or none does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from mpgrad.distributed.states.marking import AnswerHost, AskHost, Marking, Reached, Slot

#: ``PartReport.waits_for`` of a part that is done.
NOTHING_AWAITED = -1

# ---------------------------------------------------------------------------- events


class BackwardBegun(NamedTuple):
    """At the root, SMART: all marks, by host, if they are known; else what its roots reach."""

    reached: Reached
    marks: Reached | None = None


class MarksAsked(NamedTuple):
    """A question of the wave, and what the walk from its slots has newly reached."""

    sender: int
    question: int
    reached: Reached


class MarksAnswered(NamedTuple):
    """An answer of the wave, and what the walk from its slots has newly reached."""

    question: int
    hosts: Sequence[int]
    reached: Reached


class PartRequested(NamedTuple):
    """The root says that all marks are final."""


class GradientsArrived(NamedTuple):
    """The gradients of a message that this host has sent."""

    sender: int
    message: int


class GradientsLeft(NamedTuple):
    """This host's part has sent gradients to ``to``."""

    to: int


class PartWaits(NamedTuple):
    """This host's part can do nothing before the gradients of ``message`` come."""

    message: int


class PartDone(NamedTuple):
    """This host's part has ended well."""


class PartFailed(NamedTuple):
    """The part of ``rank`` has failed, or it has lost a host that it needs."""

    rank: int


class PartReport(NamedTuple):
    """A part that waits, or is done; and how many gradients it has sent to and got from whom."""

    number: int
    waits_for: int
    sent: tuple[tuple[int, int], ...]
    received: tuple[tuple[int, int], ...]


class ReportArrived(NamedTuple):
    """The report of another host, at the root."""

    sender: int
    report: PartReport


class ConclusionArrived(NamedTuple):
    """The root's word: take the gradients, or drop them."""

    commits: bool


class ConclusionSeen(NamedTuple):
    """A host has done so."""

    sender: int


class ContextGone(NamedTuple):
    """The context is no more: a host that it spans has died, or this one has left it.

    Attributes:
        rank: that host.
    """

    rank: int


# ---------------------------------------------------------------------------- instructions


class RequestPart(NamedTuple):
    """Tell ``to`` that all marks are final, and these of them."""

    to: int
    slots: tuple[Slot, ...] = ()


class StartPart(NamedTuple):
    """Run the GraphTask of this host."""


class SendReport(NamedTuple):
    """Tell the root how far this part is."""

    to: int
    report: PartReport


class TellFailure(NamedTuple):
    """Tell the root why this host cannot go on."""

    to: int


class Conclude(NamedTuple):
    """Tell ``to`` how the backward has ended."""

    to: int
    commits: bool


class TakeGradients(NamedTuple):
    """The gradients of this host's part become those of the context."""


class DropGradients(NamedTuple):
    """They are dropped; a part that still waits ends."""


class ConfirmConclusion(NamedTuple):
    """Tell the root that it was done."""

    to: int


class EndBackward(NamedTuple):
    """At the root: ``backward()`` returns, or raises.

    Attributes:
        failed: the host whose error it raises; -1 for none.
        stuck: (host, message) of a part that waits for what nobody will send; None if none does.
    """

    failed: int = -1
    stuck: tuple[int, int] | None = None


PassEvent: TypeAlias = (
    BackwardBegun
    | MarksAsked
    | MarksAnswered
    | PartRequested
    | GradientsArrived
    | GradientsLeft
    | PartWaits
    | PartDone
    | PartFailed
    | ReportArrived
    | ConclusionArrived
    | ConclusionSeen
    | ContextGone
)
PassInstruction: TypeAlias = (
    AskHost
    | AnswerHost
    | RequestPart
    | StartPart
    | SendReport
    | TellFailure
    | Conclude
    | TakeGradients
    | DropGradients
    | ConfirmConclusion
    | EndBackward
)


class PassState:
    """One backward on one host.

    Args:
        rank: of this host.
        root: of the host that called ``backward()``.
        is_smart: gradients are awaited where they are marked (SMART); else for every message that
            the context has sent (FAST).
    """

    def __init__(self, rank: int, root: int, *, is_smart: bool) -> None:
        self._rank, self._root, self._is_smart = rank, root, is_smart
        self._marking = Marking(is_root=rank == root)
        self._arrived: set[int] = set()
        self._sent: dict[int, int] = {}
        self._received: dict[int, int] = {}
        self._has_started = self._has_begun = False
        self._reports_made = 0
        #: At the root: the last report of each host.
        self._reports: dict[int, PartReport] = {}
        #: At the root, after the conclusion: who has not confirmed it.
        self._unconfirmed: dict[int, None] | None = None
        #: Nothing more is done here.
        self.is_over = False

    def handle_event(self, event: PassEvent) -> list[PassInstruction]:
        """What follows."""
        if self.is_over:
            return []
        return _HANDLERS[type(event)](self, event)

    # ------------------------------------------------------------------ the wave

    def _begin(self, event: BackwardBegun) -> list[PassInstruction]:
        self._has_begun = True
        if event.marks is None:
            return [*self._marking.begin(event.reached), *self._request_parts()]
        self._marking.hosts = dict.fromkeys(event.marks)
        others = {host: slots for host, slots in event.marks.items() if host != self._rank}
        return [*(RequestPart(host, tuple(s)) for host, s in others.items()), *self._start()]

    def _take_question(self, event: MarksAsked) -> list[PassInstruction]:
        return [*self._marking.take_question(event.sender, event.question, event.reached)]

    def _take_answer(self, event: MarksAnswered) -> list[PassInstruction]:
        answer = event.question, event.hosts, event.reached
        return [*self._marking.take_answer(*answer), *self._request_parts()]

    def _request_parts(self) -> list[PassInstruction]:
        if not (self._has_begun and self._marking.is_over) or self._has_started:
            return []
        others = [host for host in self._marking.hosts if host != self._rank]
        return [*(RequestPart(host) for host in others), *self._start()]

    # ------------------------------------------------------------------ the parts

    def _start(self, _: object = None) -> list[PassInstruction]:
        if self._has_started:
            return []
        self._has_started = True
        return [StartPart()]

    def _take_gradients(self, event: GradientsArrived) -> list[PassInstruction]:
        if event.message in self._arrived:
            return []
        self._arrived.add(event.message)
        self._received[event.sender] = self._received.get(event.sender, 0) + 1
        return [] if self._is_smart else self._start()

    def _note_sent(self, event: GradientsLeft) -> list[PassInstruction]:
        self._sent[event.to] = self._sent.get(event.to, 0) + 1
        return []

    def _wait(self, event: PartWaits) -> list[PassInstruction]:
        return [] if event.message in self._arrived else self._report(event.message)

    def _finish_part(self, _: PartDone) -> list[PassInstruction]:
        return self._report(NOTHING_AWAITED)

    def _report(self, waits_for: int) -> list[PassInstruction]:
        self._reports_made += 1
        counts = tuple(self._sent.items()), tuple(self._received.items())
        report = PartReport(self._reports_made, waits_for, *counts)
        if self._rank == self._root:
            return self._take_report(ReportArrived(self._rank, report))
        return [SendReport(self._root, report)]

    # ------------------------------------------------------------------ the end, at the root

    def _take_report(self, event: ReportArrived) -> list[PassInstruction]:
        known = self._reports.get(event.sender)
        if self._unconfirmed is not None or (known and known.number >= event.report.number):
            return []
        self._reports[event.sender] = event.report
        if not self._is_quiet():
            return []
        for host, report in sorted(self._reports.items()):
            if report.waits_for != NOTHING_AWAITED:
                return self._fail(EndBackward(stuck=(host, report.waits_for)))
        self._unconfirmed = dict.fromkeys(h for h in self._hosts() if h != self._rank)
        steps = [Conclude(host, commits=True) for host in self._unconfirmed]
        return [*steps, TakeGradients(), *self._end_if_confirmed()]

    def _hosts(self) -> list[int]:
        """Those that take part, as far as the root knows."""
        told = [host for report in self._reports.values() for host, _ in report.sent]
        return [*dict.fromkeys((self._rank, *self._marking.hosts, *self._reports, *told))]

    def _is_quiet(self) -> bool:
        """Whether no part runs, and no gradient is under way.

        The reports are of different moments. But a part that has gone on since its report got a
        gradient since then; the first one that was sent so is missing in the counts of its channel.
        """
        hosts = self._hosts()
        if any(host not in self._reports for host in hosts):
            return False
        sent = {host: dict(self._reports[host].sent) for host in hosts}
        received = {host: dict(self._reports[host].received) for host in hosts}
        return all(sent[a].get(b, 0) == received[b].get(a, 0) for a in hosts for b in hosts)

    def _confirm(self, event: ConclusionSeen) -> list[PassInstruction]:
        if self._unconfirmed is None:
            return []
        self._unconfirmed.pop(event.sender, None)
        return self._end_if_confirmed()

    def _end_if_confirmed(self) -> list[PassInstruction]:
        if self._unconfirmed:
            return []
        self.is_over = True
        return [EndBackward()]

    def _fail(self, end: EndBackward) -> list[PassInstruction]:
        self.is_over = True
        others = [h for h in self._hosts() if h not in (self._rank, end.failed)]
        if end.failed not in (-1, self._rank):
            others.append(end.failed)
        return [*(Conclude(host, commits=False) for host in others), DropGradients(), end]

    # ------------------------------------------------------------------ failures

    def _note_failure(self, event: PartFailed) -> list[PassInstruction]:
        if self._rank != self._root:
            return [TellFailure(self._root)]
        return [] if self._unconfirmed is not None else self._fail(EndBackward(event.rank))

    def _give_up(self, event: ContextGone) -> list[PassInstruction]:
        if self._rank == self._root:
            return self._fail(EndBackward(event.rank))
        self.is_over = True
        return [TellFailure(self._root), DropGradients()]

    def _take_conclusion(self, event: ConclusionArrived) -> list[PassInstruction]:
        self.is_over = True
        if event.commits:
            return [TakeGradients(), ConfirmConclusion(self._root)]
        return [DropGradients()]


_HANDLERS: dict[type[Any], Callable[[PassState, Any], list[PassInstruction]]] = {
    BackwardBegun: PassState._begin,
    MarksAsked: PassState._take_question,
    MarksAnswered: PassState._take_answer,
    PartRequested: PassState._start,
    GradientsArrived: PassState._take_gradients,
    GradientsLeft: PassState._note_sent,
    PartWaits: PassState._wait,
    PartDone: PassState._finish_part,
    PartFailed: PassState._note_failure,
    ReportArrived: PassState._take_report,
    ConclusionArrived: PassState._take_conclusion,
    ConclusionSeen: PassState._confirm,
    ContextGone: PassState._give_up,
}
