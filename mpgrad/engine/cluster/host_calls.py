"""HostCalls: deals calls to the hosts of a cluster, and hears how they have ended.

One thread owns all tables here; other threads only leave events for it. A branch is an entry of a
cache of its host, so a lost host is one path: what it had goes to another one.
"""

from __future__ import annotations

import queue
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from time import monotonic
from typing import Any, TypeAlias

import numpy as np

from mpgrad.autograd.running.deferred_interrupts import GRACE_MS
from mpgrad.base.standard_streams import say
from mpgrad.calls.call import items_in_order
from mpgrad.engine.calls_in_workers import Answered, Chunks, Request, depth_of_calls
from mpgrad.engine.cluster.array_places import ArrayPlaces
from mpgrad.engine.cluster.host_contract import Cluster, Greeting, Reply
from mpgrad.engine.cluster.host_demand import HostDemand
from mpgrad.engine.cluster.host_in_use import AHEAD, SLOTS, HostInUse
from mpgrad.engine.cluster.host_profile import note_calls
from mpgrad.engine.cluster.host_starts import HostStarts, line_of, others_text
from mpgrad.engine.cluster.host_tasks import StoredArrays, TaskPacker
from mpgrad.engine.cluster.single_calls import one_by_one, single_call
from mpgrad.engine.packed_arrays import PackedArrays
from mpgrad.engine.submitter import Submission, serving_here
from mpgrad.errors import EngineClosed, MpgradError, WorkerLost
from mpgrad.scheduler.events import ANY_SLOT
from mpgrad.shm.hosts_board import HostFigures, HostsBoard
from mpgrad.wire.captured_state import CapturedState

Array: TypeAlias = np.ndarray[Any, Any]

#: The calls in one message.
CALLS_MAX = 64
#: The messages for a host with many branches to differentiate.
MESSAGES = 2
#: Seconds between two looks for hosts that have come; that a start waits for all, and for one.
LOOK_S, OTHERS_S, START_S = 2.0, 20.0, 60.0
#: Seconds after which a host that does not answer counts as lost.
SILENCE_S = 30.0
#: The hosts that may be lost under a call, which may be the cause.
LOSSES_MAX = 3
#: The waiting calls among which a host's are chosen.
WINDOW = 64
_CLOSED = "the engine was closed before the call had ended"


class HostCalls:
    """The calls of one engine on the hosts of a cluster. Thread-safe.

    Args:
        cluster: the hosts.
        starts: which of them take part.
        demand: how many.
        clock: seconds.

    Attributes:
        ended: the branches that nobody will differentiate: place, number; any thread appends.
        workers: of all hosts that have started.
    """

    def __init__(
        self,
        cluster: Cluster,
        starts: HostStarts,
        demand: HostDemand = HostDemand(),  # noqa: B008  (it is frozen)
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._cluster, self._starts, self._demand, self._clock = cluster, starts, demand, clock
        self.ended: deque[tuple[int, int]] = deque()
        self.workers = 0
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._hosts: dict[int, HostInUse] = {}
        #: What hosts have done, by node.
        self._figures: dict[str, HostFigures] = {}
        self._board = HostsBoard()
        self._places = ArrayPlaces()
        self._waiting: deque[Submission] = deque()
        self._running: dict[Submission, tuple[HostInUse, int]] = {}
        #: The parts of submissions of several calls.
        self._parts: weakref.WeakKeyDictionary[Submission, list[Submission]] = (
            weakref.WeakKeyDictionary()
        )
        #: What runs although nobody wants it any more.
        self._unwanted: set[Submission] = set()
        self._digests: weakref.WeakKeyDictionary[PackedArrays, dict[int, tuple[bytes, Array]]] = (
            weakref.WeakKeyDictionary()
        )
        self._stored = StoredArrays(cluster)
        self._next = 0
        self._begun_at = self._looked_at = self._has_hosts_at = -1.0
        self.is_closed, self._closes = False, threading.Lock()
        #: Nobody can reach the engine any more.
        self._is_let_go = False
        self._thread = threading.Thread(target=self._serve, name="mpgrad-hosts", daemon=True)

    # ------------------------------------------------------------------ for other threads

    def start(self) -> None:
        """Start an engine on each host.

        Raises:
            MpgradError: a host does not fit, or none has started; the text names the hosts.
        """
        self._thread.start()
        try:
            self._starts.done.result(START_S)
        except TimeoutError:
            self.close()
            raise MpgradError(
                f"no host of the cluster has started an engine within {START_S:g} s: `ray status` "
                "shows whether their CPUs are in use; Engine(cpu_workers=...) asks for fewer"
            ) from None
        except BaseException:
            self.close()
            raise
        if self._starts.others:
            warnings.warn(others_text(self._starts.others), stacklevel=2)

    def submit(self, submission: Submission) -> None:
        """Let its calls run as soon as there is room."""
        calls = one_by_one(submission)
        if len(calls) > 1:
            self._parts[submission] = calls
        self.submit_all(calls)

    def submit_all(self, calls: Sequence[Submission]) -> None:
        """The same for several, which may share messages."""
        with self._closes:
            if not self.is_closed:
                self._events.put(partial(self._enqueue, calls))
                return
        for submission in calls:
            submission.fail(EngineClosed(_CLOSED))

    def stop(self, submission: Submission, grace_ms: int | None) -> None:
        """See ``Submitter.stop``."""
        for one in self._parts.get(submission, [submission]):
            self._events.put(partial(self._stop, one, grace_ms))

    def run_calls(
        self, chunks: Chunks, captured: CapturedState, keep: PackedArrays
    ) -> list[Answered]:
        """See ``calls_in_workers.run_calls``."""
        made: list[Submission] = []
        futures: list[Future[Answered]] = []
        depth = depth_of_calls()
        try:
            for chunk in chunks:
                calls = []
                for request in chunk:
                    futures.append(Future())
                    calls.append(single_call(request, captured, keep, depth, futures[-1]))
                made += calls
                self.submit_all(calls)
            return [future.result() for future in futures]
        except BaseException as error:
            for submission in made:
                self.stop(submission, None if isinstance(error, Exception) else GRACE_MS)
            self.ended.extend(
                [(ANY_SLOT, at) for some in chunks.made for one in some for at in one.recorded]
            )
            raise

    def figures(self) -> tuple[HostFigures, ...]:
        """What each host has done."""
        return tuple([replace(one) for one in [*self._figures.values()]])

    def close(self) -> None:
        """End all hosts' engines, and what waits for them."""
        if not self.is_closed:
            self._events.put(None)
            if self._thread.is_alive() and self._thread is not threading.current_thread():
                self._thread.join(10.0)

    def let_go(self) -> None:
        """End once nothing is under way. The garbage collector runs this: it takes no lock."""
        self._events.put(partial(setattr, self, "_is_let_go", True))

    def abandon(self) -> list[Submission]:
        """In a forked child, which has no hosts: what was under way."""
        self.is_closed = True
        self._board.close()
        return self._under_way()

    # ------------------------------------------------------------------ the thread

    def _serve(self) -> None:
        with serving_here(), self.closing():
            self.begin()
            while self.take(LOOK_S):
                pass

    def begin(self) -> None:
        """Look for the first hosts."""
        self._begun_at = self._clock()
        self._look()

    def take(self, timeout_s: float) -> bool:
        """Wait so long for the next event, and handle it; False if that is the end."""
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            event = self._release_idle
        if event is None:
            return False
        event()
        if self._events.empty():
            if self._clock() - self._looked_at > LOOK_S:
                self._look()
            self._deal()
        return not self._is_let_go or bool(self._under_way())

    def _under_way(self) -> list[Submission]:
        """What runs, and what waits."""
        waiting = [one for host in self._hosts.values() for one in host.waiting]
        return [*self._running, *self._waiting, *waiting]

    @contextmanager
    def closing(self) -> Iterator[None]:
        """End all that is under way after the block, with its error if it raises."""
        error: BaseException = EngineClosed(_CLOSED)
        try:
            yield
        except BaseException as found:
            error = found
        with self._closes:
            self.is_closed = True
        while not self._events.empty():
            if (event := self._events.get()) is not None:
                with suppress(Exception):
                    event()
        if not self._starts.done.done():
            self._starts.done.set_exception(error)
        for submission in self._under_way():
            submission.fail(error)
        for host in self._hosts.values():
            host.remote.kill()
        self._board.close()
        self._cluster.close()

    def _look(self) -> None:
        """Let hosts that have come start, and end calls that no host will run."""
        for remote in self._cluster.new_hosts(self._demand.room(len(self._hosts))):
            self._next += 1
            figures = self._figures.setdefault(remote.node, HostFigures(remote.name))
            host = self._hosts[self._next] = HostInUse(self._next, remote, figures)
            self._starts.begin(host)
            remote.greet(partial(self._later, self._greeted, host))
        per_host = AHEAD * max(self.workers / max(len(self._hosts), 1), 1.0)
        self._cluster.ask_for(self._demand.wanted(len(self._under_way()), per_host))
        self._looked_at = now = self._clock()
        is_early = now - self._begun_at < OTHERS_S
        self._starts.settle(waits=is_early, has_workers=self.workers > 0)
        for host in [one for one in self._hosts.values() if one.tasks]:
            if host.asked_at is None:
                host.asked_at = now
                host.remote.ask(partial(self._later, self._heard, host))
            elif now - host.asked_at > SILENCE_S:
                self._lose(host, TimeoutError(f"it has not answered for {SILENCE_S:g} s"))
        self._board.show([*self._figures.values()])
        if self.workers or not self._waiting:
            self._has_hosts_at = now
        elif now - self._has_hosts_at > START_S:
            lost = WorkerLost(f"the cluster has had no host for {START_S:g} s")
            while self._waiting:
                self._waiting.popleft().fail(lost)

    def _later(self, handle: Callable[..., None], *args: Any) -> None:
        self._events.put(partial(handle, *args))

    def _heard(self, host: HostInUse, result: Callable[[], None]) -> None:
        """A host has answered; whether it is gone, its calls say."""
        host.asked_at = None

    def _greeted(self, host: HostInUse, result: Callable[[], Greeting]) -> None:
        """A host has started, or has not."""
        if self._starts.end(host, result):
            self.workers += host.workers
            host.figures.workers = host.workers
        else:
            del self._hosts[host.number]
        self._starts.settle(waits=self._starts.waits, has_workers=self.workers > 0)

    def _enqueue(self, calls: Sequence[Submission]) -> None:
        for submission in calls:
            host = self._holder(submission.requests[0])
            (self._waiting if host is None else host.waiting).append(submission)

    def _holder(self, request: Request) -> HostInUse | None:
        """The host that has the branch of a call."""
        return self._hosts.get(request.near // SLOTS)

    def _deal(self) -> None:
        """Give what waits to the hosts that have its branch, or to those with the least to do.

        Several calls share a message, which costs more than a call in it.
        """
        for host in [one for one in self._hosts.values() if one.waiting]:
            count = max(host.workers, len(host.waiting) // MESSAGES)
            while host.waiting:
                self._send(host, _first(host.waiting, count))
        while self._waiting:
            free = [one for one in self._hosts.values() if one.is_free]
            if not free:
                return
            host = min(free, key=lambda one: (one.calls / one.workers, one.number))
            # Half of its share of what is left, as in ``placing.sizes_of_tasks``.
            half = len(self._waiting) * host.workers // (2 * self.workers)
            self._send(host, self._taken(host, min(max(host.workers, half), CALLS_MAX)))

    def _taken(self, host: HostInUse, count: int) -> list[Submission]:
        """The next calls for a host: first those whose large arrays no other host has."""
        window = [*islice(self._waiting, max(WINDOW, count) if self._places else count)]
        chosen = sorted(window, key=partial(self._places.bytes_elsewhere, host.number))[:count]
        for submission in chosen:
            self._waiting.remove(submission)
        self._places.note(host.number, chosen)
        return chosen

    def _send(self, host: HostInUse, wanted: Sequence[Submission]) -> None:
        self._note_ended()
        packer = TaskPacker(host.arrays, self._stored)
        calls = []
        for submission in wanted:
            request = submission.requests[0]
            if not submission.begins():
                continue
            self._next += 1
            is_holder = self._holder(request) is host
            near, captured = request.near % SLOTS if is_holder else -1, submission.captured
            packer.digests = self._digests.setdefault(submission.keep, {})
            try:
                packer.add(self._next, request, near, captured, submission.depth, knows=is_holder)
            except Exception as error:
                submission.tell(error)
                continue
            calls.append(submission)
            self._running[submission] = host, self._next
        if not calls:
            host.arrays.end([*packer.used], has_run=False)
            return
        host.calls += len(calls)
        host.tasks[self._next] = calls, [*packer.used]
        released, host.released = host.released, []
        end = partial(self._later, self._ended, host, self._next)
        task = packer.task(self._next, released)
        host.figures.sent_bytes += len(task) + packer.nbytes
        host.remote.run(task, packer.data, packer.stored, end)

    def _ended(self, host: HostInUse, number: int, result: Callable[[], list[Reply]]) -> None:
        if host.is_lost:
            return  # it is known
        found: Sequence[Reply | BaseException]
        try:
            found = result()
        except BaseException as error:
            if self._cluster.is_loss(error):
                self._lose(host, error)
                return
            found = [error] * len(host.tasks[number][0])
        calls, used = host.tasks.pop(number)
        host.calls -= len(calls)
        host.arrays.end(used)
        answers = [host.opened(reply) for reply in found]
        note_calls(host.remote.name, [one.requests[0].call.name for one in calls], answers)
        for submission, answered in zip(calls, answers, strict=True):
            del self._running[submission]
            if submission in self._unwanted:
                self._unwanted.discard(submission)
                host.released += submission.requests[0].recorded
                submission.drop()
            else:
                submission.tell(answered if isinstance(answered, BaseException) else [answered])

    def _lose(self, host: HostInUse, error: BaseException) -> None:
        """A host is gone: what it had to do is done elsewhere."""
        host.is_lost = True
        self._hosts.pop(host.number, None)
        self.workers -= host.workers
        host.figures.workers, host.figures.losses = 0, host.figures.losses + 1
        host.remote.kill()
        if not self.is_closed:
            say(f"host {host.remote.name} is lost, its calls run elsewhere: {line_of(error)}")
        self._waiting.extendleft(reversed(host.waiting))
        for calls, _ in reversed(host.tasks.values()):
            for submission in reversed(calls):
                del self._running[submission]
                submission.recoveries += 1
                if submission in self._unwanted:
                    self._unwanted.discard(submission)
                    submission.drop()
                elif submission.recoveries < LOSSES_MAX:
                    self._waiting.appendleft(submission)
                else:
                    call = submission.requests[0].call
                    what = f"{call.name} of {items_in_order(call.items)}"
                    lost = WorkerLost(f"{what}: {LOSSES_MAX} hosts were lost while they ran it")
                    submission.tell(lost)
        self._looked_at = -1.0  # another actor may start there

    def _stop(self, submission: Submission, grace_ms: int | None) -> None:
        for waiting in (self._waiting, *[host.waiting for host in self._hosts.values()]):
            if submission in waiting:
                waiting.remove(submission)
                submission.drop()
        host, number = self._running.get(submission, (None, -1))
        if host is not None:
            self._unwanted.add(submission)
            host.remote.stop(number, grace_ms)

    # ------------------------------------------------------------------ the end of branches

    def _note_ended(self) -> None:
        while self.ended:
            place, number = self.ended.popleft()
            held = self._hosts.get(place // SLOTS)
            for host in self._hosts.values() if place < 0 else [held] if held else []:
                host.released.append(number)

    def _release_idle(self) -> None:
        """Tell hosts that have nothing to do which branches have ended."""
        self._note_ended()
        for host in self._hosts.values():
            if host.released and host.workers:
                released, host.released = host.released, []
                self._next += 1
                task = TaskPacker(host.arrays, self._stored).task(self._next, released)
                host.remote.run(task, (), (), lambda result: None)


def _first(queue: deque[Submission], count: int) -> list[Submission]:
    """Take up to ``count`` of them."""
    return [queue.popleft() for _ in range(min(count, len(queue)))]
