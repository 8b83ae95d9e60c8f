"""The codec, the coordinator's shell and the three cores under hostile frames, in one process.

Shell and supervisor are the real ones, over the in-memory transport; the processes that they would
start are only names in a table. Beside the attackers, an honest session lets an honest worker add
numbers.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from mpgrad.base.handles import Block
from mpgrad.base.processor_use import ProcessorUse
from mpgrad.coordinator.coordinator import Coordinator
from mpgrad.coordinator.coordinator_process import start_workers
from mpgrad.coordinator.reaper import End
from mpgrad.coordinator.supervisor import Supervisor
from mpgrad.errors import InvariantViolated, ProtocolError
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.client_state import ClientState
from mpgrad.scheduler.invariants import check_invariants
from mpgrad.scheduler.plan_tables import CAPTURE, NodeTaskSpec, OutputSpec
from mpgrad.scheduler.worker_state import WorkerState
from mpgrad.shm.backing import Backing
from mpgrad.shm.free_list import FreeList
from mpgrad.shm.segment import Segment
from mpgrad.shm.status_board import StatusBoard
from mpgrad.wire import schema
from mpgrad.wire.endpoint import Endpoint
from mpgrad.wire.schema import decode, encode
from mpgrad.wire.setup import CoordinatorSetup
from mpgrad.wire.transport import CLIENT, WORKER_LANES
from simulation.transport import MemoryDealer, MemoryRouter
from stress.hostile_frames import HostileFrames

#: The number of frames between two checks.
BATCH = 500
TOKEN = bytes(range(32))
#: Never becomes readable: the client lives.
CLIENT_PIDFD = 0
#: Bytes that need a block.
LARGE = 8192
#: The number of honest frames that attackers know.
SEEN_MAX = 60


def frames_of_honest_peers(chance: random.Random) -> list[bytes]:
    """Frames that an attacker could see on the wire; only graph numbers and tokens differ."""
    return _Stage(chance).seen


class Tally(NamedTuple):
    """The numbers of a run."""

    sent: int
    refused: int
    backwards: int


def fuzz(frames: int, chance: random.Random, advance: Callable[[int], None]) -> Tally:
    """Send ``frames`` hostile frames.

    Raises:
        AssertionError: a hostile frame had an effect, or was counted wrongly.
        Exception: another exception of the fuzzed code, which would have ended a process.
    """
    stage = _Stage(chance)
    sent = 0
    while sent < frames:
        count = min(BATCH, frames - sent)
        stage.attack(count)
        sent += count
        advance(count)
    return Tally(sent, stage.refused, stage.backwards)


class _Process:
    """A worker that is only a name: a flag marks its death."""

    def __init__(self, router: MemoryRouter, number: int) -> None:
        self._router = router
        self.pid = self.pidfd = number

    def kill(self) -> None:
        self._router.become_readable(self.pidfd)

    def is_stopped(self) -> bool:
        return False

    def processor_use(self) -> ProcessorUse:
        return ProcessorUse(0, 0)

    def has_ended(self, timeout_s: float) -> bool:
        return True

    def reap(self) -> End:
        return End(-signal.SIGKILL, "was cut off")


class _Spawner:
    """Knows the worker of each slot."""

    def __init__(self, router: MemoryRouter) -> None:
        self._router, self._numbers = router, itertools.count(1)
        self.peers: dict[int, str] = {}

    def start(self, peer: str, slot: int, device: int, arena: int) -> _Process:
        self.peers[slot] = peer
        return _Process(self._router, next(self._numbers))


class _Stage:
    """The coordinator, honest peers, and attackers."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        segment = Segment.create(1 << 30, "fuzz")
        setup = CoordinatorSetup(
            endpoint=Endpoint("mpgrad-nowhere", TOKEN),
            client_pid=os.getpid(), cpu_workers=2, shm_limit=1 << 26,
            client_arena_fd=-1, engine_arena_fd=segment.fd, worker_environment=b"", blas_threads=1,
            executable=b"", origin=b"",
        )  # fmt: skip
        self._router = MemoryRouter()
        self._spawner = _Spawner(self._router)
        self._supervisor = Supervisor(2, (), StatusBoard.create(), self._spawner)
        arena = Backing(segment, FreeList(segment.nbytes, setup.shm_limit, "fuzz"), map_here=False)
        self.coordinator = Coordinator(setup, self._router, self._supervisor, arena)
        workers, failure = start_workers(self._supervisor)
        self.coordinator.begin((CLIENT_PIDFD,), workers, failure)
        self._numbers = itertools.count(1)
        self._worker = MemoryDealer.worker(self._router, "w0.1")
        self._greet(self._worker, "w0.1", WORKER_LANES)
        self._session = MemoryDealer.session(self._router, "c1.0")
        self._greet(self._session, "c1.0", (CLIENT,))
        other = MemoryDealer.worker(self._router, "w1.1")
        self._greet(other, "w1.1", WORKER_LANES)
        self._turn(2)
        assert isinstance(decode(self._session.receive()[0]), schema.Welcome)
        self._inject("task", "w1.1", b"")
        self._turn(2)
        other.close()
        self.backwards = 0
        self.seen: list[bytes] = []
        # Before the first honest backward there is no frame to forge.
        self._honest_backward()

    @property
    def refused(self) -> int:
        return self.coordinator.protocol_errors

    def _greet(self, dealer: MemoryDealer, peer: str, lanes: tuple[str, ...]) -> None:
        for lane in lanes:
            dealer.send([encode(schema.Hello(peer, TOKEN, schema.PROTOCOL_VERSION))], lane)

    # ------------------------------------------------------------------ attackers

    def attack(self, count: int) -> None:
        """``count`` hostile frames of one kind of attacker; then an honest backward."""
        kinds = (self._stranger, self._session_gone_bad, self._worker_gone_bad, self._to_others)
        self._chance.choice(kinds)(count)
        check_invariants(self.coordinator.state)
        self._honest_backward()

    def _stranger(self, count: int) -> None:
        """Has no token, and uses many names. None of its frames may be accepted."""
        names = ("c66.1", "w1.1", "w1.999", "c1.0", "w0.1", "w7", "x", "")
        before, hostile = self.refused, HostileFrames(self._chance, self.seen)
        for _ in range(count):
            lane = self._chance.choice((*WORKER_LANES, CLIENT))
            name = self._chance.choice(names)
            if name == ("c1.0" if lane == CLIENT else "w0.1"):
                continue  # the transport refuses the name of a connected peer
            dealer = MemoryDealer(self._router, name, (lane,))
            frame = self._forged_hello(name) if self._chance.random() < 0.1 else hostile.next()
            dealer.send([frame])
            self.coordinator.turn()
            before += 1
            dealer.close()
            assert self.refused == before, f"{name} on {lane} was heard: {frame[:80]!r}"

    def _forged_hello(self, name: str) -> bytes:
        token = bytearray(TOKEN)
        token[self._chance.randrange(32)] ^= 1 << self._chance.randrange(8)
        forged = self._chance.choice((bytes(token), TOKEN[:-1], TOKEN * 2, b""))
        return encode(schema.Hello(name, forged, schema.PROTOCOL_VERSION))

    def _session_gone_bad(self, count: int) -> None:
        """Has the token; its frames are nearly those of a session."""
        while count > 0:
            peer = f"c2.{next(self._numbers)}"
            dealer = MemoryDealer.session(self._router, peer)
            self._greet(dealer, peer, (CLIENT,))
            count = self._send_until_cut(dealer, peer, count, CLIENT, schema.FROM_CLIENT)
            dealer.hang_up()
            self.coordinator.turn()
        self._finish_tasks()

    def _worker_gone_bad(self, count: int) -> None:
        """The same with a worker that has tasks."""
        while count > 0:
            peer = self._spawner.peers[1]
            dealer = MemoryDealer.worker(self._router, peer)
            self._greet(dealer, peer, WORKER_LANES)
            count = self._send_until_cut(dealer, peer, count, "task", schema.FROM_WORKER)
            dealer.send([b"and out"])
            self._turn(2)
            dealer.close()
            assert not self._supervisor.is_current(peer)

    def _send_until_cut(
        self, dealer: MemoryDealer, peer: str, count: int, lane: str, allowed: tuple[Any, ...]
    ) -> int:
        """Frames in its name, until a few after the first refused one; return the number left."""
        hostile = HostileFrames(self._chance, [in_name_of(peer, frame) for frame in self.seen])
        beyond = self._chance.randrange(4)
        while count > 0 and beyond >= 0:
            frame, before = hostile.next(), self.refused
            if has_other_tables(frame):
                continue
            self._inject(lane, peer, frame)
            count -= 1
            is_refused = self.refused > before
            assert is_refused or is_wellformed(frame, allowed), f"heard: {frame[:80]!r}"
            beyond -= is_refused
        return count

    def _to_others(self, count: int) -> None:
        """Frames that a faulty coordinator might send to a worker and a session."""
        hostile = HostileFrames(self._chance, self.seen)
        worker, client = WorkerState("w0.1"), ClientState("c1.0")
        for _ in range(count):
            frame = hostile.next()
            for core, allowed in ((worker, schema.TO_WORKER), (client, schema.TO_CLIENT)):
                try:
                    message = decode(frame, allowed)
                    if isinstance(message, do.DispatchNodeTask | do.CancelGraph | do.FailGraph):
                        core.handle_event(message)
                except (ProtocolError, InvariantViolated):
                    continue

    def _inject(self, lane: str, peer: str, frame: bytes) -> None:
        MemoryDealer(self._router, peer, (lane,)).send([frame])
        self.coordinator.turn()

    def _turn(self, times: int) -> None:
        for _ in range(times):
            self.coordinator.turn()

    def _finish_tasks(self) -> None:
        """The honest worker runs the tasks of the attackers' graphs."""
        for _ in range(50):
            self._work()
            self.coordinator.turn()

    # ------------------------------------------------------------------ honest work

    def _honest_backward(self) -> None:
        """Task 0 passes its input on, in a message to 1 and in a block to 2; 3 sums both results.

        A block counts as 0: its memory is never written.
        """
        name, seed = next(self._numbers), self._chance.randrange(1000)
        self._say(ev.GraphSubmitted("c1.0", name, 0, TASKS, ((0, 0, 0, _number(seed)),), 2))
        for _ in range(200):
            self.coordinator.turn()
            self._work()
            for frame in self._session.receive():
                self._note(frame)
                end = decode(frame, schema.TO_CLIENT)
                assert isinstance(end, do.CompleteGraph), f"an honest session was told {end}"
                small, large = end.captures
                assert small == _number(seed), f"wrong gradient: {small!r} instead of {seed}"
                assert isinstance(large, Block)
                self._say(ev.BlocksReleased("c1.0", (large,)))
                self.coordinator.turn()
                self.backwards += 1
                return
        raise AssertionError("an honest backward does not end")

    def _say(self, message: Any) -> None:
        self._note(encode(message))
        self._session.send([encode(message)])

    def _note(self, frame: bytes) -> None:
        """Attackers know the frames of honest peers."""
        if len(self.seen) < SEEN_MAX:
            self.seen.append(frame)

    def _work(self) -> None:
        for frame in self._worker.receive():
            self._note(frame)
            task = decode(frame, schema.TO_WORKER)
            if isinstance(task, do.DispatchNodeTask):
                refs = [ref for slot in task.inputs for ref in slot]
                total = sum(_value(ref) for ref in refs if isinstance(ref, bytes))
                outputs = tuple([block or _number(total) for block in task.blocks])
                done = encode(ev.NodeTaskDone("w0.1", *task[1:4], outputs))
                self._note(done)
                self._worker.send([done])


def in_name_of(peer: str, frame: bytes) -> bytes:
    """A valid frame with another sender."""
    message = msgspec.msgpack.decode(frame[1:])
    return frame[:1] + msgspec.msgpack.encode([peer, *message[1:]])


def is_wellformed(frame: bytes, allowed: tuple[Any, ...]) -> bool:
    """Whether the codec accepts it."""
    try:
        decode(frame, allowed)
    except ProtocolError:
        return False
    return True


def has_other_tables(frame: bytes) -> bool:
    """Whether it begins or extends a graph by tables that no planner has made.

    Such tables are trusted: they come from the client, which owns the engine, and checking each of
    their references would slow every backward. Wrong tables can harm only that client's engine.
    """
    if not is_wellformed(frame, (ev.GraphSubmitted, ev.GraphExtended)):
        return False
    return decode(frame).tasks != TASKS


def _task(places: tuple[int, ...], *outputs: OutputSpec) -> NodeTaskSpec:
    return NodeTaskSpec(False, 1.0, 0, sum(places), places, outputs)


#: The honest graph; CAPTURE: a result.
TASKS = (
    _task((1,), OutputSpec(0, 1, 0, 0), OutputSpec(LARGE, 2, 0, 0)),
    _task((1,), OutputSpec(0, 3, 0, 0)),
    _task((1,), OutputSpec(0, 3, 0, 1)),
    _task((2,), OutputSpec(0, CAPTURE, 0, 0), OutputSpec(LARGE, CAPTURE, 1, 0)),
)


def _number(value: int) -> bytes:
    return (value % 2**63).to_bytes(8, "little")


def _value(ref: bytes) -> int:
    return int.from_bytes(ref[:8], "little")
