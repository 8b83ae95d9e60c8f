"""GraphProgram: a graph over the processes of a RejoinWorld, and its backward, while some die.

The numbers are small integers, so the gradients are exact whatever is added first. All processes
get theirs, or the graph is over: with the loss of a process that has done what cannot be done
again.
"""

from __future__ import annotations

from typing import Any

import mpgrad as mg
from mpgrad.distributed.autograd.contexts import recording_in
from mpgrad.distributed.autograd.dist_backward import backward
from mpgrad.distributed.rpc.current_service import current
from mpgrad.errors import HostLost
from mpgrad.recording.tensors.tensor import Tensor

CALLS_MAX = 4
#: Shares of calls that may be repeated, that call on, and that are waited for later; of graphs with
#: the mode FAST, with two backwards, and with backwards that another process runs.
REPEATS, NESTED, LATER, FAST, TWICE, ELSEWHERE = 0.85, 0.1, 0.3, 0.3, 0.15, 0.15


def weight_of(rank: int) -> Tensor:
    """The parameter of each process of a rank."""
    return mg.tensor([rank + 2.0], requires_grad=True)


def scaled(x: Tensor, via: int, repeats: bool) -> Tensor:
    """The parameter of this process times ``x``, perhaps passed on to another one."""
    here: Any = current.service
    result: Tensor = x * here.weight
    if via < 0:
        return result
    future = here.calls.make(via, scaled, (result, -1, False), {}, 0, repeats=repeats)
    here.thread.wait_until(future.done)
    passed_on: Tensor = future.wait()
    return passed_on


def run_backward(context_id: int, total: Tensor, keep: bool, mode: str) -> None:
    """A backward of what another process has recorded."""
    backward(context_id, [total], keep, mode=mode)


class GraphProgram:
    """One graph of one process. ``run`` it on a thread that takes turns.

    Args:
        world: the RejoinWorld.
        process: that opens the context.
    """

    def __init__(self, world: Any, process: Any) -> None:
        self._world, self._process, self._here = world, process, process.service
        #: What is not as it should be.
        self.failure = ""
        #: The ranks whose deaths end the graph, and all that it may span.
        self._risky: set[int] = set()
        self._spanned: set[int] = set()

    def run(self) -> None:
        world, context = self._world, self._here.autograd.contexts.new()
        died_before, passes = len(world.died), 1 + (world.random.random() < TWICE)
        x, plain = weight_of(-1), [weight_of(rank) for rank in range(-1, world.ranks)]
        try:
            with recording_in(context):
                mode = "fast" if world.random.random() < FAST else "smart"
                total, plain_total = self._forward(x, plain, uses_all=mode == "fast")
                root = self._process.rank
                if world.random.random() < ELSEWHERE:
                    # Once: FAST would wait for what was sent for the other backward.
                    root, passes = world.random.randrange(world.ranks), 1
                    self._risky |= self._spanned | {root}
                for left in reversed(range(passes)):
                    self._backward(root, (context.id, total, left > 0, mode))
                found = self._here.autograd.contexts.find(context.id).gradients()
        except HostLost as error:
            world.over += 1
            can_end = error.rank in self._risky or context.state.has_counted
            if error.rank not in world.died or not can_end:
                self.failure = f"{error!r}; it may end with {self._risky}"
        except (RuntimeError, AssertionError) as error:
            self.failure = repr(error)
        else:
            world.graphs += 1
            world.saved += bool(self._spanned & {*world.died[died_before:]})
            expected = mg.autograd.grad(plain_total, plain, allow_unused=True)
            self._check(
                context.id, found.get(x), [None if e is None else e * passes for e in expected]
            )
        self._here.autograd.release(context.id)

    def _forward(
        self, x: Tensor, weights: list[Tensor], *, uses_all: bool
    ) -> tuple[Tensor, Tensor]:
        """The sum of what calls give, and the same without them."""
        chance, here, ranks = self._world.random, self._here, self._world.ranks
        values, later = [(x, weights[0])], list[tuple[Any, Tensor]]()
        for _ in range(chance.randint(1, CALLS_MAX)):
            to, repeats = chance.randrange(ranks), chance.random() < REPEATS
            via = chance.randrange(ranks) if chance.random() < NESTED else -1
            given, plain = chance.choice(values)
            self._spanned |= {to}
            if via >= 0:
                self._risky |= {to, via}
            elif not repeats:
                self._risky |= {to}
            args = given, via, chance.random() < REPEATS
            future = here.calls.make(to, scaled, args, {}, 0, repeats=repeats)
            plain = plain * weights[1 + to] * (weights[1 + via] if via >= 0 else 1.0)
            if chance.random() < LATER:
                later.append((future, plain))
            else:
                values.append((self._wait(future), plain))
        values += [(self._wait(future), plain) for future, plain in later]
        if not uses_all and chance.random() < 0.5:
            values = values[-1:]
        total, plain = values[0]
        for value, other in values[1:]:
            total, plain = total + value, plain + other
        return total, plain

    def _backward(self, root: int, args: tuple[int, Tensor, bool, str]) -> None:
        if root == self._process.rank:
            run_backward(*args)
        else:
            self._here.autograd.contexts.find(args[0])
            self._wait(self._here.calls.make(root, run_backward, args, {}, 0))

    def _wait(self, future: Any) -> Any:
        self._here.thread.wait_until(future.done)
        return future.wait()

    def _check(self, context_id: int, own: Tensor | None, expected: list[Tensor | None]) -> None:
        """All processes have their gradients, but after a death since then."""
        if not _is_equal(own, expected[0]):
            self.failure = f"x got {own}, not {expected[0]}"
        for process, gradient in zip(self._world.processes, expected[1:], strict=True):
            if process.service is None:
                continue
            contexts = process.service.autograd.contexts
            known, loss = contexts.known(context_id), contexts.loss(context_id)
            if known is None and (process.number > 0 or (loss and loss[0] in self._world.died)):
                continue
            found = None if known is None else known.gradients().get(process.weight)
            if not _is_equal(found, gradient):
                self.failure = f"rank {process.rank} got {found}, not {gradient}"


def _is_equal(found: Tensor | None, expected: Tensor | None) -> bool:
    if found is None or expected is None:
        return found is expected
    return bool((found == expected).all())
