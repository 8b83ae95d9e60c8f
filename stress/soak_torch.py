"""The mixture of ``soak --torch``: both passes of a PyTorch program, in workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import mpgrad.torch as mt

SIDE = 48


class TorchMixture:
    """Steps of different kinds in turn; each kind always gives the same gradients."""

    def __init__(self, seed: int) -> None:
        values = np.random.default_rng(seed)
        self._weights = [
            torch.tensor(values.normal(size=(SIDE, SIDE)) / 7, requires_grad=True) for _ in range(3)
        ]
        self._kinds = (self._mapped, self._summed, self._forked, self._failing, self._in_module)
        self._first: dict[int, bytes] = {}
        self.wrong = 0
        self._net = torch.nn.Linear(SIDE, SIDE, dtype=torch.float64)
        with torch.no_grad():
            self._net.weight.copy_(self._weights[0])
            self._net.bias.zero_()

    def step(self, number: int) -> None:
        """The next step, checked against the first one of its kind."""
        found = self.gradients(number)
        self.wrong += self._first.setdefault(number % len(self._kinds), found) != found

    def gradients(self, number: int) -> bytes:
        """Those of the next step."""
        leaves = [*self._weights, *self._net.parameters()]
        for leaf in leaves:
            leaf.grad = None
        self._kinds[number % len(self._kinds)]()
        return b"".join(b"-" if x.grad is None else x.grad.numpy().tobytes() for x in leaves)

    def _mapped(self) -> None:
        a, b, c = self._weights
        outs = mt.parallel_map(_call, [a, b, a @ b], shared=(c,))
        mt.parallel_map(_call, [a, b], shared=(c,))  # nobody differentiates these
        torch.stack(outs[1:]).sum().backward()

    def _summed(self) -> None:
        a, b, c = self._weights
        mt.parallel_map(_call, [a, b, a], shared=(c,), out="sum").backward()

    def _forked(self) -> None:
        a, b, c = self._weights
        futures = [mt.fork(_call, weight, c) for weight in (a, b, c)]
        mt.fork(_call, a, c).result()
        torch.stack([mt.wait(future) for future in futures]).sum().backward()

    def _failing(self) -> None:
        a, b, c = self._weights
        try:
            mt.parallel_map(_call, [a, b, None], shared=(c,))
        except ArithmeticError:
            return
        self.wrong += 1

    def _in_module(self) -> None:
        outs: Any = mt.parallel_map(_forward, list(self._weights), shared=(self._net,))
        torch.stack(outs).mean().backward()


def _call(x: torch.Tensor | None, w: torch.Tensor) -> torch.Tensor:
    """A branch; without ``x`` it fails."""
    if x is None:
        raise ArithmeticError("planned by the stress run")
    return torch.tanh(x @ w).sum()


def _forward(x: torch.Tensor, net: torch.nn.Module) -> torch.Tensor:
    result: torch.Tensor = net(x).square().sum()
    return result
