"""BackwardWorld: a random program over several hosts in one process, and its backward.

It runs the real DistEngines, graphs and rules; a seed drives the network and the turns of the
threads, of which one runs at a time. Messages come in any order, some twice; a rule may raise, a
host may die. Every host must get the bits of the same program on one host, or none gets any; and
none may wait for ever.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import mpgrad as mg
from mpgrad.autograd.frozen_graphs.cached_graphs import walk
from mpgrad.autograd.roots import check_roots
from mpgrad.distributed.autograd.crossing import Departure, arriving
from mpgrad.distributed.autograd.local_part import LocalPart
from mpgrad.distributed.carrier.messages import decode_head, encode_head
from mpgrad.distributed.rpc.call_pickles import packed, unpacked
from mpgrad.errors import HostLost
from mpgrad.recording.graph import node
from mpgrad.recording.tensors.tensor import Tensor, gradient_edge
from simulation.turns import TurningEngine, Turns

HOSTS_MAX = 5
CALLS_DEEP_MAX = 4
STEPS_MAX = 5
#: Shares of worlds in FAST mode, with a rule that raises, with a death; of messages that come
#: twice; of worlds where some messages do not tell about the past of their tensors, and of these
#: messages there.
FAST, RAISES, DEATHS, DOUBLED, SECRETIVE, SECRET = 0.3, 0.2, 0.25, 0.1, 0.5, 0.3


class BackwardWorldFailure(AssertionError):
    """A host got something else than it should, or waits for ever."""


class RuleRaised(Exception):
    """What a rule of the program raises."""


class _Host:
    def __init__(self, world: BackwardWorld, rank: int) -> None:
        self.world, self.rank = world, rank
        self.requests: list[Callable[[], None]] = []
        self.threads: list[Turns] = []
        self.is_dead = False
        self.engine = TurningEngine(
            rank, f"rank {rank}", self._tell, self.requests.append, self._begin_thread,
            lambda is_there, _: is_there(),
        )  # fmt: skip

    def _tell(self, to: int, message: Any, frames: Sequence[Any]) -> None:
        self.world.send(self.rank, to, encode_head(message), [bytes(f) for f in frames])

    def _begin_thread(self, function: Callable[[], None]) -> None:
        self.threads.append(Turns(function))


class BackwardWorld:
    """One random program and its backward. ``run`` it; ``seed`` makes it again.

    Args:
        seed: of everything.
        hosts: how many; None: as the seed says. With one it is the program in one process.
        crosses: whether calls bring tensors from host to host; else they are ordinary calls.
    """

    def __init__(self, seed: int, hosts: int | None = None, *, crosses: bool = True) -> None:
        self._crosses = crosses
        self.seed, self.program = seed, random.Random(seed)
        self.network = random.Random(seed + 1)
        #: Calls of rpc_async count from the number that their caller goes on with. So some Nodes
        #: have the same one, and their order is not that of one process: sums may round otherwise.
        self.overlaps, may_overlap = False, self.program.random() < 0.5
        self._async_share = 0.4 if may_overlap else 0.0
        drawn = self.program.randint(2, HOSTS_MAX)
        self.is_fast = self.program.random() < FAST
        self._raises = self.program.random() < RAISES
        dies = self.program.random() < DEATHS
        self._dies_in = self.program.randint(1, 40) if dies else -1
        self.hosts = [_Host(self, rank) for rank in range(hosts or drawn)]
        self._drawn = drawn
        self._secrets = SECRET if self.network.random() < SECRETIVE else 0.0
        #: Whether the root has known all marks without asking for them.
        self.asked_nobody = False
        self.leaves: list[tuple[int, Tensor]] = []
        self._under_way: list[tuple[int, int, bytes, list[bytes]]] = []
        self._numbers = np.random.default_rng(seed)
        #: Whether rules still raise; whether one has.
        self.raising, self.has_raised = False, False
        self.context_id = self.hosts[0].engine.contexts.new().id
        self.dead = -1
        #: The host of each operation, and the order in which their hooks ran.
        self.operations: list[int] = []
        self.hooks: list[int] = []
        #: What the backward gave.
        self.result: list[bytes | None] = []

    # ------------------------------------------------------------------ the program

    def record(self) -> Tensor:
        """Run the program from host 0; its result is the root."""
        node.begin_sequence_at(0)
        values = self._body(0, [], 0)
        result = values[0]
        for value in values[1:]:
            result = result + value
        return (result * result).sum()

    def _leaf(self, host: int) -> Tensor:
        made = mg.tensor(self._numbers.standard_normal(3), requires_grad=True)
        self.leaves.append((host, made))
        return made

    def _hook(self, number: int, grad: Tensor | None) -> None:
        if grad is not None:  # FAST mode runs what gets none, too
            self.hooks.append(number)

    def _body(self, host: int, given: list[Tensor], depth: int) -> list[Tensor]:
        draw = self.program
        values = [*given, self._leaf(host)]
        later: list[tuple[list[Tensor], int]] = []
        for _ in range(draw.randint(1, STEPS_MAX)):
            chance = draw.random()
            if chance < 0.45 and depth < CALLS_DEEP_MAX:
                to = draw.randrange(self._drawn) % len(self.hosts)
                chosen = draw.sample(values, draw.randint(1, len(values)))
                results, number = self._call(host, to, chosen, depth)
                if draw.random() < self._async_share:  # rpc_async
                    later.append((results, number))
                    self.overlaps = True
                else:
                    node.continue_sequence_from(number)
                    values += results
            elif chance < 0.55:
                values.append(self._leaf(host))
            else:
                values.append(self._operation(host, draw.choice(values), draw.choice(values)))
            if later and draw.random() < 0.5:
                results, number = later.pop(0)
                node.continue_sequence_from(number)
                values += results
        for results, number in later:
            node.continue_sequence_from(number)
            values += results
        return draw.sample(values, draw.randint(1, min(3, len(values))))

    def _operation(self, host: int, a: Tensor, b: Tensor) -> Tensor:
        kind = self.program.randrange(4)
        result: Tensor
        if kind == 0:
            result = a * 0.7 + b
        elif kind == 1:
            result = (a * b).sin()
        elif kind == 2:
            result = a.sin() + b
        else:
            result = a - b * 1.3
        # Not of leaves: those that one Node completes are in no order.
        number = len(self.operations)
        self.operations.append(host)
        result.register_hook(lambda grad: self._hook(number, grad))
        if self.program.random() < 0.3:
            result.register_hook(self._maybe_raise)
        return result

    def _maybe_raise(self, grad: Tensor) -> None:
        if self.raising:
            self.has_raised = True
            raise RuleRaised("it raises")

    def _call(
        self, host: int, to: int, values: list[Tensor], depth: int
    ) -> tuple[list[Tensor], int]:
        """The results of a call, and the number from which the caller goes on with them."""
        given = self._carry(host, to, values)
        before = node.upcoming_sequence_nr()
        node.begin_sequence_at(before)
        results = self._body(to, given, depth + 1)
        back = self._carry(to, host, results)
        number = node.upcoming_sequence_nr()
        node.begin_sequence_at(before)
        return back, number

    def _carry(self, host: int, to: int, values: list[Tensor]) -> list[Tensor]:
        if not self._crosses:
            return values
        one, other = self.hosts[host].engine, self.hosts[to].engine
        here = one.contexts.find(self.context_id)
        there = other.contexts.find_or_add(self.context_id)
        assert there is not None
        here.state.span(to)
        there.state.span(host)
        departure = Departure(here, to)
        frames = packed(values, "values", same_main=True, reduce=departure.reduced)
        recorded = departure.record(one.contexts, "a call")
        if self.network.random() >= self._secrets:
            there.learn(host, recorded.upstream)
        with arriving(there, recorded.message, host):
            carried: list[Tensor] = unpacked([memoryview(bytes(frame)) for frame in frames])
        return carried

    # ------------------------------------------------------------------ the network

    def send(self, sender: int, to: int, head: bytes, frames: list[bytes]) -> None:
        """A carrier's ``send``."""
        if self.hosts[sender].is_dead:
            return
        self._under_way.append((sender, to, head, frames))
        if self.network.random() < DOUBLED:
            self._under_way.append((sender, to, head, frames))

    def _deliver(self) -> None:
        at = self.network.randrange(len(self._under_way))
        sender, to, head, frames = self._under_way.pop(at)
        if not self.hosts[to].is_dead:
            message: Any = decode_head(head)
            views = [memoryview(frame) for frame in frames]
            self.hosts[to].engine.handle(sender, message, views)

    def _kill(self) -> None:
        self.dead = self.network.randrange(len(self.hosts))
        dead = self.hosts[self.dead]
        dead.is_dead = True
        for context in dead.engine.contexts.all():
            for part in context.parts.values():
                part.stop()
        for thread in dead.threads:
            while not thread.is_over:
                thread.run_on()
        dead.threads.clear()
        self._under_way = [
            one for one in self._under_way if one[0] != self.dead or self.network.random() < 0.5
        ]
        for host in self.hosts:
            if not host.is_dead:
                host.requests.append(lambda host=host: host.engine.gone(self.dead, "it died"))  # type: ignore[misc]

    # ------------------------------------------------------------------ time

    def backward(self, root: Tensor) -> None:
        """One backward from host 0, until nothing happens any more.

        Raises:
            BackwardWorldFailure: it does not end.
            Exception: what ``backward()`` raises.
        """
        host, has_begun = self.hosts[0], False
        context = host.engine.contexts.find(self.context_id)
        edges, seeds = check_roots([root], [None])
        self.asked_nobody = context.marks(edges) is not None
        part = host.engine.begin(
            context, edges, seeds, None, keep_graph=True, is_smart=not self.is_fast
        )
        while True:
            if part.may_run.is_set() and not has_begun and not part.has_ended.is_set():
                has_begun = True
                host.threads.append(Turns(lambda: host.engine.run_part(part)))
            had_ended = part.has_ended.is_set()
            if not self._step():
                break
            if part.has_ended.is_set() and not had_ended:
                self._check_end(part)
        if not part.has_ended.is_set() and not host.is_dead:
            raise BackwardWorldFailure("backward() waits for ever")
        waiting = [h.rank for h in self.hosts if h.threads and not h.is_dead]
        if waiting:
            raise BackwardWorldFailure(f"the parts of ranks {waiting} wait for ever")
        if not host.is_dead:
            host.engine.raise_error_of(part)

    def _check_end(self, part: LocalPart) -> None:
        """At this moment ``backward()`` may raise."""
        error = part.errors.get(part.end.failed)
        is_known = self.hosts[0].engine.contexts.known(self.context_id) is not None
        if isinstance(error, HostLost) and is_known and not self.hosts[0].is_dead:
            raise BackwardWorldFailure(f"{error!r}, and the context is still there")

    def _step(self) -> bool:
        """Do something; False: there is nothing to do."""
        if self._dies_in > 0:
            self._dies_in -= 1
            if self._dies_in == 0 and not self.raising:
                self._kill()
        todo = list(self._possible())
        if not todo:
            todo = list(self._impatience())
        if not todo:
            return False
        self.network.choice(todo)()
        return True

    def _possible(self) -> Iterator[Callable[[], None]]:
        if self._under_way:
            yield self._deliver
        for host in self.hosts:
            if host.is_dead:
                continue
            host.threads = [thread for thread in host.threads if not thread.is_over]
            if host.requests:
                yield lambda host=host: host.requests.pop(0)()  # type: ignore[misc]
            for thread in host.threads:
                if thread.is_ready():
                    yield thread.run_on

    def _impatience(self) -> Iterator[Callable[[], None]]:
        for host in self.hosts:
            for context in host.engine.contexts.all() if not host.is_dead else ():
                for part in context.parts.values():
                    if part.awaited >= 0:
                        yield lambda part=part, host=host: self._tell_wait(host, part)  # type: ignore[misc]

    def _tell_wait(self, host: _Host, part: Any) -> None:
        message, part.awaited = part.awaited, -1
        host.engine.wait(part, message)

    # ------------------------------------------------------------------ verdicts

    def gradients(self) -> list[bytes | None]:
        """The bits of each leaf's gradient, in the context on its host."""
        found = []
        for rank, leaf in self.leaves:
            host = self.hosts[rank]
            context = None if host.is_dead else host.engine.contexts.known(self.context_id)
            grads = {} if context is None else context.gradients()
            found.append(grads[leaf].numpy().tobytes() if leaf in grads else None)
        return found

    def run(self) -> BackwardWorld:
        """Record, run the backward, and look at what every host has got.

        Raises:
            BackwardWorldFailure: it should have been something else.
        """
        with mg.Engine("local", cpu_workers=1, shm_limit="1MB"):
            root = self.record()
            self.raising = self._raises
            error = self._error_of(root)
            if self.has_raised:
                self._check_failure(error)
                self.raising = False
                self.hooks.clear()
                error = self._error_of(root)
            self._check(root, error)
            self._leave()
        return self

    def _error_of(self, root: Tensor) -> Exception | None:
        try:
            self.backward(root)
        except (RuntimeError, RuleRaised) as error:
            return error
        return None

    def _check_failure(self, error: Exception | None) -> None:
        if error is None or not str(error).endswith("it raises"):
            raise BackwardWorldFailure(f"a rule has raised, and backward() {error!r}")
        if any(self.gradients()):
            raise BackwardWorldFailure("gradients of a backward that failed") from error

    def _check(self, root: Tensor, error: Exception | None) -> None:
        found = self.result = self.gradients()
        if error is not None and any(found):
            raise BackwardWorldFailure(f"gradients of a backward that failed: {error!r}")
        if self.dead >= 0:
            lost = isinstance(error, HostLost) and error.rank == self.dead
            if error is not None and not lost and not self.is_fast:
                raise BackwardWorldFailure(f"rank {self.dead} has died: {error!r}")
        elif error is not None:
            is_stuck = "and nobody will send them" in str(error)
            if not (is_stuck and self.is_fast and self._has_unused(root)):
                raise BackwardWorldFailure(f"{error!r}") from error
        elif len(self.hosts) > 1:
            self._compare_with_grad()
            if not self.overlaps:
                self._compare_with(self._alone())

    def _has_unused(self, root: Tensor) -> bool:
        """Whether something that was sent has no part in the graph: FAST mode waits for it."""
        for host in self.hosts:
            context = host.engine.contexts.known(self.context_id)
            if context is None:
                continue
            begins = [gradient_edge(root)] if host.rank == 0 else []
            for send in context.sends().values():
                begins += [edge for edge in send.next_edges if edge is not None]
            reached = set(walk(begins).nodes)
            if any(recv not in reached for recv in context._recv_functions().values()):
                return True
        return False

    def _alone(self) -> BackwardWorld:
        """The same program with all ranks in one process."""
        alone = BackwardWorld(self.seed, 1)
        alone.is_fast = alone._raises = False
        alone._dies_in = -1
        return alone.run()

    def _compare_with(self, alone: BackwardWorld) -> None:
        if self.result != alone.result:
            raise BackwardWorldFailure("other bits than in one process")
        for rank in range(len(self.hosts)):
            if self._hooks_at(rank, self.hooks) != self._hooks_at(rank, alone.hooks):
                raise BackwardWorldFailure(f"hooks ran in another order at rank {rank}")

    def _hooks_at(self, rank: int, hooks: Sequence[int]) -> list[int]:
        return [number for number in hooks if self.operations[number] == rank]

    def _compare_with_grad(self) -> None:
        plain = BackwardWorld(self.seed, 1, crosses=False)
        root = plain.record()
        leaves = [leaf for _, leaf in plain.leaves]
        expected = mg.autograd.grad(root, leaves, allow_unused=True)
        for bits, gradient in zip(self.gradients(), expected, strict=True):
            if (bits is None) != (gradient is None):
                raise BackwardWorldFailure("other leaves have gradients than without hosts")
            if gradient is None or bits is None:
                continue
            if not np.allclose(np.frombuffer(bits), gradient, 1e-9):
                raise BackwardWorldFailure("other gradients than without hosts")

    def _leave(self) -> None:
        """Leave the context: no host may keep it."""
        if self.hosts[0].is_dead:
            return
        self.hosts[0].engine.release(self.context_id)
        while self._step():
            pass
        kept = [h.rank for h in self.hosts if not h.is_dead and h.engine.contexts.all()]
        if kept:
            raise BackwardWorldFailure(f"ranks {kept} keep a context that was left")
