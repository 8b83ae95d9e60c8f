"""World: the whole protocol in one process: coordinator, workers, sessions, one seed.

The cores, the planner, the codec and the free list are the real ones. Time, delivery order and
faults are drawn from the seed; memory and gradients are simulated so that every misuse shows. The
same seed gives the same log, in any process and under any hash seed.

    python -m mpgrad.testing.world --seeds 0:1000
"""

from __future__ import annotations

import argparse
import sys
import time as wall_clock
from collections import Counter
from random import Random
from typing import Any

from mpgrad.errors import ProtocolError
from mpgrad.handles import ENGINE_ARENA, Block
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.scheduler.coordinator_state import CoordinatorState
from mpgrad.scheduler.invariants import check_invariants
from mpgrad.scheduler.statistics import statistics_of
from mpgrad.testing.expectations import Expectations, require
from mpgrad.testing.faults import ALL_FAULTS, FaultDice, Faults
from mpgrad.testing.faults import DEATHS_MAX as WORLD_DEATHS_MAX
from mpgrad.testing.path_counts import Content, TracedGraph
from mpgrad.testing.random_graphs import random_graph
from mpgrad.testing.simulated_client import SimulatedClient
from mpgrad.testing.simulated_memory import MemoryFault, SimulatedMemory
from mpgrad.testing.simulated_worker import SimulatedWorker
from mpgrad.testing.story import Story
from mpgrad.testing.virtual_time import VirtualTime
from mpgrad.wire.codec import decode, encode
from mpgrad.wire.schema import FROM_CLIENT, FROM_WORKER, EndSession, Hello

#: A World that is not over after this many steps never will be.
STEPS_MAX = 100_000
STORY_LINES = 40
AMPLE_BYTES, SMALL_BYTES = 1 << 30, (50_000, 120_000, 400_000)


class WorldFailure(AssertionError):
    """A World went wrong: the seed, its options, its last events and how to see it again."""


class World:
    """One simulated engine, from its first Hello to its last message.

    Args:
        seed: decides everything.
        workers: worker slots.
        graphs: backwards, dealt out to the sessions.
        sessions: calling threads.
        faults: what may go wrong, and how often.
    """

    def __init__(
        self,
        seed: int,
        *,
        workers: int = 2,
        graphs: int = 1,
        sessions: int = 1,
        faults: Faults = ALL_FAULTS,
    ) -> None:
        self.options = {"workers": workers, "graphs": graphs, "sessions": sessions}
        self.seed, self.faults, self.rng = seed, faults, Random(seed)
        self.time = VirtualTime(self.rng)
        self.dice = FaultDice(faults, self.rng)
        self.log = Story()
        self.memory = SimulatedMemory(AMPLE_BYTES)
        self.core = CoordinatorState(self.memory)
        self.expected = Expectations()
        #: Workers that have sent a reply which the coordinator must refuse.
        self.forgers: set[str] = set()
        self._workers: dict[str, SimulatedWorker] = {}
        self._incarnations: Counter[int] = Counter()
        self._dead: set[str] = set()
        self._deaths = 0
        self._clients = self._make_clients(sessions, graphs)

    @classmethod
    def drawn(cls, seed: int, **chosen: int | None) -> World:
        """A World whose options come from its seed, too, except the ``chosen`` ones."""
        drawn: dict[str, Any] = {
            "workers": 1 + seed % 4,
            "graphs": 1 + seed // 4 % 3,
            "sessions": 1 + seed // 12 % 2,
        }
        drawn.update((name, number) for name, number in chosen.items() if number is not None)
        return cls(seed, **drawn)

    def _make_clients(self, sessions: int, graphs: int) -> dict[str, SimulatedClient]:
        shares: list[list[TracedGraph]] = [[] for _ in range(sessions)]
        for number in range(graphs):
            raising = self.dice.strikes("raise_rule")
            shares[number % sessions].append(random_graph(self.rng, raising=raising))
        peers = [f"c1.{number}" for number in range(sessions)]
        return {
            peer: SimulatedClient(self, peer, share)
            for peer, share in zip(peers, shares, strict=True)
            if share
        }

    # ------------------------------------------------------------------ running it

    def run(self) -> World:
        """Run until nothing is left to do.

        Raises:
            WorldFailure: anything at all was not as it must be.
        """
        try:
            self._begin()
            steps = 0
            while self.time.step():
                steps += 1
                require(steps < STEPS_MAX, f"no end after {steps} steps: a livelock")
            self._check_end()
            for worker in [w for w in self._workers.values() if w.is_alive]:
                worker.control.send(encode(do.ShutDown(worker.peer)))
            while self.time.step():
                pass
            require(
                not any(worker.is_alive for worker in self._workers.values()),
                "a worker did not stop when it was told to",
            )
        except Exception as error:
            raise WorldFailure(self._explain(error)) from error
        return self

    def _begin(self) -> None:
        rng = self.rng
        if self.dice.strikes("small_arena"):
            self.expected.is_memory_short = True
            self.memory.limit_bytes = rng.choice(SMALL_BYTES)
            if rng.random() < 0.5:
                self.time.after(rng.randint(0, 10_000), self._enlarge_arena)
        for slot in range(self.options["workers"]):
            self._start_worker(slot)
            if self.dice.strikes("kill"):
                self.time.after(rng.randint(0, 8_000), self._kill, slot)
        for client in self._clients.values():
            client.start()

    def _enlarge_arena(self) -> None:
        self.memory.limit_bytes = AMPLE_BYTES

    def _kill(self, slot: int) -> None:
        """SIGKILL from outside, whatever the worker is doing."""
        for worker in list(self._workers.values()):
            if self.may_die() and worker.peer.startswith(f"w{slot}."):
                worker.die("was killed from outside", killed=True)

    # ------------------------------------------------------------------ the coordinator's shell

    def on_worker_frame(self, peer: str, frame: bytes) -> None:
        message = decode(frame, FROM_WORKER)
        if isinstance(message, Hello):
            if peer not in self._dead:
                self._tell(ev.WorkerJoined(peer))
        else:
            self._tell(message)

    def on_client_frame(self, peer: str, frame: bytes) -> None:
        message = decode(frame, FROM_CLIENT)
        if isinstance(message, Hello):
            if peer not in self._dead:
                self._tell(ev.SessionOpened(peer))
        elif isinstance(message, EndSession):
            self.on_client_gone(peer)
        else:
            self._tell(message)

    def on_client_gone(self, peer: str) -> None:
        self._dead.add(peer)
        self._tell(ev.SessionClosed(peer))

    def _tell(self, event: Any) -> None:
        """One event into the core, its tables recounted, its instructions performed."""
        self.note("->", event)
        try:
            instructions = self.core.handle_event(event)
        except ProtocolError as error:
            if event.peer not in self.forgers:
                raise
            self.note("shell", f"fences {event.peer}: {error}")
            self._workers[event.peer].die("broke the protocol", killed=True)
            instructions = []
        check_invariants(self.core)
        if len(self.log) % 16 == 0:
            self.memory.free_list.check()
        for instruction in instructions:
            self.note("  ", instruction)
            self._perform(instruction)

    def _perform(self, instruction: do.CoordinatorInstruction) -> None:
        if isinstance(instruction, do.StartWorker):
            self.time.after(self.rng.randint(50, 3000), self._start_worker, instruction.slot)
        elif instruction.peer in self._clients:
            if isinstance(instruction, do.CompleteGraph | do.FailGraph):
                self._check_ending(instruction)
            self._clients[instruction.peer].lane.send(encode(instruction))
        elif isinstance(instruction, do.DispatchNodeTask):
            worker = self._workers[instruction.peer]
            (worker.urgent if instruction.depth else worker.tasks).send(encode(instruction))
        else:
            self._workers[instruction.peer].control.send(encode(instruction))

    def _start_worker(self, slot: int) -> None:
        if self.expected.has_given_up or self.dice.strikes("unavailable"):
            self.expected.has_given_up = True
            self._tell(ev.WorkerUnavailable("no more processes"))
            return
        self._incarnations[slot] += 1
        peer = f"w{slot}.{self._incarnations[slot]}"
        worker = self._workers[peer] = SimulatedWorker(self, peer)
        if self.may_die() and self.dice.strikes("die_at_start"):
            self.time.after(100, self._die_at_start, worker)
        else:
            self.time.after(self.rng.randint(100, 1000), worker.start)

    def _die_at_start(self, worker: SimulatedWorker) -> None:
        worker.die("died at start", killed=False)

    def on_worker_death(
        self, worker: SimulatedWorker, event: ev.WorkerLost, running: do.DispatchNodeTask | None
    ) -> None:
        """The kernel knows at once, the shell a little later."""
        self.note(worker.peer, event.cause)
        self._deaths += 1
        self.time.after(self.time.hand_over_us(), self._bury, worker, event, running)

    def _bury(
        self, worker: SimulatedWorker, event: ev.WorkerLost, running: do.DispatchNodeTask | None
    ) -> None:
        self._dead.add(worker.peer)
        if self.core.membership.get(worker.peer) is None:
            # It was never ready: starting its slot again is the shell's business.
            slot = int(worker.peer[1:].partition(".")[0])
            self.time.after(self.rng.randint(50, 3000), self._start_worker, slot)
            return
        self.expected.on_death(event, running)
        self._tell(event)

    # ------------------------------------------------------------------ what the peers ask

    def may_die(self) -> bool:
        """Whether one more death stays below what the core takes for a hopeless case."""
        return self._deaths < WORLD_DEATHS_MAX

    def foreign_block(self, dispatch: do.DispatchNodeTask) -> Block:
        """A block that a task has nothing to do with."""
        own = {*dispatch.blocks, *(ref for slot in dispatch.inputs for ref in slot)}
        others = [block for block in self.core.leases.counts() if block not in own]
        return self.rng.choice(others) if others else Block(ENGINE_ARENA, 64, 64, 1 << 40)

    def check_unchanged(self, who: str, block: Block, content: Content) -> None:
        """What a view shows is what it showed when it was made."""
        if self.memory.read(block) != content:
            raise MemoryFault(f"{who} looks at {block}, and its content has changed")

    # ------------------------------------------------------------------ checks

    def _check_ending(self, end: do.CompleteGraph | do.FailGraph) -> None:
        """When a graph ends, nothing of it is anywhere any more."""
        self.expected.check_ending(end)
        program = self.expected.number_of(end.peer, end.graph)
        for worker in self._workers.values():
            require(
                not (worker.is_alive and worker.holds(program)),
                f"graph {end.graph} of {end.peer} ends, but {worker.peer} still holds tasks of it",
            )

    def _check_end(self) -> None:
        """Nothing is left: no graph, no flight, no block; and every graph has ended."""
        for client in self._clients.values():
            require(not client.is_alive, f"deadlock: {client.peer} waits for {client.core.running}")
        left = statistics_of(self.core)
        require(
            left._replace(workers=0) == (0,) * len(left), f"something is left at the end: {left}"
        )
        check_invariants(self.core)
        self.memory.free_list.check()
        require(self.memory.free_list.used_bytes == 0, "blocks are live at the end")

    # ------------------------------------------------------------------ the log

    def note(self, who: str, *what: Any) -> None:
        self.log.note(self.time.now, who, *what)

    def _explain(self, error: Exception) -> str:
        injected = ", ".join(f"{kind} {n}" for kind, n in sorted(self.dice.injected.items()))
        options = "".join(f", {name}={value}" for name, value in self.options.items())
        if self.faults != ALL_FAULTS:
            options += f", faults={self.faults}"
            again = f'python -c "from mpgrad.testing import *; World({self.seed}{options}).run()"'
        else:
            again = f"python -m mpgrad.testing.world --seeds {self.seed}:{self.seed + 1}"
            again += "".join(f" --{name} {value}" for name, value in self.options.items())
        return "\n".join(
            [
                f"{type(error).__name__}: {error}",
                f"World({self.seed}{options}); faults so far: {injected or 'none'}",
                *self.log.lines(last=STORY_LINES),
                f"again: {again}",
            ]
        )


def main(arguments: list[str] | None = None) -> int:
    """Run many Worlds; report what was injected and how fast it went."""
    parser = argparse.ArgumentParser(prog="python -m mpgrad.testing.world", description=__doc__)
    parser.add_argument("--seeds", default="0:1000", metavar="A:B", help="seeds A to B - 1")
    parser.add_argument("--log", action="store_true", help="print each World's log and digest")
    for option in ("workers", "graphs", "sessions"):
        parser.add_argument(f"--{option}", type=int, help="instead of a number drawn from the seed")
    chosen = vars(parser.parse_args(arguments))
    first, last = (int(part) for part in chosen.pop("seeds").split(":"))
    show_log = chosen.pop("log")
    injected: Counter[str] = Counter()
    graphs = events = 0
    start = wall_clock.perf_counter()
    for seed in range(first, last):
        try:
            world = World.drawn(seed, **chosen).run()
        except WorldFailure as failure:
            print(failure)
            return 1
        injected.update(world.dice.injected)
        graphs += world.options["graphs"]
        events += len(world.log)
        if show_log:
            print(*world.log.lines(), world.log.digest(), sep="\n")
    seconds = wall_clock.perf_counter() - start
    print(f"{last - first} worlds, {graphs} graphs, {events} events: all as they must be")
    for kind, count in sorted(injected.items()):
        print(f"  {kind:<20} {count:>7}")
    print(f"{seconds:.2f} s, {graphs / seconds:.0f} graphs a second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
