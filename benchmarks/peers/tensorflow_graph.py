"""TensorFlow on the CPU, as one compiled graph of forward and backward. Runs in a PeerProcess."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from benchmarks.peers.process import Program
from benchmarks.perceptron_arrays import Perceptrons


def perceptrons(shape: Perceptrons, threads: int) -> Program:
    """Forward and backward of the perceptrons; the backward is no separate function here.

    With branches, ``threads`` operators run in parallel with one thread each, otherwise one with
    all threads: each is the faster variant.
    """
    inter_op, intra_op = (threads, 1) if shape.branches > 1 else (1, threads)
    tf.config.threading.set_inter_op_parallelism_threads(inter_op)
    tf.config.threading.set_intra_op_parallelism_threads(intra_op)
    batch, arrays = shape.arrays()
    leaves = [tf.Variable(array) for array in arrays]

    @tf.function
    def gradients() -> Any:
        with tf.GradientTape() as tape:
            total = 0.0
            for model in shape.models(leaves):
                x = tf.constant(batch)
                for weight, bias in model:
                    x = tf.nn.relu(x @ weight + bias)
                total += tf.reduce_mean(x)
        return tape.gradient(total, leaves)

    found: list[Any] = []

    def run(_: None) -> None:
        found[:] = gradients()
        found[-1].numpy()  # on the CPU a call returns when all is computed; reading makes sure

    return Program(run, lambda: [array.numpy() for array in found])
