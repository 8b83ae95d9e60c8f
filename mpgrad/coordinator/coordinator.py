"""The coordinator's loop: poll, decode, ``handle_event``, perform, flush, repeat.

It translates between messages and the core and decides nothing. It never sees an array and loads no
array library.
"""

from __future__ import annotations

import gc
import hmac
import math
import os
import select
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from mpgrad.base.standard_streams import say
from mpgrad.coordinator.supervisor import Supervisor, WorkerProcess
from mpgrad.coordinator.worker_watchdog import Deadlines, StartWatch, Watchdog
from mpgrad.errors import InvariantViolated, ProtocolError, TablesCorrupt
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.coordinator_state import CoordinatorState
from mpgrad.scheduler.lease_table import BlockAllocator
from mpgrad.shm.free_list import FreeListStatistics
from mpgrad.shm.status_board import BoardFigures, QueueFigures
from mpgrad.wire import schema
from mpgrad.wire.schema import decode, encode
from mpgrad.wire.setup import CoordinatorSetup
from mpgrad.wire.transport import CLIENT, CONTROL, TASK, URGENT, WORKER_LANES, Arrival, Router

#: The number of internal errors that are told with all that led to them: a peer that provokes them
#: must not fill the screen.
ERRORS_TOLD_MAX = 8
#: The characters of one that a session is told.
REASON_SHOWN = 2000
#: The seconds in which one that waits reads this.
READ_WITHIN_S = 5.0
#: Seconds between two full collections while there is work. There are hardly any cycles, but
#: nothing else empties the interpreter's free lists. A collection takes a few milliseconds.
COLLECT_EVERY_S = 30.0
#: Seconds after which ``mpgrad top`` is told of what has happened.
REPORT_AFTER_S = 0.1


class EngineArena(BlockAllocator, Protocol):
    """Decides where the blocks of the engine's arena lie, and counts them."""

    def statistics(self) -> FreeListStatistics: ...


class Coordinator:
    """The shell around CoordinatorState.

    Args:
        setup: the client's options for this engine.
        router: the connections to workers and sessions.
        supervisor: the parent of the workers.
        arena: the engine's arena.
        clock: the time in seconds.
    """

    def __init__(
        self,
        setup: CoordinatorSetup,
        router: Router,
        supervisor: Supervisor,
        arena: EngineArena,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._setup, self._router, self._supervisor = setup, router, supervisor
        self._arena, self._clock = arena, clock
        self._client: tuple[int, ...] = ()
        self.state = CoordinatorState(arena)
        #: The lanes on which each worker has sent Hello; it is ready when they are complete.
        self._greeted: dict[str, set[str]] = {}
        #: Sessions that wait for their Welcome until the workers are ready.
        self._waiting: list[str] = []
        self._sessions: set[str] = set()
        self._unavailable: str | None = None
        #: The number of refused frames, from any sender.
        self.protocol_errors = 0
        self._errors_told = 0
        self._watchdog = Watchdog(setup.task_timeout_s)
        self._deadlines = Deadlines()
        self._starts = StartWatch(setup.start_timeout_s, supervisor)
        self._collect_at_s = clock() + COLLECT_EVERY_S
        self._report_at_s = 0.0
        #: Whether something has happened since the last report.
        self._has_news = False
        self._stopping = False

    def begin(
        self,
        client: tuple[int, ...],
        workers: list[WorkerProcess],
        failure: OSError | None = None,
    ) -> None:
        """Watch the first processes.

        Args:
            client: the client's pidfd, and the lifeline.
            workers: the workers that have been started.
            failure: the error of the system when it refused the next one, if any.
        """
        self._client = client
        for descriptor in (*client, *[worker.child.pidfd for worker in workers]):
            self._router.watch(descriptor)
        self._starts.wake(self._clock())
        if failure is not None:
            self._on_no_process(len(workers), failure)

    def run(self) -> None:
        """The loop; blocks without using the CPU while nothing happens."""
        while not self._stopping:
            self.turn()

    def turn(self) -> None:
        """Wait for an event, handle everything that has arrived, and send the replies."""
        received = self._router.receive(self.wait_ms())
        # Messages come before deaths: a reply that was sent before its sender died still counts.
        for arrival in received.arrivals:
            self._receive(arrival)
        for descriptor in received.readable:
            self._on_death(descriptor)
        self._watch(bool(received.arrivals))
        # The end of a session has replies of its own.
        while gone := self._router.flush():
            for peer in gone:
                self._on_unreachable(peer)
        # Not at once: somebody waits for what this turn has sent.
        if not self._has_news:
            self._has_news, self._report_at_s = True, self._clock() + REPORT_AFTER_S
        elif self._clock() >= self._report_at_s:
            self._report()

    def _report(self) -> None:
        state, arena = self.state, self._arena.statistics()
        held = {peer: len(one.flights) for peer, one in state.membership.members.items()}
        figures = BoardFigures(
            len(self._sessions),
            len(state.graphs),
            len(state.ready),
            sum(held.values()),
            sum([graph.remaining for graph in state.graphs.values()]),
            arena.used_bytes,
            arena.limit_bytes,
        )
        queues = [QueueFigures(*length) for length in state.ready.lengths()]
        self._supervisor.report(figures, queues, held)
        self._has_news = False

    def wait_ms(self) -> int | None:
        """How long the loop may sleep without an event; None: forever."""
        now_s = self._clock()
        watches = (self._watchdog, self._deadlines, self._starts)
        waits_ms = [watch.wait_ms(now_s) for watch in watches]
        if self._has_news:
            waits_ms.append(max(0, math.ceil((self._report_at_s - now_s) * 1000)))
        return min((ms for ms in waits_ms if ms is not None), default=None)

    def on_error(self, error: BaseException) -> None:
        """Report an internal error: where it was raised, and the last events of the core."""
        say(f"the coordinator (pid {os.getpid()}) met an internal error: {error}")
        self._errors_told += 1
        if self._errors_told <= ERRORS_TOLD_MAX:
            say("".join(traceback.format_exception(error)).rstrip("\n"))

    def give_up(self, error: Exception) -> None:
        """Report the internal error for which this process ends, to the sessions, too.

        A session that waits ends this process as soon as it has read it.
        """
        self.on_error(error)
        reason = f"{type(error).__name__}: {error}"[:REASON_SHOWN]
        for peer in self._sessions:
            self._router.send(CLIENT, peer, encode(schema.Broken(peer, reason)))
        self._router.flush()
        # Who reads it ends this process. What is in no inbox yet would be lost with it.
        select.select(self._client if self._sessions else (), (), (), READ_WITHIN_S)

    def close(self) -> None:
        """Stop the workers."""
        for peer in self._greeted:
            if self._supervisor.is_current(peer):
                _send_instruction(self._router, do.ShutDown(peer))
        self._router.flush()
        self._supervisor.stop_all()
        self._router.close()

    # ------------------------------------------------------------------ messages

    def _receive(self, arrival: Arrival) -> None:
        """One frame: authenticate, decode, handle. A peer that breaks the protocol is cut off."""
        from_client = arrival.lane == CLIENT
        allowed = schema.FROM_CLIENT if from_client else schema.FROM_WORKER
        try:
            message = decode(arrival.frame, allowed)
            if message.peer != arrival.peer:
                raise ProtocolError(f"{arrival.peer} sent a message in the name of {message.peer}")
            if isinstance(message, schema.Hello):
                self._greet(arrival, message)
            elif from_client and arrival.peer in self._sessions:
                self._on_client_message(message)
            elif not from_client and self._is_ready(arrival.peer):
                if isinstance(message, ev.OutputEmitted) and message.kind == schema.SPOILED:
                    self._supervisor.fence(message.peer)
                else:
                    self._handle(message)
            else:
                raise ProtocolError(f"{arrival.peer} has not said Hello, or was cut off")
        except TablesCorrupt:
            raise  # no peer is to blame
        except (ProtocolError, InvariantViolated, LookupError) as error:
            # LookupError: the tables of the sender have no such task, slot or place.
            self._cut_off(arrival, error)

    def _greet(self, arrival: Arrival, hello: schema.Hello) -> None:
        if not hmac.compare_digest(hello.token, self._setup.endpoint.token):
            raise ProtocolError("a wrong token")
        if hello.version != schema.PROTOCOL_VERSION:
            # The installed mpgrad was changed after this engine had started.
            self._supervisor.fence(arrival.peer)
            raise ProtocolError(f"protocol version {hello.version}")
        if self._has_greeted(arrival):
            raise ProtocolError(f"{arrival.peer} sent Hello twice")
        if _is_session(arrival.peer) != (arrival.lane == CLIENT):
            raise ProtocolError(f"{arrival.peer} is not a valid peer name on lane {arrival.lane}")
        if arrival.lane == CLIENT:
            self._open_session(arrival.peer)
        elif self._supervisor.is_current(arrival.peer):
            self._greeted.setdefault(arrival.peer, set()).add(arrival.lane)
            if self._is_ready(arrival.peer):
                self._supervisor.joined(arrival.peer)
                device, arena = self._supervisor.device_of(arrival.peer)
                self._handle(ev.WorkerJoined(arrival.peer, device, arena))
                self._welcome()

    def _has_greeted(self, arrival: Arrival) -> bool:
        """Whether the sender has proved its identity on this connection."""
        if arrival.lane == CLIENT:
            return arrival.peer in self._sessions
        return arrival.lane in self._greeted.get(arrival.peer, ())

    def _is_ready(self, peer: str) -> bool:
        return len(self._greeted.get(peer, ())) == len(WORKER_LANES)

    def _open_session(self, peer: str) -> None:
        self._sessions.add(peer)
        self._handle(ev.SessionOpened(peer))
        self._waiting.append(peer)
        self._welcome()

    def _welcome(self) -> None:
        """Answer waiting sessions once all workers are ready, or none can be started."""
        if self._unavailable is None and self._supervisor.ready_count < self._supervisor.slots:
            return
        for peer in self._waiting:
            reply = (
                schema.Welcome(peer, self._supervisor.ready_count)
                if self._unavailable is None
                else schema.Refused(peer, self._unavailable)
            )
            self._router.send(CLIENT, peer, encode(reply))
        self._waiting.clear()

    def _on_client_message(self, message: Any) -> None:
        if isinstance(message, schema.StopEngine):
            self._stopping = True
        elif isinstance(message, schema.QueryProcesses):
            self._answer_query(message.peer)
        else:
            self._handle(message)

    def _answer_query(self, peer: str) -> None:
        arena = self._arena.statistics()
        figures = (
            arena.used_bytes,
            arena.idle_bytes,
            arena.live_blocks,
            arena.peak_bytes,
            arena.limit_bytes,
        )
        pids, restarts = self._supervisor.pids(), self._supervisor.restarts
        refused = self.protocol_errors + self._router.ignored
        answer = schema.Processes(
            peer, pids, restarts, figures, refused, *self._supervisor.branches()
        )
        self._router.send(CLIENT, peer, encode(answer))

    def _handle(self, event: Any) -> None:
        self._perform(self.state.handle_event(event))

    def _perform(self, instructions: list[do.CoordinatorInstruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, do.StartWorker):
                self._start_worker(instruction.slot)
            elif isinstance(instruction, do.FenceWorker):
                self._supervisor.fence(instruction.peer)
            elif isinstance(instruction, do.SetDeadline):
                self._deadlines.set(instruction, self._clock())
            else:
                try:
                    _send_instruction(self._router, instruction)
                except ProtocolError as error:  # the message would be too long
                    self._refuse(self._session_behind(instruction), error)

    def _session_behind(self, instruction: do.ToWorker | do.ToClient) -> str:
        """The session that waits for what an instruction causes."""
        if isinstance(instruction, do.DispatchNodeTask):
            return self.state.graphs[instruction.graph].owner
        return instruction.peer

    # ------------------------------------------------------------------ deaths and hangs

    def _watch(self, has_arrivals: bool) -> None:
        """Check the busy workers, and report passed deadlines, if it is time."""
        now_s = self._clock()
        for passed in self._deadlines.take_passed(now_s):
            self._handle(passed)
        self._starts.look_in_time(now_s)
        if self._watchdog.is_due(now_s):
            busy = [worker.peer for worker in self.state.membership.workers() if worker.flights]
            sights = [self._supervisor.sight(peer) for peer in busy]
            for hung in self._watchdog.look(now_s, sights):
                self._handle(hung)
            if now_s >= self._collect_at_s:
                gc.collect()
                self._collect_at_s = now_s + COLLECT_EVERY_S
        elif has_arrivals:
            self._watchdog.wake(now_s)

    def _start_worker(self, slot: int) -> None:
        try:
            worker = self._supervisor.start(slot)
        except OSError as error:
            self._on_no_process(slot, error)
        else:
            self._router.watch(worker.child.pidfd)
            self._starts.wake(self._clock())

    def _on_no_process(self, slot: int, error: OSError) -> None:
        """The system refuses to start a process for worker ``slot``."""
        self._give_up(
            f"a process for worker {slot} cannot be started: {error} (`ulimit -u`, `ulimit -n` and "
            "the cgroup's pids.max limit processes and files; use fewer workers: "
            "Engine(cpu_workers=...))"
        )

    def _on_death(self, descriptor: int) -> None:
        if descriptor in self._client:
            self._stopping = True
            return
        self._router.unwatch(descriptor)
        outcome = self._supervisor.reap(descriptor)
        if isinstance(outcome, int):
            self._start_worker(outcome)
        elif isinstance(outcome, ev.WorkerUnavailable):
            self._give_up(outcome.reason)
        else:
            self._greeted.pop(outcome.peer, None)
            self._handle(outcome)

    def _give_up(self, reason: str) -> None:
        self._unavailable = reason
        self._handle(ev.WorkerUnavailable(reason))
        self._welcome()

    def _on_unreachable(self, peer: str) -> None:
        """Close the session of an unreachable client; a dead worker is noticed by its pidfd."""
        if peer in self._sessions:
            self._close_session(peer)

    def _close_session(self, peer: str) -> None:
        self._sessions.discard(peer)
        if peer in self._waiting:
            self._waiting.remove(peer)
        self._handle(ev.SessionClosed(peer))

    def _refuse(self, session: str, error: Exception) -> None:
        """End a session with an error that its caller gets."""
        refusal = schema.Refused(session, f"protocol error: {error}")
        self._router.send(CLIENT, session, encode(refusal))
        self._close_session(session)

    def _cut_off(self, arrival: Arrival, error: Exception) -> None:
        self.protocol_errors += 1
        if not self._has_greeted(arrival):
            return  # the named peer itself has done nothing wrong
        if not isinstance(error, ProtocolError):
            self.on_error(error)  # the tables contradict each other: a bug
        if arrival.lane == CLIENT:
            self._refuse(arrival.peer, error)
        else:
            # Its other messages do not count: they may depend on the refused one.
            self._greeted.pop(arrival.peer, None)
            self._supervisor.fence(arrival.peer)


def _send_instruction(router: Router, instruction: do.ToWorker | do.ToClient) -> None:
    """Send an instruction to its peer on the right lane."""
    router.send(_lane(instruction), instruction.peer, encode(instruction))


def _lane(instruction: do.ToWorker | do.ToClient) -> str:
    if _is_session(instruction.peer):
        return CLIENT
    if isinstance(instruction, do.DispatchNodeTask):
        return URGENT if instruction.depth > 0 else TASK
    return CONTROL


def _is_session(peer: str) -> bool:
    """Whether ``peer`` is a session ("c<pid>.<number>"), not a worker ("w<slot>.<incarnation>")."""
    return peer.startswith("c")
