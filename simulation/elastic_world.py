"""ElasticWorld: the ranks of an elastic program in one process, on a network that a seed drives.

It runs the real rendezvous, Generations and GroupMembers, and does with them what ``elastic.run``
does. Ranks die anywhere and are started again, also while others wait for them. Messages come late,
also those of a former generation, twice, or never. All ranks must end with the very bits of a
program in which nobody died, and none may wait for ever.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np

from mpgrad.distributed.carrier.contract import CarrierEvent
from mpgrad.distributed.carrier.messages import Join
from mpgrad.distributed.generation import Generation
from mpgrad.distributed.group_member import GroupTable
from mpgrad.distributed.operation import Operation, Work
from mpgrad.distributed.rendezvous import RendezvousGuest, RendezvousHost, rank_name
from mpgrad.distributed.states.collective_steps import (
    all_gather_steps,
    broadcast_steps,
    roll_call_steps,
)
from mpgrad.distributed.states.host_membership import newest
from mpgrad.distributed.states.reduction_tree import all_reduce_steps, combined, segments
from mpgrad.errors import HostLost
from simulation.host_world import not_commutative
from simulation.simulated_carrier import SimulatedCarrier

RANKS_MAX = 6
STEPS_MAX = 5
ELEMENTS_MAX = 9
DEATHS_MAX = 4
#: Turns after which the next death comes, at most.
TURNS_MAX = 250
#: Shares of turns that bring a copy of a message once more; in which a program goes on; in which
#: somebody who waits asks again.
LATE, STEPS, AGAIN = 0.02, 0.3, 0.05

#: What a program waits for, and what it waits with.
Waiting = Generator[Callable[[], bool], None, Any]


class ElasticWorldFailure(AssertionError):
    """A rank ended with something else than it should, or waits for ever."""


class _Process:
    """One incarnation of a rank's program."""

    def __init__(self, world: ElasticWorld, rank: int) -> None:
        self.world, self.rank = world, rank
        self.carrier: SimulatedCarrier | None = None
        #: What it should do again as long as it waits for rank 0, if it does.
        self.asks: Callable[[], None] | None = None
        self.error: BaseException | None = None
        self.has_returned = False
        self.generation: Generation | None = None
        #: The number of the last commit, and its state: what ``elastic.State`` has.
        self.number, self.saved = -1, np.full(world.length + 1, float(world.random.random()))
        self.ignored = 0
        self.program: Iterator[Callable[[], bool]] = self._run()

    def _run(self) -> Waiting:
        world = self.world
        while True:
            try:
                yield from self._meet()
                yield from self._sync()
                while self.saved[-1] < world.steps:
                    yield from self._step()
                yield from self._barrier()
            except HostLost:
                if self.has_returned and (yield from self._has_ended()):
                    yield from self._leave()
                    return
                yield from self._leave()
                self.has_returned = False
            else:
                yield from self._leave()
                return

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
                side = RendezvousHost(carrier, join, replaces=True)
            else:
                side = RendezvousGuest(carrier, join, ("master", 0))
                carrier.peers["master"] = "master"
            carrier.take = self._caught(side.take)
            self.asks = side.ask
            side.ask()
            yield lambda side=side: side.meeting is not None or self.error is not None  # type: ignore[misc]
            self.asks = None
            if self.error is None:
                break
            error, self.error = self.error, None
            carrier.close(0)
            if not isinstance(error, HostLost):
                raise ElasticWorldFailure(f"rank {rank}: {error!r}")
        self.generation = Generation(rank, side.meeting)
        self.generation.begin()
        carrier.take = self.generation.take

    def _caught(self, take: Callable[[CarrierEvent], None]) -> Callable[[CarrierEvent], None]:
        def catch(event: CarrierEvent) -> None:
            if self.error is None:
                try:
                    take(event)
                except (HostLost, RuntimeError) as error:
                    self.error = error

        return catch

    def _leave(self) -> Waiting:
        assert self.generation is not None
        generation = self.generation
        generation.member.leave()
        # The real one waits 5 s for its farewells to be read.
        patience = [self.world.random.randint(20, 200)]

        def is_over() -> bool:
            patience[0] -= 1
            return generation.member.membership.may_go or patience[0] <= 0

        yield is_over
        generation.end()
        self.world.ignored += generation.ignored

    # ------------------------------------------------------------------ what it computes

    def _collective(self, operation: Operation) -> Waiting:
        assert self.generation is not None
        table = GroupTable(0, tuple(range(self.world.ranks)))
        self.generation.member.start(table, operation)
        yield lambda: operation.work._is_over
        operation.work.wait()

    def _sync(self) -> Waiting:
        rank, ranks = self.rank, self.world.ranks
        numbers = np.zeros(ranks, np.int64)
        numbers[rank] = self.number
        own = numbers[rank : rank + 1].copy()
        steps = all_gather_steps(rank, ranks)
        yield from self._collective(Operation("numbers", steps, own, numbers, target_cuts=ranks))
        state = np.array([max(self.number, 0), *self.saved])
        steps = broadcast_steps(rank, ranks, newest(list(map(int, numbers))))
        yield from self._collective(Operation("state", steps, state, state))
        if self.number < 0 <= numbers.max():
            self.world.taken_over += 1
        self.number, self.saved = int(state[0]), state[1:]
        if numbers.max() < 0:
            self.saved = np.array([*self.world.begins, 0.0])

    def _step(self) -> Waiting:
        rank, ranks = self.rank, self.world.ranks
        step = int(self.saved[-1])
        own = self.world.part(step, rank, self.saved[:-1])
        cuts, steps = segments(ranks), all_reduce_steps(rank, ranks)
        operation = Operation(
            f"step {step}",
            steps,
            own,
            own,
            source_cuts=cuts,
            target_cuts=cuts,
            combine=not_commutative,
        )
        yield from self._collective(operation)
        yield lambda: True  # here the optimizer steps
        self.number, self.saved = self.number + 1, np.array([*own, step + 1.0])
        yield lambda: True

    def _barrier(self) -> Waiting:
        own, other = np.zeros(1), np.zeros(1)
        steps = roll_call_steps(self.rank, self.world.ranks)
        self.has_returned = True
        yield from self._collective(Operation("barrier", steps, own, other, is_end=True))

    def _has_ended(self) -> Generator[Callable[[], bool], None, bool]:
        assert self.generation is not None
        member, work = self.generation.member, Work("end")
        member.doubt_end(work)
        yield lambda: work._is_over
        self.world.asked += 1
        return member.has_ended


class ElasticWorld:
    """One random elastic program. ``run`` it; ``seed`` makes it again."""

    def __init__(self, seed: int) -> None:
        self.random = chance = random.Random(seed)
        self.seed = seed
        self.ranks = chance.randint(2, RANKS_MAX)
        self.steps = chance.randint(1, STEPS_MAX)
        self.length = chance.randint(1, ELEMENTS_MAX)
        self.begins = np.random.default_rng(seed).standard_normal(self.length)
        #: The turns after which somebody dies, one after another.
        self.deaths = [chance.randint(0, TURNS_MAX) for _ in range(chance.randint(0, DEATHS_MAX))]
        #: The one rank that has died after its function had returned: the others may end without
        #: the process that was started instead.
        self.late: int | None = None
        self.listening: dict[str, SimulatedCarrier] = {}
        #: Copies of messages that come once more: the sender, the address, the message.
        self.copies: list[tuple[str, str, list[bytes]]] = []
        #: How many ranks took the state of a survivor, and messages were not read.
        self.taken_over = self.ignored = self.died = 0
        #: How many ranks asked whether all had ended.
        self.asked = 0
        self.processes = [_Process(self, rank) for rank in range(self.ranks)]

    def part(self, step: int, rank: int, state: Any) -> Any:
        """What a rank contributes: it depends on the state, the step and the rank alone."""
        numbers = np.random.default_rng((self.seed, step, rank)).standard_normal(self.length)
        return state * 0.9 + numbers

    def expected(self) -> Any:
        """The state at the end of a program in which nobody dies."""
        state = self.begins
        for step in range(self.steps):
            parts = [self.part(step, rank, state) for rank in range(self.ranks)]
            state = combined(parts, not_commutative)
        return state

    def run(self) -> ElasticWorld:
        """Until all have ended; then look at what they have.

        Raises:
            ElasticWorldFailure: it should have been something else, or somebody waits for ever.
        """
        waiting: list[Callable[[], bool] | None] = [lambda: True] * self.ranks
        turns = 0
        while any(is_over for rank, is_over in enumerate(waiting) if rank != self.late):
            turns += 1
            if turns > 100_000:
                stuck = [rank for rank, is_over in enumerate(waiting) if is_over]
                raise ElasticWorldFailure(
                    f"seed {self.seed}: ranks {stuck} of {self.ranks} wait for ever"
                )
            if self.deaths:
                self.deaths[0] -= 1
                if self.deaths[0] < 0:
                    self.deaths.pop(0)
                    able = [p.rank for p in self.processes if self._may_die(p, waiting[p.rank])]
                    if able:
                        self._kill(self.random.choice(able), waiting)
            self._turn(waiting)
        expected = self.expected().tobytes()
        for process, is_over in zip(self.processes, waiting, strict=True):
            if is_over is None and process.saved[:-1].tobytes() != expected:
                raise ElasticWorldFailure(f"seed {self.seed}: rank {process.rank} has other bits")
        return self

    def _may_die(self, process: _Process, is_over: Callable[[], bool] | None) -> bool:
        """Whether the others can end: what only one knows that dies, nobody can ask."""
        if process.has_returned:
            return is_over is not None and self.late in (None, process.rank)
        return True

    def _kill(self, rank: int, waiting: list[Callable[[], bool] | None]) -> None:
        """The process ends; the launcher starts another one."""
        self.died += 1
        if self.processes[rank].has_returned:
            self.late = rank
        carrier = self.processes[rank].carrier
        if carrier is not None:
            for peer, queue in carrier.queues.items():
                # Some of what it has sent is still read.
                del queue[self.random.randint(0, len(queue)) :]
                for frames in queue:
                    self.copies.append((carrier.name, carrier.peers[peer], frames))
            carrier.close(0)
        self.processes[rank] = _Process(self, rank)
        waiting[rank] = lambda: True

    def _turn(self, waiting: list[Callable[[], bool] | None]) -> None:
        chance = self.random.random()
        if chance < LATE and self.copies:
            name, address, frames = self.copies.pop(self.random.randrange(len(self.copies)))
            if address in self.listening:
                self.listening[address].arrive(name, frames)
        elif chance < LATE + AGAIN:
            process = self.random.choice(self.processes)
            if process.asks is not None:
                process.asks()
        elif chance < LATE + AGAIN + STEPS:
            self._advance(self.random.randrange(self.ranks), waiting)
        else:
            self._bring()

    def _bring(self) -> None:
        carriers = [p.carrier for p in self.processes if p.carrier is not None]
        able = [(c, peer) for c in carriers if c.is_open for peer in c.turns()]
        if able:
            carrier, peer = self.random.choice(able)
            carrier.turn(peer, self.random)

    def _advance(self, rank: int, waiting: list[Callable[[], bool] | None]) -> None:
        is_over = waiting[rank]
        if is_over is not None and is_over():
            try:
                waiting[rank] = next(self.processes[rank].program)
            except StopIteration:
                waiting[rank] = None
            except RuntimeError as error:
                raise ElasticWorldFailure(f"seed {self.seed}, rank {rank}: {error!r}") from error
