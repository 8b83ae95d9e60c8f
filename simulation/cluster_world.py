"""ClusterWorld: calls on the hosts of a cluster in one process, on a network that a seed drives.

It runs the real HostCalls, HostStarts and HostActors. Hosts start slowly or fail to, messages
overtake one another, hosts die, hang, leave, come back and join, calls raise, kill their host, are
stopped and abandoned. Each call must end once, with what it gives anywhere, or with the error that
is due; and afterwards nobody keeps anything of it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, contextmanager, suppress
from random import Random
from typing import Any, TypeAlias, cast
from unittest.mock import patch

import numpy as np

import mpgrad as mg
from mpgrad.calls.call import BranchCall, Derivative, InputKind, Item
from mpgrad.engine.calls_in_workers import Answered, Request
from mpgrad.engine.cluster import array_places, host_calls, host_in_use, host_starts, host_tasks
from mpgrad.engine.cluster.host_calls import LOOK_S, LOSSES_MAX, HostCalls
from mpgrad.engine.cluster.host_contract import Cluster, Greeting
from mpgrad.engine.cluster.host_demand import HostDemand
from mpgrad.engine.cluster.host_starts import HostStarts
from mpgrad.engine.cluster.single_calls import single_call
from mpgrad.engine.packed_arrays import PackedArrays
from mpgrad.engine.submitter import Submission
from mpgrad.errors import EngineClosed, MpgradError, WorkerLost
from mpgrad.scheduler.events import ANY_SLOT
from mpgrad.wire.captured_state import capture_state
from simulation import simulated_cluster
from simulation.simulated_cluster import (
    FAILS,
    KILLS,
    VERSIONS,
    SimulatedCluster,
    digest_of,
    gradient_of,
    value_of,
)
from simulation.virtual_time import VirtualTime

Array: TypeAlias = np.ndarray[Any, Any]

NODES_MAX, WORKERS_MAX, MAPS_MAX, ITEMS_MAX, FAULTS_MAX = 4, 3, 6, 30, 8
#: Virtual seconds in which maps begin and faults come, and after which nobody may wait any more.
BUSY_S, END_S = 20.0, 2000.0
#: The bytes of arrays: in the message, beside it, and where every host fetches them.
SIZES = (64, 6_000, 70_000)
#: Shares of calls that raise and that kill their host; of maps that are differentiated, and again;
#: that are abandoned; of calls that are stopped, in maps of which some are; of worlds that close
#: early, and in which all nodes leave.
RAISE, KILL, BACKWARD, TWICE, ABANDONED, STOPPED, STOPS = 0.04, 0.01, 0.7, 0.2, 0.08, 0.3, 0.15
CLOSES, DARK = 0.1, 0.03
#: The unusual values of numbers, and the share of those that are turned.
KNOBS: tuple[tuple[Any, str, tuple[int, ...]], ...] = (
    (simulated_cluster, "AHEAD", (1, 2)),
    (host_in_use, "AHEAD", (1, 3)),
    (host_calls, "CALLS_MAX", (1, 4)),
    (host_calls, "MESSAGES", (1, 4, 8)),
    (host_calls, "WINDOW", (1, 4)),
    (array_places, "PLACES_MAX", (1, 5)),
    (host_tasks, "KNOWN_BYTES_MAX", (0, 10_000, 150_000)),
    (host_tasks, "STORED_BYTES_MAX", (0, 100_000)),
)
TURNED = 0.4


_KIND = InputKind(mg.Tensor, True, None, False, "x")


class ClusterWorldFailure(AssertionError):
    """A call has ended wrongly or waits for ever, or something is left."""


class _Call:
    """One call, or the derivative of one.

    Args:
        request: what is asked.
        keep: holds its arrays.
        value: what it must give.
        branch: the call that is differentiated.
    """

    def __init__(
        self, request: Request, keep: PackedArrays, value: bytes, branch: _Call | None = None
    ) -> None:
        self.request, self.keep, self.value = request, keep, value
        self.branch = branch or self
        self.future: Future[Answered] = Future()
        self.submission: Submission = single_call(request, capture_state(), keep, 0, self.future)
        self.is_stopped = self.is_abandoned = False
        self.ends = 0
        self.future.add_done_callback(self._end)

    def _end(self, _: Any) -> None:
        self.ends += 1

    @property
    def answered(self) -> Answered | None:
        """What it has given; None: it has failed."""
        if self.future.cancelled() or self.future.exception() is not None:
            return None
        return self.future.result()


class ClusterWorld:
    """One random program on a random cluster. ``run`` it; ``seed`` makes it again."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = chance = Random(seed)
        self.time = VirtualTime(chance)
        nodes = [
            (f"node {at}", chance.randint(1, WORKERS_MAX))
            for at in range(chance.randint(1, NODES_MAX))
        ]
        self.cluster = SimulatedCluster(self.time, nodes)
        self.starts = HostStarts(Greeting(0, VERSIONS, {}), False)
        least = chance.randint(0, 2)
        self.demand = HostDemand(least, chance.choice((None, least + chance.randint(1, 3))))
        self._errors: list[str] = []
        self._numbers = iter(range(10**9))
        self._parameters = [self._array() for _ in range(3)]
        self._active: list[list[_Call]] = []
        self._all: list[_Call] = []
        self._maps = chance.randint(1, MAPS_MAX)
        self._left = [f"gone {at}" for at in range(2)]
        self.is_dark = chance.random() < DARK
        self._closes = chance.random() < CLOSES
        self._is_closed = False
        #: What has happened, for tests.
        self.seen = Counter[str]()

    def run(self) -> ClusterWorld:
        """Until all is over.

        Raises:
            ClusterWorldFailure: something is not as it should be.
        """
        with self._knobs():
            cluster = cast("Cluster", self.cluster)
            self.calls = HostCalls(cluster, self.starts, self.demand, self.time.seconds)
            try:
                self._run()
            finally:
                self._is_closed = True
                with self.calls.closing():
                    pass
        self._check_closed()
        return self

    @contextmanager
    def _knobs(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(patch.object(host_calls, "say", self._say))
            stack.enter_context(patch.object(host_starts, "say", self._say))
            stack.enter_context(patch.object(threading, "excepthook", self._raised))
            for owner, name, values in KNOBS:
                if self.random.random() < TURNED:
                    value = self.random.choice(values)
                    stack.enter_context(patch.object(owner, name, value))
            yield

    def _say(self, text: str) -> None:
        self.seen["hosts lost"] += "is lost" in text

    def _raised(self, args: threading.ExceptHookArgs) -> None:
        """What was raised where the end of a call was told."""
        self._errors.append(f"{args.exc_value!r}")

    # ------------------------------------------------------------------ the course of time

    def _run(self) -> None:
        self.calls.begin()
        self._tick()
        self._until(self.starts.done.done)
        if self.starts.done.exception() is not None:
            self.seen["not started"] += 1
            return
        for _ in range(self._maps):
            self.time.after(self._within(BUSY_S), self._map)
        for _ in range(self.random.randint(0, FAULTS_MAX)):
            self.time.after(self._within(BUSY_S), self._fault)
        if self.is_dark:
            self.time.after(self._within(BUSY_S), self._all_leave)
        end_us = self.time.now + self._within(BUSY_S) if self._closes else None
        if end_us is not None:
            self._until(lambda: self.time.now >= end_us)
            self.seen["closed early"] += 1
            return
        self._until(lambda: not (self._maps or self._active))
        self.cluster.is_calm = True
        self._until_released()
        if self.cluster.asked_for != self.demand.wanted(0, 1):
            self._fail(f"{self.cluster.asked_for} hosts are wanted for nothing")
        self._check_nothing_left()

    def _within(self, seconds: float) -> int:
        return self.random.randint(0, int(1e6 * seconds))

    def _tick(self) -> None:
        if not self._is_closed:
            self.calls.take(0.0)
            self.time.after(1e6 * LOOK_S, self._tick)

    def _until(self, is_over: Any) -> None:
        while not is_over():
            self._turn()

    def _turn(self) -> None:
        if self.time.seconds() > END_S:
            waiting = sum(not call.future.done() for call in self._all)
            raise ClusterWorldFailure(f"seed {self.seed}: {waiting} calls wait for ever")
        self.time.step()
        while not self.calls._events.empty():
            self.calls.take(0.0)
        most = self.demand.most
        if most is not None and len(self.calls._hosts) > most:
            self._fail(f"{len(self.calls._hosts)} hosts take part, not {most}")
        if self._errors:
            self._fail(f"raised where a call has ended: {self._errors}")
        self._follow()

    # ------------------------------------------------------------------ the program

    def _array(self) -> Array:
        size = self.random.choice(SIZES)
        return np.frombuffer(self.random.randbytes(size), np.uint8)

    def _map(self) -> None:
        self._maps -= 1
        keep, shared = PackedArrays(), self.random.sample(self._parameters, 2)
        made = []
        for item in range(self.random.randint(1, ITEMS_MAX)):
            draw = self.random.random()
            name = KILLS if draw < KILL else FAILS if draw < KILL + RAISE else "call"
            own = [self._array()] if self.random.random() < 0.3 else []
            made.append(self._call(f"{name} {item}", [*shared, *own], keep))
        self._submit(made)

    def _call(self, name: str, inputs: Sequence[Array], keep: PackedArrays) -> _Call:
        number = next(self._numbers)
        code = np.frombuffer(name.encode() * 50, np.uint8)
        item = Item(f"{number}".encode(), (), number)
        call = BranchCall(
            number, name, code, (), (item,), (), False, (self.seed, 0, number), (), "", None
        )
        call = call._replace(inputs=(_KIND,) * len(inputs))
        return _Call(Request(call, inputs, 0), keep, value_of(call, inputs))

    def _submit(self, made: list[_Call]) -> None:
        self._active.append(made)
        self._all += made
        draw = self.random.random()
        if draw < ABANDONED:
            self.time.after(self._within(1.0), self._abandon, made)
        elif draw < ABANDONED + STOPS:
            some = [one for one in made if self.random.random() < STOPPED]
            self.time.after(self._within(1.0), self._stop, some)
        self.calls.submit_all([call.submission for call in made])

    def _stop(self, some: Sequence[_Call]) -> None:
        for call in some:
            if not call.future.done():
                self.seen["stopped"] += 1
                call.is_stopped = True
                self.calls.stop(call.submission, self.random.choice((None, 100)))
                call.future.cancel()  # nobody is told of a call that has not begun

    def _abandon(self, made: Sequence[_Call]) -> None:
        """As a map whose caller has been interrupted."""
        if any(not call.future.done() for call in made):
            for call in made:
                call.is_abandoned = True
            self._stop(made)
            self.calls.ended.extend(
                [(ANY_SLOT, at) for call in made for at in call.request.recorded]
            )

    def _follow(self) -> None:
        """What comes after maps, and after backwards, that have ended."""
        for made in [one for one in self._active if all(call.future.done() for call in one)]:
            self._active.remove(made)
            for call in made:
                self._check(call)
            recorded = [call for call in made if call.branch is call]
            usable = [call for call in made if call.answered and not call.is_abandoned]
            kept = [call for call in usable if call.branch is call]
            again = [call for call in usable if call.branch is not call]
            if kept and len(kept) == len(recorded) and self.random.random() < BACKWARD:
                self._submit([self._derivative(call) for call in kept])
                continue
            if again and self.random.random() < TWICE:
                self._submit([self._derivative(call.branch) for call in again])
                made = [call for call in made if call not in again]
            for call in made:
                self._end_branch(call.branch)
            if again:
                self._parameters = [self._array() for _ in self._parameters]

    def _derivative(self, of: _Call) -> _Call:
        call, answered = of.request.call, of.answered
        assert isinstance(call, BranchCall)
        assert answered is not None
        grads = [self._array()]
        digest = digest_of(of.value)
        needs = (True,) * len(of.request.inputs)
        task = Derivative(call, digest, (0,), (_KIND,), needs, (), ())
        inputs = [*of.request.inputs, *grads]
        request = Request(task, inputs, 0, answered.answer.slot)
        return _Call(request, PackedArrays(), gradient_of(of.value, grads), of)

    def _end_branch(self, call: _Call) -> None:
        answered = call.answered
        if answered is not None:
            self.calls.ended.append((answered.answer.slot, call.request.recorded[0]))

    # ------------------------------------------------------------------ faults

    def _fault(self) -> None:
        living = self.cluster.living()
        kind = self.random.choice(("dies", "hangs", "leaves", "joins"))
        if kind == "joins":
            node = self._left.pop() if self._left else "new"
            self.cluster.add(node, self.random.randint(1, WORKERS_MAX))
        elif living and not (kind == "leaves" and len(self.cluster.nodes) == 1):
            host = self.random.choice(living)
            if kind == "hangs":
                host.hangs = True
            elif kind == "leaves":
                self._leaves(host.node)
                host.die()
            else:
                host.die()
        else:
            return
        self.seen[kind] += 1

    def _leaves(self, node: str) -> None:
        if self.cluster.nodes.pop(node, None) is not None:
            self._left.append(node)

    def _all_leave(self) -> None:
        self.seen["dark"] += 1
        for node in [*self.cluster.nodes]:
            self._leaves(node)
        for host in self.cluster.living():
            host.die()
        self._left.clear()

    # ------------------------------------------------------------------ checks

    def _fail(self, text: str) -> None:
        raise ClusterWorldFailure(f"seed {self.seed}: {text}")

    def _check(self, call: _Call) -> None:
        name, error = call.request.call.name, None
        if call.ends != 1:
            self._fail(f"{name} has ended {call.ends} times")
        with suppress(CancelledError):
            error = call.future.exception()
        if call.future.cancelled() or (call.is_stopped and isinstance(error, EngineClosed)):
            if not call.is_stopped:
                self._fail(f"{name} was cancelled")
        elif isinstance(error, WorkerLost):
            is_poison = call.submission.recoveries >= LOSSES_MAX
            if not (is_poison or self.is_dark or "has had no host" in str(error)):
                self._fail(f"{name}: {error}, after {call.submission.recoveries} losses")
            self.seen["poison" if is_poison else "no hosts"] += 1
        elif error is not None:
            if not (name.startswith(FAILS) and name in str(error)):
                self._fail(f"{name}: {error!r}")
            self.seen["raised"] += 1
        else:
            answer, data, _ = call.future.result()
            if answer.result != call.value or (data is not None and data.tobytes() != call.value):
                self._fail(f"{name} has a wrong value")
            self.seen["lost and right"] += call.submission.recoveries > 0
            self.seen["right"] += 1

    def _until_released(self) -> None:
        """Some looks later."""
        end = self.time.seconds() + 8 * LOOK_S
        self._until(lambda: self.time.seconds() > end)

    def _check_nothing_left(self) -> None:
        calls = self.calls
        left = [calls._running, calls._waiting, calls._unwanted, self.calls.ended]
        if any(left):
            self._fail(f"left in HostCalls: {left}")
        self.seen["autoscaled"] += sum(
            host.node.startswith("scaled") for host in self.cluster.hosts
        )
        for host in calls._hosts.values():
            if host.tasks or host.calls or host.waiting:
                self._fail(f"left for {host.remote.name}: {host.tasks}, {host.calls}")
            if any(host.arrays._uses.values()):
                self._fail(f"arrays in use: {host.arrays._uses}")
            remote = cast("Any", host.remote)
            if remote.hangs or remote.is_dead or not host.workers:
                continue
            if remote.actor._running or remote.engine.queue:
                self._fail(f"left on {remote.name}: {remote.actor._running}")
            if host.released or remote.actor._kept:
                self._fail(f"kept on {remote.name}: {[*remote.actor._kept]}, {host.released}")
            if missing := host.arrays._arrived - remote.actor._arrays.keys():
                self._fail(f"{remote.name} has not {len(missing)} arrays that it should have")
            if more := remote.actor._arrays.keys() - host.arrays._nbytes.keys():
                self._fail(f"{remote.name} keeps {len(more)} arrays that nobody knows")
            self.seen["branches found"] += remote.engine.found
            self.seen["branches made again"] += remote.engine.made_again

    def _check_closed(self) -> None:
        for call in self._all:
            if not call.future.done():
                self._fail(f"{call.request.call.name} has not ended with the engine")
            if call.ends != 1:
                self._fail(f"{call.request.call.name} has ended {call.ends} times")
            with suppress(CancelledError):
                error = call.future.exception()
                if isinstance(error, MpgradError) and not isinstance(
                    error, EngineClosed | WorkerLost
                ):
                    self._fail(f"{error!r}")
