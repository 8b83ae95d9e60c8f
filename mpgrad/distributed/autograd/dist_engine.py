"""DistEngine: performs what the pure states decide: this process's part in all backwards.

Messages are handled by who has the turn of the group (MemberThread). GraphTasks run on the thread
that called ``backward()``, and elsewhere on threads for calls.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import TypeAlias

from mpgrad.distributed.autograd.contexts import Contexts, DistAutogradContext
from mpgrad.distributed.autograd.local_part import LocalPart, PartStopped
from mpgrad.distributed.autograd.rpc_nodes import RecvRpcBackward
from mpgrad.distributed.carrier.messages import (
    AnswerMarks,
    AskMarks,
    BackwardMessage,
    BeginPart,
    Conclusion,
    ConclusionRead,
    ContextReleased,
    Gradients,
    PartError,
    PartState,
)
from mpgrad.distributed.group_member import Frames
from mpgrad.distributed.operation import WaitUntil
from mpgrad.distributed.states import pass_state as ps
from mpgrad.distributed.states.context_state import Loss, PassId, over
from mpgrad.distributed.states.incarnations import REPLACED
from mpgrad.distributed.states.marking import AnswerHost, AskHost
from mpgrad.errors import HostLost
from mpgrad.recording.graph.node import Edge
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.wire.remote_error import decode_error, encode_error

#: Brings a message and its frames to a rank; this one included.
Tell: TypeAlias = Callable[[int, BackwardMessage, Frames], None]


class DistEngine:
    """This process's part.

    Args:
        rank: of this process.
        where: this process is, for errors.
        tell: called with the turn of the group only (MemberThread).
        ask: have something called with it, now or soon.
        run: have something called on another thread.
        wait_until: wait for what a message brings (MemberThread).
        first: its numbers of contexts and messages begin here.
    """

    part_class = LocalPart

    def __init__(
        self,
        rank: int,
        where: str,
        tell: Tell,
        ask: Callable[[Callable[[], None]], None],
        run: Callable[[Callable[[], None]], None],
        wait_until: WaitUntil,
        first: int = 0,
    ) -> None:
        self.rank, self._where = rank, where
        self.contexts = Contexts(rank, first)
        self._tell, self._ask, self._run, self._wait_until = tell, ask, run, wait_until
        self._numbers = itertools.count()
        #: The processes that have died or left, and why.
        self._lost: dict[int, str] = {}

    # ------------------------------------------------------------------ what callers ask for

    def backward(
        self,
        context: DistAutogradContext,
        roots: Sequence[Edge],
        seeds: Sequence[Tensor | None],
        inputs: Sequence[Tensor] | None,
        *,
        keep_graph: bool,
        is_smart: bool,
    ) -> None:
        """Run a backward whose roots are here, on all hosts that it reaches.

        Raises:
            HostLost: a host that it needs has died.
            RuntimeError: a rule has raised, or something is awaited that nobody sends.
        """
        follows = -1
        with context.one_at_a_time:
            while True:
                part = self.begin(
                    context, roots, seeds, inputs,
                    keep_graph=keep_graph, is_smart=is_smart, follows=follows,
                )  # fmt: skip
                try:
                    self._wait_until(part.may_run.is_set, None)
                    if not part.has_ended.is_set():
                        self.run_part(part)
                    self._wait_until(part.has_ended.is_set, None)
                except BaseException as error:  # Ctrl-C
                    self._fail(part, error)
                    raise
                follows = part.ended_by
                if follows < 0:
                    break
                self._wait_until(lambda: not context.repeated, None)
        self.raise_error_of(part)

    def begin(
        self,
        context: DistAutogradContext,
        roots: Sequence[Edge],
        seeds: Sequence[Tensor | None],
        inputs: Sequence[Tensor] | None,
        *,
        keep_graph: bool,
        is_smart: bool,
        follows: int = -1,
    ) -> LocalPart:
        """Begin a backward; ``may_run`` of the part tells when ``run_part`` may be called."""
        may_begin_anew = bool(context.answered or context.repeated)
        part = self.part_class(
            context, (self.rank, next(self._numbers)), is_smart=is_smart,
            send=self._send_gradients, wait=self.wait, wait_until=self._wait_until,
            roots=roots, seeds=seeds, inputs=inputs, keep_graph=keep_graph or may_begin_anew,
        )  # fmt: skip
        part.frees, part.follows = may_begin_anew and not keep_graph, follows
        marks = context.marks(roots) if is_smart else None
        if marks is not None:
            part.mark(marks.get(self.rank, ()))
        reached = part.reach_from_roots() if is_smart and marks is None else {}
        part.spans_hosts = any(host != self.rank for host in marks or reached)
        self._ask(lambda: self._begin(part, ps.BackwardBegun(reached, marks)))
        return part

    def raise_error_of(self, part: LocalPart) -> None:
        """What ``backward()`` raises, if it does."""
        end = part.end
        if end.stuck is not None:
            host, _ = end.stuck
            raise RuntimeError(
                f"backward of autograd context {part.context.id}: rank {host} waits for "
                f"{part.waits.get(host, 'gradients')}, and nobody will send them. In mode "
                '"fast" the backward has to reach every tensor that was sent; mode "smart" does '
                "not need that."
            )
        if end.failed < 0:
            return
        error = part.errors[end.failed]
        if isinstance(error, HostLost) or (end.failed == self.rank and not part.spans_hosts):
            raise error
        raise RuntimeError(f"Error on Node {end.failed}: {error}") from error

    def release(self, context_id: int, loss: Loss | None = None) -> None:
        """Leave a context on all hosts, perhaps since a process was lost."""
        context = self.contexts.remove(context_id, loss)
        if context is not None:
            self._later(lambda: self._close(context, loss))

    def _close(self, context: DistAutogradContext, loss: Loss | None) -> None:
        rank, cause = loss or (-1, "")
        context.answered.clear()
        context.repeated.clear()
        for part in list(context.parts.values()):
            part.errors[self.rank] = part.errors[rank] = self._why_gone(context.id)
        for backward, steps in context.state.close(self.rank if loss is None else rank):
            self._perform(context.parts[backward], steps)
        for host in list(context.state.hosts):
            self._send(host, ContextReleased(context.id, rank, cause))

    def _why_gone(self, context_id: int) -> RuntimeError:
        try:
            self.contexts.find(context_id)
        except HostLost as error:
            return error
        except RuntimeError as error:
            return self._as_successor(context_id) or error
        raise AssertionError(f"context {context_id} is still there")

    def _as_successor(self, context_id: int) -> HostLost | None:
        """Why this process does not know what another process of its rank knew, if one has died."""
        if not self.contexts.is_successor:
            return None
        return HostLost(self.rank, REPLACED, f"autograd context {context_id}", of_calls=True)

    @property
    def backwards(self) -> int:
        """How many run here."""
        return sum(len(context.parts) for context in self.contexts.all())

    # ------------------------------------------------------------------ a part of this host

    def _begin(self, part: LocalPart, begun: ps.BackwardBegun) -> None:
        if part.context.repeated:  # somebody has died since the last look
            assert part.context.mended is not None
            part.ended_by = part.context.mended[0]
            part.has_ended.set()
            part.may_run.set()
            return
        part.context.parts[part.id] = part
        if self.contexts.known(part.context.id) is None:  # it was left meanwhile
            self._note_error(part, self._why_gone(part.context.id))
            return
        self._note(part, begun)

    def run_part(self, part: LocalPart) -> None:
        """On a thread of its own, or that of ``backward()``."""
        try:
            part.run()
        except PartStopped:
            pass
        except Exception as error:
            self._fail(part, error)
        else:
            self._later(lambda: self._note(part, ps.PartDone()))

    def _fail(self, part: LocalPart, error: BaseException) -> None:
        self._later(lambda: self._note_error(part, error))

    def _note_error(self, part: LocalPart, error: BaseException) -> None:
        part.errors[self.rank] = error
        self._note(part, ps.PartFailed(self.rank))

    def wait(self, part: LocalPart, message: int) -> None:
        """A part has waited for a message for a while."""
        self._later(lambda: self._note(part, ps.PartWaits(message)))

    def _send_gradients(self, part: LocalPart, node: RecvRpcBackward, frames: Frames) -> None:
        part.spans_hosts = part.spans_hosts or node.origin != self.rank

        def send() -> None:
            self._note(part, ps.GradientsLeft(node.origin))
            head = Gradients(
                *_of(part), node.message, part.keep_graph, part.is_smart, part.inputs is not None,
                part.follows,
            )  # fmt: skip
            self._send(node.origin, head, frames)

        self._later(send)

    def _later(self, request: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the group has ended
            self._ask(request)

    # ------------------------------------------------------------------ messages

    def handle(self, sender: int, message: BackwardMessage, frames: Frames) -> None:
        """Take a message of another rank, or of this one."""
        if isinstance(message, ContextReleased):
            loss = None if message.lost < 0 else (message.lost, message.cause)
            self.release(message.context, loss)
            return
        backward = message.root, message.number
        context = self.contexts.known(message.context)
        if context is not None and context.mended and message.root != self.rank:
            # That process may know only a part of what the dead one knew.
            loss = over(context.mended, context.state.why_over_by(message.root))
            self.release(context.id, loss)
            context = None
        if context is None:
            self._refuse(sender, message)
            return
        if message.root == sender:
            context.state.span(sender, "it had called backward()")
        elif sender not in context.state.hosts:
            context.state.span(sender, "another rank had called it")
        part = context.parts.get(backward)
        if part is None:
            if message.root != self.rank:
                part = self._new_part(context, backward, message)
            else:  # it has ended: tell those who do not know
                part = self._part(context, backward, is_smart=True)
        try:
            event = self._event(part, sender, message, frames)
        except KeyError as error:  # a message that this process has not sent
            self._note_error(part, self._as_successor(context.id) or error)
        except Exception as error:
            self._note_error(part, error)
        else:
            self._note(part, event)

    def _new_part(
        self, context: DistAutogradContext, backward: PassId, message: BackwardMessage
    ) -> LocalPart:
        is_smart = message.is_smart if isinstance(message, Gradients) else True
        part = context.parts[backward] = self._part(context, backward, is_smart=is_smart)
        return part

    def _part(self, context: DistAutogradContext, backward: PassId, *, is_smart: bool) -> LocalPart:
        return self.part_class(
            context, backward, is_smart=is_smart,
            send=self._send_gradients, wait=self.wait, wait_until=self._wait_until,
        )  # fmt: skip

    def _refuse(self, sender: int, message: BackwardMessage) -> None:
        """The context is no more: the root of the backward must not wait for this host."""
        if isinstance(message, AskMarks | BeginPart | Gradients):
            answer = PartError(message.context, message.root, message.number)
            error = self._why_gone(message.context)
            self._send(message.root, answer, [encode_error(error, self._where)])

    def _event(
        self, part: LocalPart, sender: int, message: BackwardMessage, frames: Frames
    ) -> ps.PassEvent:
        if isinstance(message, AskMarks):
            reached = part.reach_from_slots(message.slots)
            return ps.MarksAsked(sender, message.question, reached)
        if isinstance(message, AnswerMarks):
            reached = part.reach_from_slots(message.slots)
            return ps.MarksAnswered(message.question, message.hosts, reached)
        if isinstance(message, BeginPart):
            self._take_options(part, message)
            part.mark(message.slots)
            return ps.PartRequested()
        if isinstance(message, Gradients):
            if not part.is_smart and not part.is_root:
                self._take_options(part, message)
            if not part.context.has_sent(message.message):
                raise KeyError(message.message)
            part.arrive(message.message, frames)
            return ps.GradientsArrived(sender, message.message)
        if isinstance(message, PartState):
            part.waits[sender] = message.what
            report = ps.PartReport(
                message.report, message.waits_for, message.sent, message.received
            )
            return ps.ReportArrived(sender, report)
        if isinstance(message, PartError):
            part.spans_hosts = True
            part.errors[sender] = decode_error(bytes(frames[0]))
            return ps.PartFailed(sender)
        if isinstance(message, Conclusion):
            part.frees = message.frees
            return ps.ConclusionArrived(message.commits)
        assert isinstance(message, ConclusionRead)
        return ps.ConclusionSeen(sender)

    def _take_options(self, part: LocalPart, message: BeginPart | Gradients) -> None:
        part.begin_as(
            keep_graph=message.keep_graph, is_partial=message.is_partial, follows=message.follows
        )

    def gone(self, rank: int, cause: str, *, returns: bool = False) -> None:
        """A process has died or left: the contexts that span it are no more.

        Args:
            rank, cause: which process, and why.
            returns: another one takes its place. A context in which it can do all again goes on,
                and backwards that run here begin anew.
        """
        self._lost[rank] = cause
        for context in self.contexts.all():
            if rank not in context.state.hosts:
                continue
            why = context.state.why_over(rank)
            if not why and not all(part.keep_graph for part in context.parts.values()):
                why = "a backward that keeps no graph was running"
            if not returns:
                self.release(context.id, (rank, cause))
            elif why:
                self.release(context.id, over((rank, cause), why))
            else:
                self._end_parts(context, rank)

    def _end_parts(self, context: DistAutogradContext, rank: int) -> None:
        for part in context.parts.values():
            part.ended_by = rank
        for backward, steps in context.state.close(rank):
            self._perform(context.parts[backward], steps)

    def returned(self, rank: int) -> None:
        """A rank has another process, which knows nothing of all this."""
        self._lost.pop(rank, None)

    # ------------------------------------------------------------------ instructions

    def _note(self, part: LocalPart, event: ps.PassEvent) -> None:
        state = part.context.state
        self._perform(part, state.handle_event(part.id, event, is_smart=part.is_smart))

    def _perform(self, part: LocalPart, steps: Sequence[ps.PassInstruction]) -> None:
        for step in steps:
            self._perform_one(part, step)
        if part.id not in part.context.state.running:
            part.context.parts.pop(part.id, None)

    def _perform_one(self, part: LocalPart, step: ps.PassInstruction) -> None:
        head = _of(part)
        if isinstance(step, AskHost):
            self._send(step.to, AskMarks(*head, step.question, step.slots))
        elif isinstance(step, AnswerHost):
            self._send(step.to, AnswerMarks(*head, step.question, step.hosts, step.slots))
        elif isinstance(step, ps.RequestPart):
            is_partial = part.inputs is not None
            begin = BeginPart(*head, step.slots, part.keep_graph, is_partial, part.follows)
            self._send(step.to, begin)
        elif isinstance(step, ps.StartPart):
            self._start(part)
        elif isinstance(step, ps.SendReport):
            what = part.described(step.report.waits_for)
            report = step.report
            told = PartState(
                *head, report.number, report.waits_for, what, report.sent, report.received
            )
            self._send(step.to, told)
        elif isinstance(step, ps.TellFailure):
            data = encode_error(part.errors[self.rank], self._where)
            self._send(step.to, PartError(*head), [data])
        elif isinstance(step, ps.Conclude):
            self._send(step.to, Conclusion(*head, step.commits, part.frees))
        elif isinstance(step, ps.TakeGradients):
            part.take_gradients()
        elif isinstance(step, ps.DropGradients):
            part.stop()
        elif isinstance(step, ps.ConfirmConclusion):
            self._send(step.to, ConclusionRead(*head))
        else:
            self._end(part, step)

    def _start(self, part: LocalPart) -> None:
        if part.is_root:
            part.may_run.set()
        else:
            self._run(lambda: self.run_part(part))

    def _end(self, part: LocalPart, end: ps.EndBackward) -> None:
        part.end = end
        if end.stuck is not None and end.stuck[0] == self.rank:
            part.waits[self.rank] = part.described(end.stuck[1])
        error = part.errors.get(end.failed)
        if isinstance(error, HostLost):  # before backward() raises: nobody finds the context then
            self.release(part.context.id, (error.rank, error.cause))
        part.has_ended.set()
        part.may_run.set()

    def _send(self, to: int, message: BackwardMessage, frames: Frames | None = None) -> None:
        if to not in self._lost:
            self._tell(to, message, frames or [])


def _of(part: LocalPart) -> tuple[int, int, int]:
    return (part.context.id, *part.id)
