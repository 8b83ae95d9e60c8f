"""The training during a stress run, with all the parts of a real one.

It has matrix products, a Function that holds the GIL, one that only the client may run, hooks, wide
sums, and weights that follow the gradients, so that one wrong bit shows in all later steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

import mpgrad as mg

WIDTH, BATCH, BRANCHES = 128, 64, 6
#: Additions in pure Python per branch: a millisecond or two that no other thread could use.
SPINS = 30_000
LEARNING_RATE = 0.01


class Spins(mg.Function):
    """Holds the GIL in backward; runs on a worker."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        ctx.save_for_backward(x)
        return np.tanh(x.numpy())

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        nothing = 0.0
        for _ in range(SPINS):
            nothing += 0.0
        return grad.numpy() * (1 - np.tanh(x.numpy()) ** 2) + nothing


class Stays(mg.Function):
    """Runs in the client, between Nodes that workers run."""

    run_on = "client"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.numpy() * 0.5

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * 0.5


class Training:
    """A fixed sequence of steps; all instances with the same seed compute the same bits."""

    def __init__(self, seed: int) -> None:
        self._values = np.random.default_rng(seed)
        self.weights = [self._weight() for _ in range(2 * BRANCHES)]
        self._hooked = 0
        #: The number of steps that failed with an allowed error.
        self.repeated = 0

    def _weight(self) -> mg.Tensor:
        values = self._values.normal(size=(WIDTH, WIDTH)) / np.sqrt(WIDTH)
        return mg.tensor(values.astype(np.float32), requires_grad=True)

    def step(self, allow: Callable[[Exception], bool] = lambda error: False) -> str:
        """One step; a fingerprint of its gradients.

        Args:
            allow: errors of the backward after which the same step is made once more; they must
                not have changed any gradient.
        """
        drawn = self._values.bit_generator.state
        try:
            self._loss().backward()
        except Exception as error:
            if not allow(error):
                raise
            if any(weight.grad is not None for weight in self.weights):
                raise RuntimeError("a backward failed and changed a gradient") from error
            self._values.bit_generator.state = drawn
            self.repeated += 1
            return self.step(allow)
        digest = hashlib.sha256()
        with mg.no_grad():
            for weight in self.weights:
                grad = weight.grad
                if grad is None:
                    raise RuntimeError("a backward ended without an error and without a gradient")
                digest.update(grad.numpy().tobytes())
                weight.sub_(grad, alpha=LEARNING_RATE)
                weight.grad = None
        digest.update(bytes([self._hooked]))
        return digest.hexdigest()

    def _loss(self) -> mg.Tensor:
        self._hooked = 0
        x = mg.tensor(self._values.normal(size=(BATCH, WIDTH)).astype(np.float32))
        x.requires_grad_()  # its gradient is a sum over all branches
        ends = []
        for number in range(BRANCHES):
            first, second = self.weights[2 * number : 2 * number + 2]
            hidden = Spins.apply(x @ first)
            hidden.register_hook(self._hook)
            if number % 3 == 0:
                hidden = Stays.apply(hidden)
            ends.append((mg.relu(hidden @ second) ** 2).mean())
        return mg.stack(ends).sum()

    def _hook(self, grad: mg.Tensor) -> mg.Tensor:
        self._hooked += 1
        return grad * 1.5


class BothPasses(Training):
    """The same with calls: workers run the branches forward, record them and differentiate them."""

    def _loss(self) -> mg.Tensor:
        self._hooked = 0
        # What the branches draw follows the step, also when it is made once more.
        mg.manual_seed(int(self._values.integers(1 << 30)))
        x = mg.tensor(self._values.normal(size=(BATCH, WIDTH)).astype(np.float32))
        x.requires_grad_()
        future = mg.fork(_total, x, self.weights)
        pairs = zip(self.weights[::2], self.weights[1::2], strict=True)
        ends = mg.parallel_map(_branch, [*pairs], shared=(x,))
        total = mg.parallel_map(_penalty, self.weights, out="sum", chunks=3)
        return mg.stack([*ends, total, mg.wait(future)]).sum()


def _branch(pair: tuple[mg.Tensor, mg.Tensor], x: mg.Tensor) -> mg.Tensor:
    first, second = pair
    hidden = mg.nn.functional.dropout(Spins.apply(x @ first), 0.1)
    return (mg.relu(hidden @ second) ** 2).mean()


def _penalty(weight: mg.Tensor) -> mg.Tensor:
    return (weight**2).mean()


def _total(x: mg.Tensor, weights: list[mg.Tensor]) -> mg.Tensor:
    return mg.tanh(x @ weights[0]).mean() * weights[-1].mean()
