"""One rank of ``scripts/stress hosts``: trains, calls and differentiates, until it is told to end.

Each round checks all bits against what this process computes alone. A line says ``ready PID`` after
the first one. When a rank is lost, a line says ``lost RANK ROUNDS`` and the error; then this rank
leaves the others, and meets those that are left and the one that was started again.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from types import FrameType

import numpy as np

import mpgrad as mg
import mpgrad.distributed as dist
import mpgrad.distributed.autograd as dist_autograd
import mpgrad.distributed.rpc as rpc
from mpgrad import nn
from mpgrad.errors import HostLost
from mpgrad.nn.parallel import DistributedDataParallel

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
#: Different inputs, which come again and again, each in both modes.
INPUTS = 3
#: MiB of a bucket, so few that a backward has several.
BUCKET_MB = 0.001
#: Exit codes: it was told to end; something was wrong.
TOLD, WRONG = 0, 4

weights = [
    mg.tensor(np.random.default_rng(k).standard_normal(16), requires_grad=True)
    for k in range(RANKS)
]


def values(*seed: int) -> mg.Tensor:
    """A batch that depends on the seed alone; shape (6, 16)."""
    return mg.from_numpy(np.random.default_rng(seed).standard_normal((6, 16)))


def through(x: mg.Tensor, others: list[int]) -> mg.Tensor:
    """What the rank that runs this makes of x, and what the ``others`` make of that."""
    x = (x * weights[RANK]).sin()
    return rpc.rpc_sync(f"rank{others[0]}", through, (x, others[1:])) + x if others else x


def through_alone(x: mg.Tensor, ranks: list[int]) -> mg.Tensor:
    """The same in one process."""
    x = (x * weights[ranks[0]]).sin()
    return through_alone(x, ranks[1:]) + x if ranks[1:] else x


def gradient(context_id: int) -> mg.Tensor:
    """That of this process's weight."""
    return dist_autograd.get_gradients(context_id)[weights[RANK]]


class Rounds:
    """What this rank does again and again.

    Args:
        seed: of all inputs.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chain = [(RANK + k) % RANKS for k in range(1, RANKS)]
        module = self._module()
        self.averages = [self._averages(module, number) for number in range(INPUTS)]
        self.differentiated = [self._differentiated(number) for number in range(INPUTS)]

    def begin(self) -> None:
        """Belong to the ranks that are here now."""
        self.model = DistributedDataParallel(self._module(), bucket_cap_mb=BUCKET_MB)

    def _module(self) -> nn.Module:
        mg.manual_seed(self.seed)
        return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8)).double()

    def _averages(self, module: nn.Module, number: int) -> list[bytes]:
        parts = []
        for rank in range(RANKS):
            module.zero_grad()
            module(values(self.seed, number, rank)).square().sum().backward()
            parts.append([p.grad.clone() for p in module.parameters() if p.grad is not None])
        return [_bits(dist.tree_sum(same) / RANKS) for same in zip(*parts, strict=True)]

    def _differentiated(self, number: int) -> list[bytes]:
        x = values(self.seed, number, RANK).requires_grad_()
        loss = through_alone(x, self.chain).square().sum()
        return [_bits(grad) for grad in mg.autograd.grad(loss, [x, weights[self.chain[0]]])]

    def run(self, number: int) -> None:
        """One round.

        Raises:
            AssertionError: a bit is wrong.
            HostLost: a rank is lost.
        """
        at = number % INPUTS
        self.model.zero_grad()
        self.model(values(self.seed, at, RANK)).square().sum().backward()
        found = [_bits(p.grad) for p in self.model.parameters()]
        assert found == self.averages[at], "an average is wrong"
        x, to = values(self.seed, at, RANK), f"rank{self.chain[0]}"
        result = rpc.rpc_sync(to, mg.mul, (x, x))
        assert _bits(result) == _bits(x * x), "the result of a call is wrong"
        x.requires_grad_()
        with dist_autograd.context() as context_id:
            loss = rpc.rpc_sync(to, through, (x, self.chain[1:])).square().sum()
            mode = "fast" if number % 2 else "smart"
            dist_autograd.backward(context_id, [loss], mode=mode)
            mine = dist_autograd.get_gradients(context_id)[x]
            found = [_bits(mine), _bits(rpc.rpc_sync(to, gradient, (context_id,)))]
        assert found == self.differentiated[at], "a gradient over hosts is wrong"


def _bits(tensor: mg.Tensor | None) -> bytes:
    assert tensor is not None, "a gradient is missing"
    return tensor.detach().numpy().tobytes()


class _Told(SystemExit):
    """The launcher has sent SIGTERM."""


def end(number: int, frame: FrameType | None) -> None:
    """SIGTERM has come."""
    raise _Told(TOLD)


def meet() -> None:
    """Meet the ranks that are here now."""
    rpc.init_rpc(f"rank{RANK}")
    dist.init_process_group()


def part() -> None:
    """Leave the ranks of which one is lost."""
    dist.destroy_process_group()
    rpc.shutdown(graceful=False)


def main() -> int:
    """Run until SIGTERM."""
    seed = int(sys.argv[1])
    signal.signal(signal.SIGTERM, end)
    mg.set_engine(mg.Engine(random.Random(seed).choice(["local", "process"]), cpu_workers=1))
    rounds = Rounds(seed)
    try:
        while True:
            meet()
            number = 0
            try:
                rounds.begin()
                while True:
                    rounds.run(number)
                    if number == 0:
                        print("ready", os.getpid(), flush=True)
                    number += 1
            except HostLost as error:
                print("lost", error.rank, number, error, flush=True)
            part()
    except AssertionError as error:
        print("wrong", error, "in round", number, flush=True)
        return WRONG


if __name__ == "__main__":
    sys.exit(main())
