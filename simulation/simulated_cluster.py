"""SimulatedCluster: hosts that start, answer late, hang, die, come back and join, as a seed says.

Each host has the real HostActor. Below it there is no engine: a SimulatedEngine runs the calls, and
what they give is a digest of all that a call reads. So a wrong array, a lost argument or another
seed shows.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeAlias, cast

import numpy as np

from mpgrad.calls.call import BranchCall, Derivative
from mpgrad.engine.calls_in_workers import Answered
from mpgrad.engine.cluster.host_actor import HostActor, HostOptions
from mpgrad.engine.cluster.host_contract import Greeting, RemoteHost, Reply
from mpgrad.engine.submitter import AHEAD, Submission
from mpgrad.wire.programs import CallAnswer, ResultTensor
from simulation.virtual_time import VirtualTime

Array: TypeAlias = np.ndarray[Any, Any]

#: Virtual microseconds: what a call takes at most, a message, and the start of an actor.
CALL_US, MESSAGE_US, START_US = 30_000, 2_000, 3_000_000
#: Shares of calls whose result is large, and of actors that fail to start.
LARGE, START_FAILS = 0.2, 0.1
VERSIONS = {"Python": "3"}
#: What the name of a call plans: it raises, or its host dies.
FAILS, KILLS = "fails", "kills"


class HostLoss(Exception):
    """As Ray's error of an actor that has died."""


class WrongBranch(AssertionError):
    """A branch was made again of other arguments."""


class PlannedError(Exception):
    """What a call raises."""


def value_of(call: BranchCall, inputs: Sequence[Array | None]) -> bytes:
    """What a call gives: a digest of all that it reads."""
    found = hashlib.blake2b(repr((call.number, call.name, call.seed)).encode(), digest_size=16)
    arrays = [call.code, *call.code_buffers]
    for item in call.items:
        found.update(item.data)
        arrays += item.buffers
    for array in [*arrays, *inputs]:
        found.update(b"-" if array is None else _content(array))
    return found.digest()


def gradient_of(value: bytes, grads: Sequence[Array]) -> bytes:
    """What the derivative of a branch gives."""
    found = hashlib.blake2b(value, digest_size=16)
    for array in grads:
        found.update(_content(array))
    return found.digest()


def digest_of(value: bytes) -> int:
    """That of a branch's outputs."""
    return int.from_bytes(value[:7])


def _content(array: Array) -> bytes:
    return repr((array.shape, array.dtype.str)).encode() + array.tobytes()


class SimulatedEngine:
    """The engine of a host, as far as HostActor knows it: its submitter and its sessions."""

    def __init__(self, time: VirtualTime, workers: int, die: Callable[[], None]) -> None:
        self._time, self._workers, self._die = time, workers, die
        self.submitter = self.sessions = self
        self.ended_branches: deque[tuple[int, int]] = deque()
        #: The slots of branches by their numbers, and what they gave.
        self.branches: dict[int, tuple[int, bytes]] = {}
        self.queue: deque[Submission] = deque()
        self._running = 0
        #: How many derivatives found their branch, and how many made it again.
        self.found = self.made_again = 0

    def submit(self, submission: Submission) -> None:
        self.queue.append(submission)
        self._go_on()

    def stop(self, submission: Submission, grace_ms: int | None) -> bool:
        if submission in self.queue:
            self.queue.remove(submission)
            return True
        return False  # it may end

    def _go_on(self) -> None:
        while self.queue and self._running < AHEAD * self._workers:
            submission = self.queue.popleft()
            if submission.begins():
                self._running += 1
                delay = self._time.rng.randint(1, CALL_US)
                self._time.after(delay, self._end, submission)

    def _end(self, submission: Submission) -> None:
        self._running -= 1
        (request,) = submission.requests
        while self.ended_branches:
            slot, number = self.ended_branches.popleft()
            if self.branches.get(number, (slot, b""))[0] == slot:
                self.branches.pop(number, None)
        if request.call.name.startswith(KILLS):
            self._die()
            return
        if request.call.name.startswith(FAILS):
            submission.tell(PlannedError(request.call.name))
        else:
            submission.tell([self._answer(request.call, request.inputs, request.near)])
        self._go_on()

    def _answer(
        self, call: BranchCall | Derivative, inputs: Sequence[Array | None], near: int
    ) -> Answered:
        if isinstance(call, BranchCall):
            value, slot = value_of(call, inputs), self._time.rng.randrange(self._workers)
            self.branches[call.number] = slot, value
        else:
            count = len(call.call.inputs)
            slot, made = self.branches.get(call.call.number, (-1, b""))
            if slot >= 0 and slot == near:
                self.found += 1
            else:  # the worker makes it again, of the same arguments
                self.made_again += 1
                slot = max(slot, near, 0)
                made = value_of(call.call, inputs[:count])
                self.branches[call.call.number] = slot, made
            if digest_of(made) != call.digest:
                raise WrongBranch(f"branch {call.call.number} has another digest")
            grads = [one for one in inputs[count:] if one is not None]
            value = gradient_of(made, grads)
        return _answered(value, slot, is_large=self._time.rng.random() < LARGE)


def _answered(value: bytes, slot: int, *, is_large: bool) -> Answered:
    """An answer with one tensor, whose bytes travel beside it now and then."""
    data = np.frombuffer(bytearray(value), np.uint8) if is_large else None
    answer = CallAnswer(
        value, (_OUTPUT,), (), (), (), (), digest_of(value), (), len(value) * is_large, slot
    )
    return Answered(answer, data, 1.0)


_OUTPUT = ResultTensor(0, (2,), (8,), "<i8", True)


class SimulatedHost:
    """An actor on one node, and the messages to and from it."""

    def __init__(self, cluster: SimulatedCluster, node: str, workers: int) -> None:
        self._cluster, self._time = cluster, cluster.time
        self.node = self.name = node
        self.workers = workers
        self.engine = SimulatedEngine(self._time, workers, self.die)
        self.actor = HostActor(HostOptions(workers, {}, b"", (), {}), workers)
        self.actor._engine = cast("Any", self.engine)
        self.is_dead = self.hangs = False
        #: What waits for an answer.
        self._asked: dict[int, Callable[[Callable[[], Any]], None]] = {}
        self._count = 0

    def greet(self, end: Callable[[Callable[[], Greeting]], None]) -> None:
        chance = self._time.rng
        number = self._expect(end)
        fails = chance.random() < START_FAILS * (not self._cluster.is_calm)

        def result() -> Greeting:
            if fails:
                raise OSError("no room for an engine")
            return Greeting(self.workers, VERSIONS, {})

        self._time.after(chance.randint(1, START_US), self._answer, number, result)

    def run(
        self,
        task: bytes,
        data: Sequence[Array],
        stored: Sequence[Any],
        end: Callable[[Callable[[], list[Reply]]], None],
    ) -> None:
        number = self._expect(end)
        copies = [one.copy() for one in data]
        self._time.after(self._cluster.delay_us(), self._take, number, task, copies, stored)

    def _take(
        self, number: int, task: bytes, data: Sequence[Array], stored: Sequence[Array]
    ) -> None:
        if self.is_dead or self.hangs:
            return
        futures = self.actor.begin(task, data, *stored)
        left = [len(futures)]

        def one_less(_: Any) -> None:
            left[0] -= 1
            if not left[0]:
                replies = [self.actor.reply(one) for one in futures]
                self._time.after(self._cluster.delay_us(), self._answer, number, lambda: replies)

        for future in futures:
            future.add_done_callback(one_less)
        if not futures:
            self._asked.pop(number, None)

    def ask(self, end: Callable[[Callable[[], None]], None]) -> None:
        delay = self._cluster.delay_us()
        self._time.after(delay, self._answer, self._expect(end), lambda: None)

    def stop(self, number: int, grace_ms: int | None) -> None:
        self._time.after(self._cluster.delay_us(), self._stop, number, grace_ms)

    def _stop(self, number: int, grace_ms: int | None) -> None:
        if not (self.is_dead or self.hangs):
            self.actor.stop(number, grace_ms)

    def kill(self, pause_s: float = 0.0) -> None:
        self.die()
        self._cluster.may_start(self.node, pause_s)

    def die(self) -> None:
        """The actor is gone, with what it has and what it was asked for."""
        if self.is_dead:
            return
        self.is_dead = True
        self._cluster.may_start(self.node, 0.0)

        def result() -> Any:
            raise HostLoss(self.node)

        for number in [*self._asked]:
            delay = self._cluster.delay_us()
            self._time.after(delay, self._asked.pop(number), result)

    def _expect(self, end: Callable[[Callable[[], Any]], None]) -> int:
        self._count += 1
        if self.is_dead:

            def result() -> Any:
                raise HostLoss(self.node)

            self._time.after(self._cluster.delay_us(), end, result)
        else:
            self._asked[self._count] = end
        return self._count

    def _answer(self, number: int, result: Callable[[], Any]) -> None:
        if not self.hangs and number in self._asked:
            self._asked.pop(number)(result)


class SimulatedCluster:
    """The nodes, some of which come later.

    Attributes:
        is_calm: whether all faults are over.
    """

    def __init__(self, time: VirtualTime, nodes: Sequence[tuple[str, int]]) -> None:
        self.time = time
        self.nodes = dict(nodes)
        self.hosts: list[SimulatedHost] = []
        self._free_at: dict[str, float] = dict.fromkeys(self.nodes, 0.0)
        self.is_calm = self._is_starting = False
        #: The hosts that the engine wants; None: as many as there are.
        self.asked_for: int | None = None

    def delay_us(self) -> int:
        """That of a message. They overtake one another."""
        chance: Random = self.time.rng
        return chance.randint(1, MESSAGE_US if chance.random() < 0.9 else 20 * MESSAGE_US)

    def add(self, node: str, workers: int) -> None:
        """A node joins."""
        self.nodes[node] = workers
        self._free_at[node] = 0.0

    def may_start(self, node: str, pause_s: float) -> None:
        """The actor of a node is gone."""
        if self._free_at.get(node) == float("inf") or pause_s:
            self._free_at[node] = self.time.seconds() + pause_s

    def living(self) -> list[SimulatedHost]:
        return [host for host in self.hosts if not host.is_dead]

    # ------------------------------------------------------------------ what HostCalls asks

    def new_hosts(self, most: int | None) -> list[RemoteHost]:
        found: list[RemoteHost] = []
        for node, workers in self.nodes.items():
            is_free = self._free_at[node] <= self.time.seconds()
            if is_free and (most is None or len(found) < most):
                self._free_at[node] = float("inf")
                host = SimulatedHost(self, node, workers)
                self.hosts.append(host)
                found.append(host)
        return found

    def ask_for(self, hosts: int | None) -> None:
        """The autoscaler starts nodes, one after another, and stops none."""
        self.asked_for = hosts
        if hosts is not None and len(self.nodes) < hosts and not self._is_starting:
            self._is_starting = True
            self.time.after(self.time.rng.randint(1, START_US), self._start)

    def _start(self) -> None:
        self._is_starting = False
        self.add(f"scaled {len(self.hosts)} {self.time.now}", 1)

    def store(self, data: Array) -> Array:
        return data.copy()

    def is_loss(self, error: BaseException) -> bool:
        return isinstance(error, HostLoss)

    def close(self) -> None:
        pass
