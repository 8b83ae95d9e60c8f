"""PlacementWorld: the launchers of one job in one process, on a network that a seed drives.

It runs the real FirstHost and OtherHosts. Hosts come in any order, are killed and started again;
connections break though both ends live. In the end each rank has ended well on one host, and nobody
waits for ever. Where host 0 dies, no rank outlives it.
"""

from __future__ import annotations

import random

from mpgrad.distributed.carrier.contract import CarrierEvent
from mpgrad.distributed.carrier.messages import Assignment, Join
from mpgrad.distributed.hosts_of_job import FIRST, OTHER, FirstHost, JobTerms, OtherHost
from mpgrad.distributed.states.rank_placement import ANY
from mpgrad.errors import HostLost, RendezvousTimeout
from simulation.simulated_carrier import SimulatedCarrier

HOSTS_MAX, RANKS_PER_HOST_MAX, FAULTS_MAX = 4, 3, 5
#: Turns after which the next fault comes, at most.
TURNS_MAX = 400
#: Seconds that a turn takes, and that hosts wait for more of them.
TURN_S, LAST_CALL_S = 0.02, 3.0
#: Shares of worlds in which host 0 dies; of faults that kill, the others break a connection; of
#: turns that bring a copy once more; in which somebody looks at the time; of looks at a launcher
#: that has failed with which it is started again; of looks at others with which all may meet.
FIRST_DIES, KILLS, LATE, LOOKS, STARTS_AGAIN, MEETS = 0.15, 0.6, 0.02, 0.2, 0.05, 0.01
ENDPOINT = "endpoint"


class PlacementWorldFailure(AssertionError):
    """A rank runs twice or nowhere, or somebody waits for ever."""


class _Launcher:
    """One process of ``mpgrad run``: the first one, or another."""

    def __init__(self, world: PlacementWorld, number: int) -> None:
        self._world = world
        self.incarnation = f"{world.random.getrandbits(64):x}"
        self.number, self.ranks, self.ended = number, set[int](), set[int]()
        #: The host's number, once it has been told.
        self.host = ANY
        self.error: Exception | None = None
        self.is_over = False
        is_first = number == 0
        name = f"{FIRST if is_first else OTHER}.{self.incarnation}"
        address = ENDPOINT if is_first else f"{number}:{self.incarnation}"
        self.carrier = SimulatedCarrier(world, name, address)
        wanted = 0 if is_first else world.wanted[number]
        join = Join(wanted, world.ranks, self.incarnation, address, ())
        self.side: FirstHost | OtherHost = (
            FirstHost(self.carrier, join, world.terms, 1, self._run)
            if is_first
            else OtherHost(self.carrier, join, world.terms, ENDPOINT, self._run)
        )
        self.carrier.take = self._take

    def _run(self, assignment: Assignment) -> None:
        if not self.ranks.isdisjoint(assignment.ranks):
            raise PlacementWorldFailure(f"host {self.number} starts {assignment.ranks} twice")
        if self.ranks and self.host != assignment.host:
            raise PlacementWorldFailure(f"host {self.host} becomes {assignment.host}")
        self.host = assignment.host
        self.ranks.update(assignment.ranks)

    def _take(self, event: CarrierEvent) -> None:
        try:
            self.side.take(event)
        except (HostLost, RendezvousTimeout, RuntimeError) as error:
            self._fail(error)

    def look(self, now: float) -> None:
        try:
            self.side.look(now)
        except RendezvousTimeout as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self.ranks or self.running():
            self.error = error
            self._world.fenced += bool(self.running())
        self.stop()

    def stop(self) -> None:
        """The process and its ranks end."""
        self.is_over = True
        self.carrier.close(0)

    def running(self) -> set[int]:
        return set() if self.is_over else self.ranks - self.ended


class PlacementWorld:
    """One random job. ``run`` it; ``seed`` makes it again."""

    def __init__(self, seed: int) -> None:
        self.random = chance = random.Random(seed)
        self.seed = seed
        hosts_max = chance.randint(1, HOSTS_MAX)
        hosts_min = chance.randint(1, hosts_max)
        per_host = chance.randint(1, RANKS_PER_HOST_MAX)
        self.first_dies = chance.random() < FIRST_DIES
        wait_s = 20.0 if self.first_dies else 1e6
        self.terms = JobTerms(hosts_min, hosts_max, per_host, True, wait_s, LAST_CALL_S)
        self.ranks = hosts_max * per_host
        #: The host number that each launcher asks for; one host more than there is place for.
        fixed = chance.random() < 0.3
        self.wanted = [k if fixed and k < hosts_max else ANY for k in range(hosts_max + 1)]
        faults = chance.randint(int(self.first_dies), FAULTS_MAX)
        self.faults = [chance.randint(0, TURNS_MAX) for _ in range(faults)]
        self.listening: dict[str, SimulatedCarrier] = {}
        self.copies: list[tuple[str, str, list[bytes]]] = []
        self.launchers: dict[int, _Launcher] = {}
        #: Whether all ranks have met, and one after the other ends.
        self.has_met = False
        self.now = 0.0
        #: How many were killed, were taken for lost and found out, and were given lost ranks.
        self.killed = self.fenced = self.moved = 0
        self.killed_late = False

    def run(self) -> PlacementWorld:
        """Until all have ended.

        Raises:
            PlacementWorldFailure: something is not as it should be.
        """
        turns = 0
        while not self._has_ended():
            turns += 1
            self.now += TURN_S
            if turns > 100_000:
                running = {k: sorted(launcher.running()) for k, launcher in self.launchers.items()}
                raise PlacementWorldFailure(f"seed {self.seed}: waits for ever, runs {running}")
            if self.faults:
                self.faults[0] -= 1
                if self.faults[0] < 0:
                    self.faults.pop(0)
                    self._fault()
            self._turn()
        if not self.first_dies:
            ended = sorted(rank for one in self.launchers.values() for rank in one.ended)
            if not self.killed_late and ended != list(range(self.ranks)):
                raise PlacementWorldFailure(f"seed {self.seed}: the ranks {ended} have ended")
        return self

    def _has_ended(self) -> bool:
        first = self.launchers.get(0)
        if first is None:
            return False
        others = [one for k, one in self.launchers.items() if k > 0]
        if self.first_dies:
            return first.is_over and all(one.is_over for one in others)
        # A host for which there is no place is refused, or waits to be needed.
        return first.is_over and all(one.is_over or not one.ranks for one in others)

    # ------------------------------------------------------------------ what happens

    def _turn(self) -> None:
        chance = self.random.random()
        if chance < LATE and self.copies:
            name, address, frames = self.copies.pop(self.random.randrange(len(self.copies)))
            if address in self.listening:
                self.listening[address].arrive(name, frames)
        elif chance < LATE + LOOKS:
            self._live(self.random.randrange(len(self.wanted)))
        else:
            carriers = [one.carrier for one in self.launchers.values() if not one.is_over]
            able = [(carrier, peer) for carrier in carriers for peer in carrier.turns()]
            if able:
                carrier, peer = self.random.choice(able)
                carrier.turn(peer, self.random)

    def _live(self, number: int) -> None:
        """A launcher is started, or looks at the time and at its ranks."""
        one = self.launchers.get(number)
        if one is None or (one.is_over and one.error is not None and self._starts_again()):
            self.launchers[number] = _Launcher(self, number)
            return
        if one.is_over:
            return
        one.look(self.now)
        if self.random.random() < MEETS:
            self.has_met = self.has_met or self._have_all_met()
        ready = sorted(one.running()) if self.has_met else []
        if ready:
            rank = self.random.choice(ready)
            one.ended.add(rank)
            one.side.end([rank])
        elif one.ranks == one.ended and (one.ranks or number > 0) and not one.side.is_needed:
            one.stop()

    def _starts_again(self) -> bool:
        """Whether a launcher that has failed is started again, now."""
        if self.has_met or (self.first_dies and 0 not in self._living()):
            return False
        return self.random.random() < STARTS_AGAIN

    def _living(self) -> list[int]:
        return [number for number, one in self.launchers.items() if not one.is_over]

    def _have_all_met(self) -> bool:
        """Whether each rank runs, once, on a host that host 0 has not lost."""
        hosts = [one for one in self.launchers.values() if one.running()]
        running = [rank for one in hosts for rank in one.running()]
        if self.first_dies or sorted(running) != list(range(self.ranks)):
            return False
        first = self.launchers[0].side
        assert isinstance(first, FirstHost)
        return not any(one.carrier.broken for one in hosts) and all(
            one.incarnation in first._placement._hosts for one in hosts
        )

    def _fault(self) -> None:
        living = self._living()
        others = [number for number in living if number > 0]
        if self.first_dies and not self.faults:
            if 0 not in living:
                self.faults.append(TURNS_MAX)
                return
            self.killed += 1
            self.launchers[0].stop()
        elif others and self.random.random() < KILLS:
            self._kill(self.launchers[self.random.choice(others)])
        elif not self.has_met:
            carrier = self.launchers[self.random.choice(living)].carrier if living else None
            if carrier is not None and carrier.connected:
                carrier.broken.add(self.random.choice(sorted(carrier.connected)))

    def _kill(self, one: _Launcher) -> None:
        first = self.launchers.get(0)
        if self.has_met and (first is None or not first.ended):
            return  # what only one knows that dies, nobody learns
        self.killed += 1
        self.killed_late = self.killed_late or self.has_met
        one.stop()
        if not self.has_met:
            self.moved += len(one.ranks)
            one.error = HostLost(one.number, "killed")
