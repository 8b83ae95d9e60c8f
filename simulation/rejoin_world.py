"""RejoinWorld: processes that call each other, on a network that a seed drives; some die.

It runs the real rendezvous, Generations, GroupMembers and RpcServices. A process that dies is
started again, and joins those that live, also if rank 0 has died, or several have. Messages come
late, also those of dead processes and those for them, or never. Each call must end: with its
result, or with the loss of its callee; one that may be repeated with its result. No call for one
process may run in another one, and in the end nobody may keep anything. With ``graphs`` some calls
belong to graphs over hosts, which have backwards (:mod:`simulation.rejoin_graphs`).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Generator, Iterator
from typing import Any

import mpgrad as mg
from mpgrad.distributed.carrier.contract import CarrierEvent
from mpgrad.distributed.carrier.messages import Join, decode_head
from mpgrad.distributed.futures import Future
from mpgrad.distributed.generation import Generation
from mpgrad.distributed.rendezvous import RendezvousGuest, RendezvousHost, rank_name
from mpgrad.distributed.rpc.calling_threads import CallingThreads
from mpgrad.distributed.rpc.current_service import current
from mpgrad.distributed.rpc.remote_reference import RRef, _value_of, reduced, remote_reference
from mpgrad.distributed.rpc.service import RpcService
from mpgrad.errors import HostLost
from simulation.rejoin_graphs import GraphProgram, weight_of
from simulation.simulated_carrier import SimulatedCarrier
from simulation.turns import Turns

RANKS_MAX = 5
CALLS_MAX = 8
DEATHS_MAX = 3
#: Turns after which the next death comes, at most.
TURNS_MAX = 250
#: The same, with graphs; the share of what a program does that is a graph then.
GRAPH_TURNS_MAX, GRAPHS = 700, 0.5
#: Shares of turns that bring a message late; in which a program, a call, or a question goes on.
LATE, STEPS, TASKS, AGAIN = 0.03, 0.2, 0.2, 0.05
#: The share of messages for a dead process that its successor gets.
ASTRAY = 0.5

Waiting = Generator[Callable[[], bool], None, Any]


class RejoinWorldFailure(AssertionError):
    """A call ended otherwise than it should, or somebody waits for ever, or keeps something."""


class ProcessDied(BaseException):
    """Ends the threads of a process that has died."""


class _Running:
    """The process whose turn it is."""

    process: _Process | None = None


def _here() -> _Process:
    assert _Running.process is not None
    return _Running.process


def _run_at(number: int) -> None:
    process = _here()
    if number not in (-1, process.number):
        raise RejoinWorldFailure(f"a call for process {number} runs in {process.number}")


def triple(number: int, x: int) -> int:
    _run_at(number)
    return 3 * x


def made(number: int, x: int) -> list[int]:
    _run_at(number)
    return [x]


def taken(number: int, reference: RRef, x: int) -> int:
    """Keep a reference for a while."""
    _run_at(number)
    _here().take(reference)
    return 3 * x


class _Threads(CallingThreads):
    """What others call waits for its turn."""

    def __init__(self) -> None:
        self.tasks: list[Callable[[], None]] = []
        #: Those that have begun.
        self.begun: list[Turns] = []

    @property
    def busy(self) -> int:  # type: ignore[override]
        return len(self.tasks) + len(self.begun)

    def run(self, task: Callable[[], None]) -> None:
        self.tasks.append(task)


class _Thread:
    """In place of a MemberThread: who asks while another one has the turn waits."""

    reopens = True

    def __init__(self, process: _Process, generation: Generation) -> None:
        self._process, self._requests, self._has_turn = process, list[Callable[[], None]](), False
        self.member = generation.member

    def ask(self, request: Callable[[], None]) -> None:
        if self._process.is_dead:
            raise RuntimeError("the process group has ended")
        self._requests.append(request)
        if not self._has_turn:
            self._has_turn = True
            while self._requests:
                self._requests.pop(0)()
            self._has_turn = False

    do = ask

    def wait_until(self, is_there: Callable[[], bool], seconds: float | None = None) -> bool:
        """Let others have their turns; a time may be over at any moment."""
        if not is_there():
            Turns.of_this_thread().give_back(is_there if seconds is None else lambda: True)
        if self._process.is_dead:
            raise ProcessDied
        return is_there()


class _Process:
    """One incarnation of a rank's program."""

    def __init__(self, world: RejoinWorld, rank: int) -> None:
        self.world, self.rank = world, rank
        self.is_dead = self.is_leaving = self.has_begun = False
        self.carrier: SimulatedCarrier | None = None
        self.generation: Generation | None = None
        self.service: RpcService | None = None
        self.threads = _Threads()
        #: The parameter of its part of graphs.
        self.weight = weight_of(rank) if world.has_graphs else None
        #: What it should do again as long as it waits for rank 0, if it does.
        self.asks: Callable[[], None] | None = None
        self.error: BaseException | None = None
        self.references: list[RRef] = []
        #: What it has called, how that has to end, and what has to live until then.
        self.calls: list[tuple[Future, int, Any, bool, Any]] = []
        self.program: Iterator[Callable[[], bool]] = self._run()

    @property
    def number(self) -> int:
        assert self.service is not None
        return self.service.numbers[self.rank]

    def take(self, reference: RRef) -> None:
        if not self.is_leaving:
            self.references.append(reference)

    # ------------------------------------------------------------------ its program

    def _run(self) -> Waiting:
        world, chance = self.world, self.world.random
        yield from self._meet()
        service = self.service
        assert service is not None
        current.service = service
        yield lambda: service.all_ready.is_set()
        self.has_begun = True
        for _ in range(chance.randint(1, CALLS_MAX)):
            if world.has_graphs and chance.random() < GRAPHS:
                yield from self._run_graph()
                continue
            self._call(chance.randrange(world.ranks))
            if chance.random() < 0.6:
                future = self.calls[-1][0]
                yield future.done
            if self.references and chance.random() < 0.3:
                self.references.pop(chance.randrange(len(self.references)))
        yield lambda: all(future.done() for future, *_ in self.calls)
        self._check()
        self.is_leaving = True
        self.calls.clear()
        self.references.clear()
        while True:
            answer = service.report_idle()
            yield answer.done
            if answer.wait():
                break
        yield from self._leave()

    def _run_graph(self) -> Waiting:
        """On a thread of its own, as it waits in the middle of calls."""
        program = GraphProgram(self.world, self)
        thread = Turns(lambda: _until_death(program.run))
        self.threads.begun.append(thread)
        yield lambda: thread.is_over
        if program.failure:
            raise RejoinWorldFailure(f"rank {self.rank}: {program.failure}")

    def _meet(self) -> Waiting:
        world, rank = self.world, self.rank
        while True:
            incarnation = f"{world.random.getrandbits(64):x}"
            yield lambda: rank != 0 or "master" not in world.listening
            address = "master" if rank == 0 else f"{rank}:{incarnation}"
            self.carrier = carrier = SimulatedCarrier(world, rank_name(rank, incarnation), address)
            join = Join(rank, world.ranks, incarnation, address, ())
            side: Any
            if rank == 0:
                side = RendezvousHost(carrier, join, replaces=True, reopens=True)
            else:
                side = RendezvousGuest(carrier, join, ("master", 0), reopens=True)
                side._master = carrier.peers["master"] = "master"
            carrier.take = self._caught(side)
            self.asks = side.ask
            side.ask()
            yield lambda side=side: side.meeting is not None or self.error is not None  # type: ignore[misc]
            if self.error is None:
                break
            error, self.error = self.error, None
            carrier.close(0)
            if not isinstance(error, HostLost):
                raise RejoinWorldFailure(f"rank {rank}: {error!r}")

    def _caught(self, side: Any) -> Callable[[CarrierEvent], None]:
        def catch(event: CarrierEvent) -> None:
            if self.error is None:
                try:
                    side.take(event)
                except (HostLost, RuntimeError) as error:
                    self.error = error
            if side.meeting is not None:
                self._begin(Generation(self.rank, side.meeting))

        return catch

    def _begin(self, generation: Generation) -> None:
        """At once, as the real one does."""
        self.generation = generation
        thread: Any = _Thread(self, generation)
        generation.carrier.take = lambda event: thread.ask(lambda: generation.take(event))  # type: ignore[attr-defined]
        self.asks = lambda: thread.ask(generation.ask)
        thread.ask(generation.begin)
        name = f"w{self.rank}"
        self.service = RpcService(thread, name, reduced, reopens=True, threads=self.threads)
        self.service.weight = self.weight  # type: ignore[attr-defined]
        self.service.begin()

    def _call(self, to: int) -> None:
        service, chance = self.service, self.world.random
        assert service is not None
        repeats, x = chance.random() < 0.5, chance.randrange(100)
        number = -1 if repeats else service.numbers[to]
        kind = chance.randrange(5)
        settled = [r for r in self.references if not r._may_move or r._created.done()]  # type: ignore[union-attr]
        settled = [r for r in settled if not r._may_move or r._created._error is None]  # type: ignore[union-attr]
        if kind == 0:
            reference = remote_reference(service, to, made, (number, x), {}, 0, repeats=repeats)
            assert reference._created is not None
            self.calls.append((reference._created, to, None, repeats, None))
            if chance.random() < 0.8:  # else it dies at once
                self.references.append(reference)
        elif kind == 1 and settled:
            reference = chance.choice(settled)
            home = reference._home
            future = service.calls.make(home.rank, _value_of, (reference._value,), {}, 0, home=home)
            self.calls.append((future, home.rank, list, False, reference))
        elif kind in (2, 3) and settled:
            args = number, chance.choice(settled), x
            future = service.calls.make(to, taken, args, {}, 0, repeats=repeats)
            self.calls.append((future, to, 3 * x, repeats, None))
        else:
            future = service.calls.make(to, triple, (number, x), {}, 0, repeats=repeats)
            self.calls.append((future, to, 3 * x, repeats, None))

    def _check(self) -> None:
        world = self.world
        for future, to, expected, repeats, _ in self.calls:
            error = future._error
            world.lost += error is not None
            if error is None:
                value = future._value
                if expected not in (value, type(value)):
                    raise RejoinWorldFailure(f"{value!r} in place of {expected!r}")
            elif repeats or not isinstance(error, HostLost) or error.rank not in world.died:
                raise RejoinWorldFailure(f"rank {self.rank} called {to}: {error!r}")
            elif error.rank != to and expected is not list:
                # A value is also lost with the process that should have had it made.
                raise RejoinWorldFailure(f"rank {self.rank} called {to}: {error!r}")

    def _leave(self) -> Waiting:
        generation, service = self.generation, self.service
        assert generation is not None
        assert service is not None
        generation.member.leave()
        yield lambda: generation.member.membership.may_go and not self.threads.tasks
        kept = service.references
        if kept.values or kept.on_their_way or kept._early or service.calls.count:
            raise RejoinWorldFailure(f"rank {self.rank} keeps {vars(kept)}")
        if kept._book.count or service.calls._pending:
            raise RejoinWorldFailure(f"rank {self.rank} keeps something in its books")
        contexts = [context.id for context in service.autograd.contexts.all()]
        if contexts:
            raise RejoinWorldFailure(f"rank {self.rank} keeps the contexts {contexts}")
        self.asks = None
        generation.end()
        self.is_dead = True
        self.world.ignored += generation.ignored


class RejoinWorld:
    """One random world. ``run`` it; ``seed`` makes it again.

    Args:
        seed: of everything.
        graphs: some of its calls belong to graphs.
    """

    def __init__(self, seed: int, *, graphs: bool = False) -> None:
        self.random = chance = random.Random(seed)
        self.seed, self.has_graphs = seed, graphs
        self.ranks = chance.randint(2, RANKS_MAX)
        #: The turns after which somebody dies, one after another.
        turns = GRAPH_TURNS_MAX if graphs else TURNS_MAX
        self.deaths = [chance.randint(0, turns) for _ in range(chance.randint(0, DEATHS_MAX))]
        self.listening: dict[str, SimulatedCarrier] = {}
        #: What carriers have doubled, and what comes late: the sender, the address, the message.
        self.copies: list[tuple[str, str, list[bytes]]] = []
        self._late: list[tuple[str, str, list[bytes]]] = []
        self.died: list[int] = []
        #: Calls that a death has ended; messages that were not read.
        self.lost = self.ignored = 0
        #: Graphs that ended well, and those of them in whose backward or forward somebody died
        #: whom they span; those that a death has ended.
        self.graphs = self.saved = self.over = 0
        self.processes = [_Process(self, rank) for rank in range(self.ranks)]
        self._waiting: list[Callable[[], bool] | None] = [lambda: True] * self.ranks

    def run(self) -> RejoinWorld:
        """Until all have ended.

        Raises:
            RejoinWorldFailure: something is not as it should be.
        """
        before = current.service
        engine = mg.Engine("local", cpu_workers=1, shm_limit="1MB") if self.has_graphs else None
        try:
            with engine or contextlib.nullcontext():
                self._run()
        except (RejoinWorldFailure, AssertionError, RuntimeError, KeyError) as error:
            raise RejoinWorldFailure(f"seed {self.seed}: {error!r}") from error
        finally:
            self._end_threads()
            current.service, _Running.process = before, None
        return self

    def _run(self) -> None:
        turns = 0
        while any(self._waiting):
            turns += 1
            if turns > 60_000:
                stuck = [rank for rank, is_over in enumerate(self._waiting) if is_over]
                raise RejoinWorldFailure(f"ranks {stuck} of {self.ranks} wait for ever")
            self._turn()

    def _end_threads(self) -> None:
        """If something has failed."""
        for process in self.processes:
            process.is_dead = True
            _end_threads_of(process)

    def _turn(self) -> None:
        if self.deaths and not self._has_ended():
            self.deaths[0] -= 1
            if self.deaths[0] < 0:
                self.deaths.pop(0)
                self._kill(self.random.randrange(self.ranks))
        chance = self.random.random()
        if chance < LATE:
            self._bring_late()
        elif chance < LATE + AGAIN:
            process = self._choose()
            if process.asks is not None:
                process.asks()
        elif chance < LATE + AGAIN + STEPS:
            self._advance(self._choose())
        elif chance < LATE + AGAIN + STEPS + TASKS:
            self._run_task(self._choose())
        else:
            self._bring()

    def _has_ended(self) -> bool:
        """Whether some may know soon that all have ended: nobody is started again then."""
        first = self.processes[0].service
        if first is None:
            return False
        return first._leaving._is_over or first._leaving._rounds._idle > 0

    def _choose(self) -> _Process:
        process = self.random.choice(self.processes)
        _Running.process, current.service = process, process.service
        return process

    def _kill(self, rank: int) -> None:
        """The process ends; the launcher starts another one."""
        process = self.processes[rank]
        self.died.append(rank)
        process.is_dead = True
        carrier = process.carrier
        if carrier is not None:
            for peer, queue in carrier.queues.items():
                # Some of what it has sent is still read.
                for frames in queue[: self.random.randint(0, len(queue))]:
                    self._late.append((carrier.name, carrier.peers[peer], frames))
            for other in self.processes:
                self._lead_astray(other.carrier, carrier)
            carrier.close(0)
        _end_threads_of(process)
        self.processes[rank] = _Process(self, rank)
        self._waiting[rank] = lambda: True

    def _lead_astray(self, sender: SimulatedCarrier | None, to: SimulatedCarrier) -> None:
        """What is under way to a dead process may come to whoever listens there next."""
        for peer, queue in sender.queues.items() if sender is not None else ():
            if sender is not None and sender.peers[peer] == to.address:
                self._late += [
                    (sender.name, to.address, frames)
                    for frames in queue
                    if self.random.random() < ASTRAY
                ]

    def _bring_late(self) -> None:
        """Bring what was under way, as somebody died; or something twice, but to no process twice.

        A question for rank 0 is not led astray: of one that has met the others since, another rank
        0 would think that it is new.
        """
        some, is_new = self.random.choice(((self.copies, False), (self._late, True)))
        if not some:
            return
        name, address, frames = some.pop(self.random.randrange(len(some)))
        listener = self.listening.get(address)
        if listener is None or (len(frames) == 1 and isinstance(decode_head(frames[0]), Join)):
            return
        if is_new or frames[-1].decode(errors="replace") != listener.name.partition(".")[2]:
            listener.arrive(name, frames)

    def _bring(self) -> None:
        carriers = [p.carrier for p in self.processes if p.carrier is not None]
        able = [(c, peer) for c in carriers if c.is_open for peer in c.turns()]
        if able:
            carrier, peer = self.random.choice(able)
            carrier.turn(peer, self.random)

    def _run_task(self, process: _Process) -> None:
        service, threads = process.service, process.threads
        threads.begun = [thread for thread in threads.begun if not thread.is_over]
        able = [thread.run_on for thread in threads.begun if thread.is_ready()]
        if service is not None and service.all_ready.is_set():
            able += [lambda at=at: self._begin(threads, at) for at in range(len(threads.tasks))]  # type: ignore[misc]
        if able:
            self.random.choice(able)()

    def _begin(self, threads: _Threads, at: int) -> None:
        task = threads.tasks.pop(at)
        if not self.has_graphs:
            task()
            return
        threads.begun.append(Turns(lambda: _until_death(task)))
        threads.begun[-1].run_on()

    def _advance(self, process: _Process) -> None:
        is_over = self._waiting[process.rank]
        if is_over is not None and is_over():
            try:
                self._waiting[process.rank] = next(process.program)
            except StopIteration:
                self._waiting[process.rank] = None


def _until_death(function: Callable[[], None]) -> None:
    with contextlib.suppress(ProcessDied):
        function()


def _end_threads_of(process: _Process) -> None:
    for thread in process.threads.begun:
        while not thread.is_over:
            thread.run_on()
