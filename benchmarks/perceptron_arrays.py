"""The perceptrons of ``numpy_branches`` and ``mlp_chain`` as NumPy arrays, the same for all."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from benchmarks.rounds import Array

BATCH = 256


class Perceptrons(NamedTuple):
    """``branches`` perceptrons side by side, all on one batch; their means are added up.

    Attributes:
        branches, layers, width: each of the ``layers`` is ``relu(x @ weight + bias)``.
    """

    branches: int
    layers: int
    width: int

    def arrays(self) -> tuple[Array, list[Array]]:
        """The batch, and weight and bias of each layer, one perceptron after the other.

        Scaled so that activations keep their size through relu (He et al. 2015).
        """
        random = np.random.default_rng(0)
        batch = random.standard_normal((BATCH, self.width), np.float32)
        scale = np.float32((2 / self.width) ** 0.5)
        leaves = []
        for _ in range(self.branches * self.layers):
            leaves.append(random.standard_normal((self.width, self.width), np.float32) * scale)
            leaves.append(random.standard_normal(self.width, np.float32) * np.float32(0.1))
        return batch, leaves

    def models(self, leaves: list[Any]) -> list[list[tuple[Any, Any]]]:
        """``leaves`` in the order of :meth:`arrays`, as (weight, bias) by model and layer."""
        pairs = list(zip(leaves[::2], leaves[1::2], strict=True))
        return [pairs[at : at + self.layers] for at in range(0, len(pairs), self.layers)]
