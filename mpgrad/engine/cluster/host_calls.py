"""HostCalls: deals calls to the hosts of a cluster, and hears how they have ended.

One thread owns all tables here; other threads only leave events for it. A branch is an entry of a
cache of its host, so a lost host is one path: what it had goes to another one.
"""

from __future__ import annotations

import queue
import textwrap
import threading
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic
from typing import Any, TypeAlias

import numpy as np

from mpgrad.autograd.running.deferred_interrupts import GRACE_MS
from mpgrad.base.standard_streams import say
from mpgrad.calls.call import items_in_order
from mpgrad.engine.calls_in_workers import Answered, Chunks, Request, depth_of_calls
from mpgrad.engine.cluster.host_contract import Cluster, Greeting, Reply
from mpgrad.engine.cluster.host_in_use import SLOTS, HostInUse
from mpgrad.engine.cluster.host_tasks import TaskPacker
from mpgrad.engine.cluster.single_calls import one_by_one, single_call
from mpgrad.engine.packed_arrays import PackedArrays
from mpgrad.engine.submitter import Submission, serving_here
from mpgrad.errors import EngineClosed, MpgradError, WorkerLost
from mpgrad.scheduler.events import ANY_SLOT
from mpgrad.wire.captured_state import CapturedState
from mpgrad.wire.remote_error import decode_error

Array: TypeAlias = np.ndarray[Any, Any]

#: The calls that a host has for each of its workers.
AHEAD = 2
#: The messages for a host with many branches to differentiate.
MESSAGES = 4
#: Seconds between two looks for hosts that have come; that a start waits for all, and for one.
LOOK_S, OTHERS_S, START_S = 2.0, 20.0, 60.0
#: Seconds after which a host that does not answer counts as lost.
SILENCE_S = 30.0
#: The hosts that may be lost under a call, which may be the cause; the starts of a host.
LOSSES_MAX = STARTS_MAX = 3
#: Bytes that are stored for hosts which may ask for them later.
STORED_BYTES_MAX = 256 << 20
#: The characters that are shown of why a host is lost: Ray says much.
LINE_MAX = 160
_CLOSED = "the engine was closed before the call had ended"


class HostCalls:
    """The calls of one engine on the hosts of a cluster. Thread-safe.

    Args:
        cluster: the hosts.
        versions: of this process, which all hosts must have.

    Attributes:
        ended: the branches that nobody will differentiate: place, number; any thread appends.
        workers: of all hosts that have started.
    """

    def __init__(self, cluster: Cluster, versions: dict[str, str]) -> None:
        self._cluster, self._versions = cluster, versions
        self.ended: deque[tuple[int, int]] = deque()
        self.workers = 0
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._hosts: dict[int, HostInUse] = {}
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
        self._stored: OrderedDict[bytes, tuple[Any, int]] = OrderedDict()
        self._next = 0
        self._begun_at = self._looked_at = self._has_hosts_at = -1.0
        #: Of the start: hosts that have not answered, and what does not fit.
        self._starting: set[int] = set()
        self._problems: list[str] = []
        #: The starts that have failed, by node.
        self._failures: Counter[str] = Counter()
        self._started: Future[None] = Future()
        self.is_closed, self._closes = False, threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="mpgrad-hosts", daemon=True)

    # ------------------------------------------------------------------ for other threads

    def start(self) -> None:
        """Start an engine on each host.

        Raises:
            MpgradError: a host does not fit, or none has started; the text names the hosts.
        """
        self._thread.start()
        try:
            self._started.result(START_S)
        except TimeoutError:
            self.close()
            raise MpgradError(
                f"no host of the cluster has started an engine within {START_S:g} s: `ray status` "
                "shows whether their CPUs are in use; Engine(cpu_workers=...) asks for fewer"
            ) from None
        except BaseException:
            self.close()
            raise

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

    def close(self) -> None:
        """End all hosts' engines, and what waits for them."""
        if not self.is_closed:
            self._events.put(None)
            if self._thread.is_alive() and self._thread is not threading.current_thread():
                self._thread.join(10.0)

    def abandon(self) -> list[Submission]:
        """In a forked child, which has no hosts: what was under way."""
        self.is_closed = True
        return [*self._running, *self._waiting]

    # ------------------------------------------------------------------ the thread

    def _serve(self) -> None:
        with serving_here(), self._closing():
            self._begun_at = monotonic()
            self._look()
            while True:
                try:
                    event = self._events.get(timeout=LOOK_S)
                except queue.Empty:
                    self._release_idle()
                else:
                    if event is None:
                        return
                    event()
                    if not self._events.empty():
                        continue
                if monotonic() - self._looked_at > LOOK_S:
                    self._look()
                self._deal()

    @contextmanager
    def _closing(self) -> Iterator[None]:
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
        if not self._started.done():
            self._started.set_exception(error)
        waiting = [one for host in self._hosts.values() for one in host.waiting]
        for submission in [*self._running, *self._waiting, *waiting]:
            submission.fail(error)
        for host in self._hosts.values():
            host.remote.kill()
        self._cluster.close()

    def _look(self) -> None:
        """Let hosts that have come start, and end calls that no host will run."""
        for remote in self._cluster.new_hosts():
            self._next += 1
            host = self._hosts[self._next] = HostInUse(self._next, remote)
            if not self._started.done():
                self._starting.add(host.number)
            remote.greet(partial(self._later, self._greeted, host))
        self._looked_at = now = monotonic()
        self._settle_start(waits=now - self._begun_at < OTHERS_S)
        for host in [one for one in self._hosts.values() if one.tasks]:
            if host.asked_at is None:
                host.asked_at = now
                host.remote.ask(partial(self._later, self._heard, host))
            elif now - host.asked_at > SILENCE_S:
                self._lose(host, TimeoutError(f"it has not answered for {SILENCE_S:g} s"))
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
        name = host.remote.name
        is_lost = False
        try:
            workers, versions = result()
        except Exception as error:
            problem, is_lost = f"{name}: {_line(error)}", self._cluster.is_loss(error)
        else:
            differ = [
                f"{what} {versions.get(what, 'missing')} (here {mine})"
                for what, mine in self._versions.items()
                if versions.get(what) != mine
            ]
            problem = f"{name}: {', '.join(differ)}" if differ else ""
        self._starting.discard(host.number)
        if problem:
            del self._hosts[host.number]
            self._failures[host.remote.node] += 1
            is_for_good = self._failures[host.remote.node] >= STARTS_MAX or not is_lost
            host.remote.kill(for_good=is_for_good)
            if self._started.done() and is_for_good:
                say(f"a host cannot take part: {problem}")
            self._problems.append(problem)
        else:
            self._failures.pop(host.remote.node, None)
            host.workers = workers
            self.workers += workers
        self._settle_start(waits=bool(self._starting))

    def _settle_start(self, *, waits: bool) -> None:
        """Begin with the hosts that have started; ``waits`` for those that have not."""
        if waits or self._started.done():
            return
        if self._problems:
            self._started.set_exception(_unfit(self._problems))
        elif self.workers:
            self._started.set_result(None)

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
        for host in self._hosts.values():
            count = max(host.workers, len(host.waiting) // MESSAGES)
            while host.waiting:
                self._send(host, _first(host.waiting, count))
        while self._waiting:
            free = [one for one in self._hosts.values() if one.calls < AHEAD * one.workers]
            if not free:
                return
            host = min(free, key=lambda one: (one.calls / one.workers, one.number))
            share = len(self._waiting) // (AHEAD * len(self._hosts))
            room = min(host.workers, AHEAD * host.workers - host.calls, max(share, 1))
            self._send(host, _first(self._waiting, room))

    def _send(self, host: HostInUse, wanted: Sequence[Submission]) -> None:
        self._note_ended()
        packer = TaskPacker(host.arrays, self._store)
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
        host.remote.run(packer.task(self._next, released), packer.data, packer.stored, end)

    def _store(self, digest: bytes, data: Array) -> Any:
        if digest not in self._stored:
            self._stored[digest] = self._cluster.store(data), data.nbytes
        self._stored.move_to_end(digest)
        found = self._stored[digest][0]
        while sum([nbytes for _, nbytes in self._stored.values()]) > STORED_BYTES_MAX:
            self._stored.popitem(last=False)
        return found

    def _ended(self, host: HostInUse, number: int, result: Callable[[], list[Reply]]) -> None:
        if host.is_lost:
            return  # it is known
        found: Sequence[Any]
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
        for submission, reply in zip(calls, found, strict=True):
            del self._running[submission]
            if submission in self._unwanted:
                self._unwanted.discard(submission)
                host.released += submission.requests[0].recorded
            if isinstance(reply, BaseException):
                submission.tell(reply)
            elif isinstance(reply, bytes):
                submission.tell(decode_error(reply))
            else:
                answered = host.opened(reply)
                submission.tell(answered if isinstance(answered, BaseException) else [answered])

    def _lose(self, host: HostInUse, error: BaseException) -> None:
        """A host is gone: what it had to do is done elsewhere."""
        host.is_lost = True
        self._hosts.pop(host.number, None)
        self.workers -= host.workers
        host.remote.kill()
        if not self.is_closed:
            say(f"host {host.remote.name} is lost, its calls run elsewhere: {_line(error)}")
        self._waiting.extendleft(reversed(host.waiting))
        for calls, _ in reversed(host.tasks.values()):
            for submission in reversed(calls):
                del self._running[submission]
                submission.recoveries += 1
                if submission in self._unwanted:
                    self._unwanted.discard(submission)
                    submission.tell(EngineClosed("nobody wanted the call any more"))
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
            with suppress(ValueError):
                waiting.remove(submission)
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
                task = TaskPacker(host.arrays, self._store).task(self._next, released)
                host.remote.run(task, (), (), lambda result: None)


def _first(queue: deque[Submission], count: int) -> list[Submission]:
    """Take up to ``count`` of them."""
    return [queue.popleft() for _ in range(min(count, len(queue)))]


def _line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return textwrap.shorten(f"{type(error).__name__}: {lines[-1] if lines else ''}", LINE_MAX)


def _unfit(problems: Sequence[str]) -> MpgradError:
    return MpgradError(
        "hosts of the cluster cannot take part, because results would differ or fail there:\n  "
        + "\n  ".join(sorted(problems))
        + "\nInstall the same versions there, or leave the hosts out of the cluster"
    )
