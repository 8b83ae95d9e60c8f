"""jax on the CPU: forward and backward, compiled separately. Runs in a PeerProcess."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from benchmarks.peers.process import Program
from benchmarks.perceptron_arrays import Perceptrons


def perceptrons(shape: Perceptrons, is_whole: bool) -> Program:
    """Backward of the perceptrons, or forward and backward, on all threads that XLA uses.

    The backward is that of ``jax.vjp``: compiled separately, it takes the result of the compiled
    forward, as backward() does. The whole is compiled in one piece.
    """
    batch, arrays = shape.arrays()
    leaves = [jax.numpy.asarray(array) for array in arrays]

    def loss(leaves: list[Any]) -> Any:
        total = 0.0
        for model in shape.models(leaves):
            x = batch
            for weight, bias in model:
                x = jax.nn.relu(x @ weight + bias)
            total += x.mean()
        return total

    found: list[Any] = []
    one = jax.numpy.ones((), np.float32)
    if is_whole:
        gradient = jax.jit(jax.grad(loss))
        return Program(
            lambda _: found.__setitem__(slice(None), jax.block_until_ready(gradient(leaves))),
            lambda: [np.asarray(array) for array in found],
        )
    forward = jax.jit(lambda leaves: jax.vjp(loss, leaves)[1])
    backward = jax.jit(lambda vjp: vjp(one)[0])
    return Program(
        lambda vjp: found.__setitem__(slice(None), jax.block_until_ready(backward(vjp))),
        lambda: [np.asarray(array) for array in found],
        lambda: jax.block_until_ready(forward(leaves)),
    )
