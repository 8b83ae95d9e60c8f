"""Session: one calling thread's connection to the coordinator, around ClientState.

While it waits for its graph, the calling thread runs the tasks of the client (hooks, closures) and
shows the output of workers.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypeVar

from mpgrad.autograd.running.deferred_interrupts import Interrupts
from mpgrad.base.handles import Block, is_counted
from mpgrad.base.hook_for_tests import hooked
from mpgrad.engine.coordinator_start import CoordinatorProcess
from mpgrad.engine.coordinator_watchdog import ASK_AFTER, WAIT_MS, CoordinatorWatchdog
from mpgrad.errors import (
    CoordinatorLost,
    EngineClosed,
    InvariantViolated,
    MpgradError,
    ProtocolError,
)
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.client_state import ClientState
from mpgrad.wire import schema
from mpgrad.wire.output_record import CHANGED, RUN, WARNING, show_output
from mpgrad.wire.schema import decode, encode
from mpgrad.wire.transport import Dealer

T = TypeVar("T")
Outcome: TypeAlias = do.CompleteGraph | do.FailGraph
#: The number of questions that measure a round trip.
QUESTIONS = 5
#: A number that no graph has, for the question whether the coordinator answers.
NO_GRAPH = -1
#: The bytes of shown output that a session keeps.
SHOWN_BYTES_MAX = 1 << 20
#: The numbers of the graphs that this process submits.
_numbers = itertools.count(1)

_FORKED = (
    "process {child} was forked inside a backward() of process {parent}, which alone can finish "
    "it. End the child with os._exit() in the hook or Function that forks; with "
    'Engine(mode="local") both processes go on.'
)

RunTask: TypeAlias = Callable[[do.DispatchNodeTask], ev.NodeTaskDone | ev.NodeTaskFailed]


class Session:
    """A session, used by one thread at a time.

    Args:
        coordinator: the process to talk to.
        peer: this session's name, "c<pid>.<number>".
        interrupts: defer Ctrl-C except while the session waits.
        ended_branches: the branches of workers that nobody will differentiate (slot, number).

    Raises:
        CoordinatorLost: it died before it answered.
        EngineClosed: it refused (its workers cannot be started).
    """

    def __init__(
        self,
        coordinator: CoordinatorProcess,
        peer: str,
        interrupts: Interrupts | None = None,
        ended_branches: deque[tuple[int, int]] | None = None,
    ) -> None:
        self.peer = peer
        self.coordinator = coordinator
        self._state = ClientState(peer)
        self._dealer: Dealer = hooked("client", coordinator.endpoint.session(peer))
        self._watchdog = CoordinatorWatchdog(coordinator)
        #: The number of waits in a row after which nothing had come.
        self._silent = 0
        #: The number of frames from the coordinator that break the protocol.
        self.refused_frames = 0
        #: A descriptor of its own: the engine may be closed while this session waits.
        self._pidfd = os.dup(coordinator.pidfd)
        self._dealer.watch(self._pidfd)
        self._pid = os.getpid()
        self._answers: list[Any] = []
        #: The reason why the coordinator refuses this session, once it says so.
        self._refusal: str | None = None
        #: By graph, the output of workers.
        self._kept: dict[int, list[do.ForwardOutput]] = {}
        #: The bytes in it that have been shown.
        self._shown_bytes = 0
        #: Blocks that this session holds and whose last view here has died; any thread appends.
        self.to_release: deque[Block] = deque()
        self._ended_branches = deque() if ended_branches is None else ended_branches
        self._run_task: dict[int, RunTask] = {}
        #: The graphs among them that are calls forward, which no gradient begins.
        self._calls: set[int] = set()
        #: The number of its workers; 0 until they have started.
        self.workers = 0
        self.interrupts = Interrupts() if interrupts is None else interrupts
        try:
            self._tell(schema.Hello(peer, coordinator.endpoint.token, schema.PROTOCOL_VERSION))
            self.workers = self._answer(schema.Welcome).workers
            coordinator.hear_of_start()
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------ a graph

    @property
    def running(self) -> list[int]:
        """The graphs that have been submitted and have not ended."""
        return self._state.running

    def run(
        self, messages: Iterator[ev.GraphSubmitted | ev.GraphExtended], run_task: RunTask
    ) -> Outcome:
        """Submit a graph and wait for its end.

        Args:
            messages: the graph; all but the first may be made while the workers begin.
            run_task: runs the tasks of the client.

        Raises:
            CoordinatorLost: the coordinator died.
            BaseException: Ctrl-C, or the exception of another signal handler or of ``messages``;
                the graph has been cancelled, the workers keep running.
        """
        with self.interrupts.deferred():
            graph, failure = self.submit(messages, run_task)
            try:
                while graph not in self._state.outcomes:
                    try:
                        self.step()
                    except MpgradError:
                        raise
                    except BaseException as error:
                        self._stop(graph, error)
                        raise
                if failure is not None:
                    raise failure
                return self._state.outcomes.pop(graph)
            finally:
                self.abandon(graph)

    def submit(
        self, messages: Iterator[ev.GraphSubmitted | ev.GraphExtended], run_task: RunTask
    ) -> tuple[int, Exception | None]:
        """Submit a graph, of which ``take_outcome`` gives the end after enough steps.

        Returns:
            Its number, and the error of ``messages``, for which it has been cancelled.
        """
        submission = next(messages)
        graph = submission.graph
        self._run_task[graph] = run_task
        has_begun = isinstance(submission, ev.GraphSubmitted) and submission.done
        if not (submission.seeds or has_begun):
            self._calls.add(graph)
        try:
            self._handle(submission)
            self._send(*self._releases(), submission)
            return graph, self._extend(graph, messages)
        except BaseException:
            self.abandon(graph)
            raise

    def take_outcome(self, graph: int) -> Outcome | None:
        """The end of a graph that was submitted; None if it has not come yet."""
        outcome = self._state.outcomes.pop(graph, None)
        if outcome is not None:
            self.abandon(graph)
        return outcome

    def abandon(self, graph: int) -> None:
        """Nobody waits for the graph any more."""
        del self._run_task[graph]
        self._calls.discard(graph)
        self._discard(graph)
        if not self._run_task:
            self.interrupts.forget()

    def cancel(self, graph: int, grace_ms: int | None) -> None:
        """Let none of the graph's tasks begin any more (see ``GraphCancelled``). Its end comes."""
        self._send(*self._handle(ev.GraphCancelled(self.peer, graph, grace_ms)))

    def watch(self, descriptor: int) -> None:
        """Let a step end when ``descriptor`` is readable."""
        self._dealer.watch(descriptor)

    def unwatch(self, descriptor: int) -> None:
        """Undo ``watch``."""
        self._dealer.unwatch(descriptor)

    def _stop(self, graph: int, cause: BaseException) -> None:
        """Cancel ``graph`` after a signal, and wait for its end for a limited time."""
        grace_ms = self.interrupts.begin_to_stop(cause)
        try:
            self.cancel(graph, grace_ms)
            while graph not in self._state.outcomes and self.interrupts.patience_ms:
                self.step()
        except (KeyboardInterrupt, CoordinatorLost):
            pass  # a second Ctrl-C; or there is nothing to wait for
        if graph not in self._state.outcomes:
            self.coordinator.kill()

    def _discard(self, graph: int) -> None:
        """Release the results of a graph that nobody fetched: Ctrl-C came as it was done."""
        outcome = self._state.outcomes.pop(graph, None)
        if isinstance(outcome, do.CompleteGraph):
            self.to_release += [ref for ref in outcome.captures if is_counted(ref)]

    def _extend(self, graph: int, messages: Iterator[Any]) -> Exception | None:
        """Send the rest of a graph; if that cannot be made, cancel the part that has begun."""
        try:
            for message in messages:
                self._send(message)
                try:
                    with self.interrupts.allowed():
                        pass
                except BaseException as error:
                    self._stop(graph, error)
                    raise
        except Exception as error:
            self.cancel(graph, None)
            return error
        return None

    def _require_welcome(self) -> None:
        """Raise EngineClosed if the coordinator has refused this session."""
        if self._refusal is not None:
            reason, _, stack = self._refusal.partition("\n")
            error = EngineClosed(
                f"the coordinator process (pid {self.coordinator.pid}) refused session "
                f"{self.peer}: {reason}. No .grad was changed. `mpgrad doctor` tells what "
                'this machine offers; Engine(mode="local") needs no other processes.'
            )
            if stack:
                error.add_note(stack)
            raise error

    def step(self) -> None:
        """Wait for a message and handle it."""
        self._require_welcome()  # it is sent once, perhaps to a backward inside this one
        patience_ms = self.interrupts.patience_ms
        with self.interrupts.allowed():
            readable = self._dealer.wait(WAIT_MS if patience_ms is None else patience_ms)
        ended = len(self._state.outcomes)
        frames = self._dealer.receive()
        if patience_ms is None:
            self._note_wait(bool(frames or readable))
        replies: list[Any] = []
        try:
            messages = [decode(frame, schema.TO_CLIENT) for frame in frames]
            # Tasks come last: a backward inside one would wait for what has come behind it.
            for message in sorted(messages, key=_is_task):
                replies += self._receive(message)
        except ProtocolError as error:
            raise self.distrust(error) from error
        if replies:
            self._tell(*replies)
        # Results that it sent before its death count.
        if self._pidfd in readable and len(self._state.outcomes) == ended:
            raise self._loss()

    def _note_wait(self, has_come: bool) -> None:
        """After some silence, ask for the graphs: a coordinator that lives answers at once."""
        self._silent = 0 if has_come else self._silent + 1
        waits = "" if has_come else self._waits()
        owes_answer = self._silent > ASK_AFTER
        self._watchdog.note_wait(has_come=has_come, waits=waits, owes_answer=owes_answer)
        if self._silent == ASK_AFTER:
            graphs = self.running or (NO_GRAPH,)
            self._send(*[ev.GraphAwaited(self.peer, graph) for graph in graphs])

    def _waits(self) -> str:
        """What waits for the coordinator now."""
        if self._run_task:
            return "a call" if self._runs_calls() else "a backward"
        return "a question to the engine" if self.workers else "the start of the engine"

    def _runs_calls(self) -> bool:
        """Whether the graph that it waits for, the innermost one, is of calls."""
        return [*self._run_task][-1] in self._calls

    def _loss(self) -> MpgradError:
        """Why the coordinator has gone."""
        next_ = "backward"
        if not self._run_task:
            while_ = f"while {self._waits()} waited for it."
        elif self._runs_calls():
            while_, next_ = "while calls were running in its workers.", "call"
        else:
            while_ = "while a backward was running; no .grad was changed."
        if self.coordinator.is_closed:
            return EngineClosed(
                f"the engine was closed {while_} Make a new Engine, or close it later."
            )
        if not self.coordinator.hear_of_start():
            return self.coordinator.failed_start()
        return CoordinatorLost(
            f"{self.coordinator.cause_of_death()} {while_} The next {next_} starts a new one."
        )

    def distrust(self, error: ProtocolError) -> ProtocolError:
        """Kill a coordinator that breaks the protocol; return the error for the caller."""
        self.refused_frames += 1
        self.coordinator.kill("was killed, because it broke the protocol")
        return ProtocolError(
            f"the coordinator process (pid {self.coordinator.pid}) sent session {self.peer} what "
            f"the protocol does not allow: {error}. No .grad was changed; it was killed, and the "
            "next backward starts a new one. This is a bug in mpgrad, or something has overwritten "
            "its memory: please report it."
        )

    def _receive(self, message: Any) -> list[Any]:
        if isinstance(message, schema.Refused):
            self._refusal = message.reason
            self._require_welcome()
        if isinstance(message, schema.Broken):
            how = "ended after an internal error, of which it printed more"
            self.coordinator.kill(f"{how}: {message.reason}")
            return []
        if isinstance(message, do.ForwardOutput):
            self._show(message)
            return []
        if isinstance(message, schema.Welcome | schema.Processes):
            self._answers.append(message)
            return []
        replies: list[Any] = []
        for instruction in self._handle(message):
            if isinstance(instruction, do.ExecuteNodeTask):
                dispatch = instruction.dispatch
                reply = self._run_task[dispatch.owner_number](dispatch)
                if os.getpid() != self._pid:
                    raise MpgradError(_FORKED.format(child=os.getpid(), parent=self._pid))
                replies += self._handle(ev.NodeTaskFinished(reply))
            else:
                replies.append(instruction)
        return replies

    def _handle(self, event: Any) -> list[Any]:
        """The reaction of this session's core to ``event``; an exception there is a bug."""
        try:
            return self._state.handle_event(event)
        except ProtocolError:
            raise
        except Exception as error:
            raise InvariantViolated(
                f"session {self.peer} (pid {os.getpid()}) met an internal error: {error}. This is "
                "a bug in mpgrad: please report it."
            ) from error

    def _show(self, output: do.ForwardOutput) -> None:
        """Show what a worker printed or logged; keep it, too, as the graph may run again.

        Warnings are only kept: filters of the user may raise them.
        """
        if output.kind not in (WARNING, RUN, CHANGED):
            show_output(output.kind, output.data)
            self._shown_bytes += len(output.data)
            if self._shown_bytes > SHOWN_BYTES_MAX:
                return
        self._kept.setdefault(output.graph, []).append(output)

    def kept_of(self, graph: int) -> list[do.ForwardOutput]:
        """Remove and return the output of ``graph``, after its end: what was shown, warnings, and
        reports on its Functions."""
        kept = self._kept.pop(graph, [])
        if not self._kept:
            self._shown_bytes = 0
        return kept

    # ------------------------------------------------------------------ everything else

    def processes(self) -> schema.Processes:
        """The processes of this engine, and the figures of its arena."""
        self._tell(*self._releases(), schema.QueryProcesses(self.peer))
        answer: schema.Processes = self._answer(schema.Processes)
        return answer

    def round_trip_us(self) -> float:
        """The shortest of a few round trips to the coordinator."""
        took = []
        for _ in range(QUESTIONS):
            started = time.perf_counter()
            self.processes()
            took.append(time.perf_counter() - started)
        return 1e6 * min(took)

    def send_releases(self) -> None:
        """Tell the coordinator which blocks have no view in this process any more."""
        self._tell(*self._releases())

    def _releases(self) -> list[ev.BlocksReleased | ev.BranchesReleased]:
        releases: list[ev.BlocksReleased | ev.BranchesReleased] = []
        if self.to_release:
            releases.append(ev.BlocksReleased(self.peer, _emptied(self.to_release)))
        if self._ended_branches:
            releases.append(ev.BranchesReleased(self.peer, _emptied(self._ended_branches)))
        return releases

    def stop_engine(self) -> None:
        """Ask the coordinator to end."""
        self._tell(schema.StopEngine(self.peer))

    def close(self) -> None:
        self._dealer.close()
        os.close(self._pidfd)

    def _answer(self, kind: type[Any]) -> Any:
        """Wait for an answer outside any graph."""
        while True:
            for index, message in enumerate(self._answers):
                if isinstance(message, kind):
                    return self._answers.pop(index)
            self.step()

    def _tell(self, *messages: Any) -> None:
        """``_send``, where signals are not deferred already."""
        with self.interrupts.deferred():
            self._send(*messages)

    def _send(self, *messages: Any) -> None:
        if messages:
            self._dealer.send([encode(message) for message in messages])


def _emptied(queue: deque[T]) -> tuple[T, ...]:
    """All that is in ``queue``, to which other threads may append meanwhile."""
    found = []
    while queue:
        found.append(queue.popleft())
    return tuple(found)


def _is_task(message: object) -> bool:
    return isinstance(message, do.DispatchNodeTask)


def next_graph_number() -> int:
    """A number that no other graph of this process has."""
    return next(_numbers)
