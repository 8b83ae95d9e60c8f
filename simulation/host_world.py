"""HostWorld: the ranks of a process group in one process, on a network that a seed drives.

It runs the real GroupMembers. The network keeps what a carrier promises: messages between two ranks
come in order, late, or never, if a rank dies; those of collectives come twice now and then. Ways
clog and heal, and some break: then their sender learns it, and what is under way is lost. Every
rank must get the very bits that the tree gives, or, where a rank has died or a way has broken, an
error that names it; and none may wait for ever.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mpgrad.distributed.carrier.messages import Segments, decode_head
from mpgrad.distributed.group_member import Frames, GroupMember, GroupTable
from mpgrad.distributed.operation import Operation
from mpgrad.distributed.states.collective_steps import (
    all_gather_steps,
    all_to_all_steps,
    broadcast_steps,
)
from mpgrad.distributed.states.reduction_tree import all_reduce_steps, combined, segments
from mpgrad.errors import HostLost

RANKS_MAX = 13
COLLECTIVES_MAX = 5
ELEMENTS_MAX = 40

#: Shares of worlds with a death, of messages that come twice, of steps of a program among all.
DEATHS, DOUBLED, STEPS = 0.3, 0.1, 0.2
#: Shares of worlds whose ways clog, and of steps at which one does; the longest time in steps.
CLOGS, CLOGGED, CLOGGED_STEPS_MAX = 0.4, 0.05, 200
#: Shares of worlds with a broken way, and of those in which it breaks both ways; the steps in which
#: it breaks, until its sender learns of it, and until it has healed.
BREAKS, BOTH_WAYS, BREAK_STEPS_MAX = 0.2, 0.3, 60


class HostWorldFailure(AssertionError):
    """A rank got something else than it should, or waits for ever."""


def not_commutative(lower: Any, upper: Any, out: Any = None) -> Any:
    """In place of the sum: the order of the two shows in every element."""
    return np.subtract(lower, upper * np.float32(0.37), out=out)


class Planned(NamedTuple):
    """One collective of the program that all ranks run."""

    kind: str
    table: GroupTable
    root: int
    #: What each rank of the group begins with.
    parts: list[Any]


class Links:
    """What happens to the ways between ranks, beside that messages take their time.

    A source of its own draws it, so that the other worlds stay what they are.
    """

    def __init__(self, world: HostWorld, seed: int) -> None:
        self._world, self.chance = world, random.Random(f"links of {seed}")
        ways = list(world.wires)
        self._clogs = bool(ways) and self.chance.random() < CLOGS
        #: By way, for how many more steps nothing comes.
        self.clogged: dict[tuple[int, int], int] = {}
        #: Ways on which everything is lost now.
        self.lost: set[tuple[int, int]] = set()
        #: What will happen: the step, and what.
        self.upcoming: list[tuple[int, Callable[[], None]]] = []
        #: The ranks at the ends of broken ways.
        self.ends: set[int] = set()
        #: The steps at which messages waited because of that.
        self.waited = 0
        self._step = 0
        if ways and self.chance.random() < BREAKS:
            one, other = self.chance.choice(ways)
            for way in [(one, other), (other, one)][: 1 + (self.chance.random() < BOTH_WAYS)]:
                self._soon(functools.partial(self._break, way))

    def _soon(self, action: Callable[[], None]) -> None:
        self.upcoming.append((self._step + self.chance.randint(1, BREAK_STEPS_MAX), action))

    def _break(self, way: tuple[int, int]) -> None:
        sender, to = way
        host, wire = self._world.hosts[sender], self._world.wires[way]
        if host.is_dead or host.has_ended or None in wire:
            return
        self.ends.update(way)
        self.lost.add(way)
        del wire[self.chance.randint(0, len(wire)) :]
        self._soon(functools.partial(self.lost.discard, way))
        self._soon(functools.partial(self._learn, sender, to))

    def _learn(self, sender: int, to: int) -> None:
        host = self._world.hosts[sender]
        if not host.is_dead and not host.has_ended:
            host.member.disconnected(to, "the connection to it has ended")

    def turn(self) -> None:
        """A step of the world begins."""
        self._step += 1
        due = [action for step, action in self.upcoming if step <= self._step]
        self.upcoming = [one for one in self.upcoming if one[0] > self._step]
        for action in due:
            action()
        self.clogged = {way: left - 1 for way, left in self.clogged.items() if left}
        if self._clogs and self.chance.random() < CLOGGED:
            way = self.chance.choice(list(self._world.wires))
            self.clogged[way] = self.chance.randint(1, CLOGGED_STEPS_MAX)

    def choose(self, under_way: list[tuple[int, int]]) -> int:
        """The place of the message that comes next. If all ways are clogged, time passes."""
        free = [at for at, way in enumerate(under_way) if way not in self.clogged]
        self.waited += len(free) < len(under_way)
        return self._world.random.choice(free or range(len(under_way)))


class _Host:
    """A rank: its member, and its program."""

    def __init__(self, world: HostWorld, rank: int, ranks: int) -> None:
        self.member = GroupMember(rank, ranks, lambda to, frames: world.send(rank, to, frames))
        self.program = world.program_of(rank)
        #: The end of each collective: its result, or its error.
        self.ends: list[Any] = []
        self.is_dead = self.has_ended = False


class HostWorld:
    """One random program of collectives. ``run`` it; ``seed`` makes it again."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        numbers = np.random.default_rng(seed)
        self.ranks = self.random.randint(1, RANKS_MAX)
        self.plan = [self._planned(numbers) for _ in range(self.random.randint(1, COLLECTIVES_MAX))]
        #: Messages under way between two ranks; None is the end of their connection.
        self.wires: dict[tuple[int, int], list[Frames | None]] = {
            (a, b): [] for a in range(self.ranks) for b in range(self.ranks) if a != b
        }
        #: The wire of each of these messages.
        self._under_way: list[tuple[int, int]] = []
        self.doomed = self.random.randrange(self.ranks) if self.random.random() < DEATHS else None
        self.dies_in = self.random.randint(0, 60)
        self.hosts = [_Host(self, rank, self.ranks) for rank in range(self.ranks)]
        self.links = Links(self, seed)

    def _planned(self, numbers: np.random.Generator) -> Planned:
        chosen = range(self.ranks)
        number = 0
        if self.random.random() < 0.4:
            chosen = sorted(self.random.sample(chosen, self.random.randint(1, self.ranks)))  # type: ignore[assignment]
            # Groups of the same ranks are one.
            number = 1 + sum(1 << rank for rank in chosen)
        table = GroupTable(number, tuple(chosen))
        length = self.random.randint(0, ELEMENTS_MAX)
        kind = self.random.choice(["all_reduce", "all_reduce", "broadcast", "all_gather", "mixed"])
        if kind == "mixed":
            length = len(table.ranks) * self.random.randint(0, 4)
        parts = [numbers.standard_normal(length).astype(np.float32) for _ in table.ranks]
        return Planned(kind, table, self.random.randrange(len(table.ranks)), parts)

    # ------------------------------------------------------------------ the program

    def program_of(self, rank: int) -> Iterator[Callable[[], bool]]:
        """Begin each collective, yield what says that it is over, and leave."""
        for planned in self.plan:
            if rank not in planned.table.ranks:
                continue
            host = self.hosts[rank]
            operation, result = self._operation(planned, planned.table.ranks.index(rank))
            host.member.start(planned.table, operation)
            if self.random.random() < 0.7:  # else the next one begins at once
                yield operation.work.is_completed
            host.ends.append((planned, operation.work, result))
        yield lambda: all(work._is_over for _, work, _ in self.hosts[rank].ends)
        self.hosts[rank].member.leave()
        yield lambda: self.hosts[rank].member.membership.may_go

    def _operation(self, planned: Planned, rank: int) -> tuple[Operation, Any]:
        ranks, own = len(planned.table.ranks), planned.parts[rank].copy()
        what = f"{planned.kind} of {own.size}"
        if planned.kind == "all_reduce":
            cuts, steps = segments(ranks), all_reduce_steps(rank, ranks)
            operation = Operation(
                what, steps, own, own, source_cuts=cuts, target_cuts=cuts, combine=not_commutative
            )
            return operation, own
        if planned.kind == "broadcast":
            return Operation(what, broadcast_steps(rank, ranks, planned.root), own, own), own
        if planned.kind == "all_gather":
            target = np.full((ranks, own.size), np.nan, np.float32)
            target[rank] = own
            steps = all_gather_steps(rank, ranks)
            return Operation(what, steps, own, target.reshape(-1), target_cuts=ranks), target
        target = np.full_like(own, np.nan).reshape(ranks, -1)
        target[rank] = own.reshape(ranks, -1)[rank]
        operation = Operation(
            what,
            all_to_all_steps(rank, ranks),
            own,
            target.reshape(-1),
            source_cuts=ranks,
            target_cuts=ranks,
        )
        return operation, target

    def expected(self, planned: Planned, rank: int) -> Any:
        """What this rank of the group has to get."""
        if planned.kind == "all_reduce":
            return combined(planned.parts, not_commutative)
        if planned.kind == "broadcast":
            return planned.parts[planned.root]
        if planned.kind == "all_gather":
            return np.stack(planned.parts)
        ranks = len(planned.parts)
        return np.stack([part.reshape(ranks, -1)[rank] for part in planned.parts])

    # ------------------------------------------------------------------ the network

    def send(self, sender: int, to: int, frames: Frames) -> None:
        """A carrier's ``send``: what it is given may change later."""
        if not self.hosts[to].has_ended and (sender, to) not in self.links.lost:
            self._put((sender, to), len(self.wires[sender, to]), [bytes(f) for f in frames])

    def _put(self, wire: tuple[int, int], place: int, frames: Frames | None) -> None:
        self.wires[wire].insert(place, frames)
        self._under_way.append(wire)

    def _deliver(self, sender: int, to: int) -> None:
        if not self.wires[sender, to]:
            return  # it was lost
        frames = self.wires[sender, to].pop(0)
        member = self.hosts[to].member
        if self.hosts[to].is_dead or self.hosts[to].has_ended:
            return
        if frames is None:
            member.disconnected(sender, "the connection to it has ended")
            return
        if isinstance(decode_head(frames[0]), Segments) and self.random.random() < DOUBLED:
            place = self.random.randint(0, len(self.wires[sender, to]))
            if None not in self.wires[sender, to][:place]:
                self._put((sender, to), place, frames)
        member.handle(sender, [memoryview(frame) for frame in frames])

    def _end_connections(self, rank: int, *, loses: bool) -> None:
        for other in range(self.ranks):
            if other != rank:
                wire = self.wires[rank, other]
                place = self.random.randint(0, len(wire))
                if loses:
                    del wire[place:]
                # That a connection has ended may be seen before the last messages are read.
                self._put((rank, other), place, None)

    def _kill(self, rank: int) -> None:
        self.hosts[rank].is_dead = True
        self._end_connections(rank, loses=True)

    # ------------------------------------------------------------------ time

    def run(self) -> HostWorld:
        """Until nothing happens any more; then look at what every rank has got.

        Raises:
            HostWorldFailure: it should have been something else.
        """
        waiting: dict[int, Callable[[], bool]] = {rank: lambda: True for rank in range(self.ranks)}
        while (
            self._under_way or self.links.upcoming or any(is_over() for is_over in waiting.values())
        ):
            self.links.turn()
            if self.doomed is not None and not self.hosts[self.doomed].has_ended:
                self.dies_in -= 1
                if self.dies_in == 0:
                    self._kill(self.doomed)
                    waiting.pop(self.doomed, None)
            if waiting and (not self._under_way or self.random.random() < STEPS):
                rank = self.random.choice(list(waiting))
                if waiting[rank]():
                    self._advance(rank, waiting)
            elif self._under_way:
                self._deliver(*self._under_way.pop(self.links.choose(self._under_way)))
        if waiting:
            raise HostWorldFailure(f"ranks {sorted(waiting)} of {self.ranks} wait for ever")
        self._check()
        return self

    def _advance(self, rank: int, waiting: dict[int, Callable[[], bool]]) -> None:
        try:
            waiting[rank] = next(self.hosts[rank].program)
        except StopIteration:
            del waiting[rank]
            self.hosts[rank].has_ended = True
            self._end_connections(rank, loses=False)

    def _check(self) -> None:
        dead = [rank for rank, host in enumerate(self.hosts) if host.is_dead]
        lost = {*dead, *self.links.ends}
        for rank, host in enumerate(self.hosts):
            if host.is_dead:
                continue
            for planned, work, result in host.ends:
                error = work.exception()
                if error is not None:
                    if not (isinstance(error, HostLost) and error.rank in lost):
                        raise HostWorldFailure(f"rank {rank}: {error!r}; lost: {lost}")
                    continue
                expected = self.expected(planned, planned.table.ranks.index(rank))
                if result.tobytes() != expected.tobytes():
                    raise HostWorldFailure(f"rank {rank}: {planned.kind} gave other bits")
