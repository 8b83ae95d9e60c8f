"""World: the whole engine in one process: coordinator, workers, sessions, one seed.

The loops of the coordinator and of the workers, the supervisor, the watchdogs, the sessions, the
cores, the planner, the codec and the free list are the real ones. Time, delivery order and faults
are drawn from the seed. Memory and gradients are simulated in a way that shows every misuse. The
same seed gives the same log, in any process and under any hash seed.

    python -m simulation --seeds 0:1000
"""

from __future__ import annotations

from collections import defaultdict, deque
from functools import partial
from random import Random
from typing import Any

from mpgrad.base.handles import Block
from mpgrad.scheduler.graph_spec import ON_CPU
from mpgrad.scheduler.invariants import check_invariants
from simulation.branches import Branches, random_map
from simulation.caller import Caller
from simulation.coordinator_process import CoordinatorProcess, Refused, status_board
from simulation.coordinator_statistics import statistics_of
from simulation.expectations import Expectations, require
from simulation.faults import ALL_FAULTS, FaultDice, Faults
from simulation.flips import Flips
from simulation.knobs import Knobs
from simulation.known_coordinator import KnownCoordinator
from simulation.path_counts import Content, TracedGraph
from simulation.random_graphs import random_graph
from simulation.silence import Silence
from simulation.simulated_memory import MemoryFault, SimulatedMemory
from simulation.task_history import TaskHistory
from simulation.transport import MemoryDealer, MemoryEndpoint, MemoryRouter
from simulation.virtual_time import SlowLane, VirtualTime

#: A World that has not ended after this many steps never ends.
STEPS_MAX = 100_000
HISTORY_LINES = 40
#: The number of times that all workers may be killed at once in one World.
KILLS_OF_ALL_MAX = 4
#: One World in this many has more workers than may die in a row in one slot.
MANY_WORKERS, MANY_EVERY = 24, 50
#: GPU worker slots, by seed.
GPUS = (0, 0, 1, 2, 3)
AMPLE_BYTES, SMALL_BYTES = 1 << 30, (50_000, 120_000, 400_000)


class WorldFailure(AssertionError):
    """A World failed: the seed, its options, its last events, and the command to repeat it."""


class World:
    """One simulated engine, from its first Hello to its last message.

    Args:
        seed: the source of all choices.
        workers: CPU worker slots.
        gpus: GPU worker slots after those; two of them share the first GPU.
        graphs: the number of backwards, divided among the sessions.
        sessions: the number of calling threads, divided among the clients.
        clients: the number of client processes.
        branches: whether (1) callers also call functions forward.
        faults: the possible faults and their probabilities.
        knobs: unusual tuning numbers and limits.
    """

    def __init__(
        self,
        seed: int,
        *,
        workers: int = 2,
        gpus: int = 0,
        graphs: int = 1,
        sessions: int = 1,
        clients: int = 1,
        branches: int = 0,
        faults: Faults = ALL_FAULTS,
        knobs: Knobs | None = None,
    ) -> None:
        self.knobs = knobs or Knobs()
        self.options = {
            "workers": workers,
            "gpus": gpus,
            "graphs": graphs,
            "sessions": sessions,
            "clients": clients,
            "branches": branches,
        }
        self.seed, self.faults, self.rng = seed, faults, Random(seed)
        self.time = VirtualTime(self.rng)
        self.dice = FaultDice(faults, self.rng)
        self.log = TaskHistory()
        self.memory = SimulatedMemory(AMPLE_BYTES)
        self.expected = Expectations()
        self.branches = Branches(self, is_used=bool(branches))
        lane = partial(SlowLane, self.time)
        self.router = MemoryRouter(lane)
        self.endpoint = MemoryEndpoint("simulated", b"")
        self.endpoint.make_dealer = self._make_dealer
        self.silence, self.flips = Silence(self), Flips(self)
        self.known_coordinator = KnownCoordinator(self.endpoint, self.silence)
        self.board = status_board()
        self.coordinator = CoordinatorProcess(self)
        #: The number of client processes so far: each gets its own number.
        self._processes = clients
        #: By client process: branches that have ended, which any of its sessions tells.
        self.ended_branches = defaultdict[int, deque[tuple[int, int]]](deque)
        self.clients = self._make_clients()

    @classmethod
    def drawn(cls, seed: int, **chosen: int | None) -> World:
        """A World whose options come from its seed, except the ``chosen`` ones."""
        drawn: dict[str, Any] = {
            "workers": MANY_WORKERS if seed % MANY_EVERY == 0 else 1 + seed % 4,
            "gpus": GPUS[seed % len(GPUS)],
            "graphs": 1 + seed // 4 % 3,
            "sessions": 1 + seed // 12 % 3,
            "clients": 1 + seed // 36 % 2,
            "branches": int(seed // 72 % 3 == 1),
        }
        drawn.update((name, number) for name, number in chosen.items() if number is not None)
        return cls(seed, knobs=Knobs.drawn(seed), **drawn)

    def _make_clients(self) -> dict[str, Caller]:
        sessions = self.options["sessions"]
        shares: list[list[TracedGraph]] = [[] for _ in range(sessions)]
        for number in range(self.options["graphs"]):
            raising = self.dice.strikes("raise_rule")
            graph = random_graph(self.rng, raising=raising, devices=self._devices())
            while self.options["branches"] and self.branches.rng.random() < 0.6:
                shares[number % sessions].append(random_map(self.branches.rng))
            shares[number % sessions].append(graph)
        made = [
            Caller(self, 1 + number % self.options["clients"], number, share)
            for number, share in enumerate(shares)
            if share
        ]
        return {client.peer: client for client in made}

    def device_of(self, slot: int) -> int:
        """The GPU of a worker slot: none, then the first one twice, then the second."""
        return ON_CPU if slot < self.options["workers"] else (slot - self.options["workers"]) // 2

    def _make_dealer(self, peer: str, lanes: tuple[str, ...]) -> MemoryDealer:
        """The connection of a process of this World."""
        process = self.clients.get(peer) or self.coordinator.workers[peer]
        return process.dealer_for(lanes)

    def _devices(self) -> list[int]:
        slots = range(self.options["workers"], self.options["workers"] + self.options["gpus"])
        return list(dict.fromkeys(self.device_of(slot) for slot in slots))

    # ------------------------------------------------------------------ running it

    def run(self) -> World:
        """Run until nothing is left to do.

        Raises:
            WorldFailure: an expectation was violated.
        """
        with self.knobs.in_force():
            return self._run()

    def _run(self) -> World:
        try:
            self._begin()
            steps = 0
            while self.time.step():
                steps += 1
                require(steps < STEPS_MAX, f"no end after {steps} steps: a livelock")
            self.coordinator.let_all_go()
            while self.time.step():
                pass
            self._check_end()
            if not self.silence.is_final:
                self.coordinator.close()
        except Refused as refused:
            error = refused.__cause__ or refused
            raise WorldFailure(self._explain(error)) from error
        except Exception as error:
            raise WorldFailure(self._explain(error)) from error
        finally:
            for client in self.clients.values():
                client.end()
        return self

    def _begin(self) -> None:
        rng, dice, time = self.rng, self.dice, self.time
        if dice.strikes("small_arena"):
            self.expected.is_memory_short = True
            self.memory.limit_bytes = rng.choice(SMALL_BYTES)
            if rng.random() < 0.5:
                time.after(rng.randint(0, 20_000), self._enlarge_arena)
        if dice.strikes("arena_fills"):
            time.after(rng.randint(0, 16_000), self._fill_arena)
        self.silence.plan()
        self.coordinator.begin()
        for slot in range(self.options["workers"] + self.options["gpus"]):
            if dice.strikes("kill"):
                time.after(rng.randint(0, 16_000), self.coordinator.kill, slot)
        if dice.strikes("kill_all"):
            for _ in range(rng.randint(1, KILLS_OF_ALL_MAX)):
                time.after(rng.randint(0, 16_000), self.coordinator.kill, None)
        for client in self.clients.values():
            client.start()
        for process in range(1, 1 + self._processes):
            if dice.strikes("vanish"):
                time.after(rng.randint(0, 12_000), self.kill_client, process)

    def _fill_arena(self) -> None:
        """Another program takes the memory, all of it or nearly, for a while."""
        self.expected.is_memory_short = True
        used = self.memory.free_list.used_bytes
        self.memory.limit_bytes = used + self.rng.choice((0, *SMALL_BYTES))
        self.time.after(self.rng.randint(100, 10_000), self._enlarge_arena)

    def _enlarge_arena(self) -> None:
        self.memory.limit_bytes = AMPLE_BYTES

    def kill_client(self, process: int) -> None:
        """A client process dies with all its threads; perhaps another one begins again."""
        died = [c for c in self.clients.values() if c.process == process and c.is_alive]
        for client in died:
            client.vanish()
        if died and self.dice.strikes("rejoin"):
            self._processes += 1
            for number, client in enumerate(died):
                again = Caller(self, self._processes, number, client.graphs)
                self.clients[again.peer] = again
                self.time.after(self.rng.randint(0, 3000), again.start)

    # ------------------------------------------------------------------ checks

    def check_unchanged(self, who: str, block: Block, content: Content) -> None:
        """Check that the content of a view has not changed."""
        if not self.memory.is_damaged(block) and self.memory.read(block) != content:
            raise MemoryFault(f"{who} looks at {block}, and its content has changed")

    def _check_end(self) -> None:
        """Check that every caller has ended, and that no graph, flight or block is left."""
        for client in self.clients.values():
            require(not client.is_alive, f"deadlock: {client.peer} waits for {client.running()}")
        if self.silence.is_final:
            return
        core = self.coordinator.core
        left = statistics_of(core)
        require(
            left._replace(workers=0) == (0,) * len(left), f"something is left at the end: {left}"
        )
        check_invariants(core)
        self.branches.check_end()
        self.memory.free_list.check()
        require(self.memory.free_list.used_bytes == 0, "blocks are live at the end")
        on_gpus = self.memory.device_blocks()
        require(on_gpus == 0, f"{on_gpus} blocks are left on GPUs")

    # ------------------------------------------------------------------ the log

    def note(self, who: str, *what: Any) -> None:
        self.log.note(self.time.now, who, *what)

    def _explain(self, error: BaseException) -> str:
        injected = ", ".join(f"{kind} {n}" for kind, n in sorted(self.dice.injected.items()))
        options = "".join(f", {name}={value}" for name, value in self.options.items())
        if self.faults != ALL_FAULTS:
            options += f", faults={self.faults}"
            again = f'python -c "from simulation import *; World({self.seed}{options}).run()"'
        else:
            again = f"python -m simulation --seeds {self.seed}:{self.seed + 1}"
            again += "".join(f" --{name} {value}" for name, value in self.options.items())
        return "\n".join(
            [
                f"{type(error).__name__}: {error}",
                f"World({self.seed}{options}); faults so far: {injected or 'none'}; "
                f"knobs: {self.knobs}",
                *self.log.lines(last=HISTORY_LINES),
                f"again: {again}",
            ]
        )
