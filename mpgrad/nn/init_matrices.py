"""Initialisations of whole matrices: identities, orthogonal and sparse ones; truncated draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import moved
from mpgrad.ops.generators import numpy_generator
from mpgrad.recording.graph.grad_modes import no_grad
from mpgrad.recording.tensors.tensor import Tensor


@no_grad()
def eye_(tensor: Tensor) -> Tensor:
    """Fill a matrix with the identity.

    Raises:
        ValueError: ``tensor`` does not have two dimensions.
    """
    _check_matrix(tensor)
    return _filled(tensor, np.eye(*tensor.shape))


@no_grad()
def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Fill the weight of a convolution so that each channel passes through unchanged.

    Args:
        tensor: 3-d to 5-d.
        groups: of the convolution.

    Raises:
        ValueError: it has other dimensions, or the channels cannot be grouped so.
    """
    if tensor.ndim not in (3, 4, 5):
        raise ValueError("Only tensors with 3, 4, or 5 dimensions are supported")
    if tensor.shape[0] % groups:
        raise ValueError("dim 0 must be divisible by groups")
    rows = tensor.shape[0] // groups
    values = np.zeros(tensor.shape)
    middle = tuple(length // 2 for length in tensor.shape[2:])
    for group in range(groups):
        for channel in range(min(rows, tensor.shape[1])):
            values[(group * rows + channel, channel, *middle)] = 1
    return _filled(tensor, values)


@no_grad()
def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Fill with a random matrix whose rows or columns, whichever are fewer, are orthonormal.

    Saxe, McClelland and Ganguli, "Exact solutions to the nonlinear dynamics of learning in deep
    linear neural networks", 2013. The dimensions after the first count as one.

    Args:
        tensor: at least 2-d.
        gain: factor on the matrix.
        generator: where to draw from.

    Raises:
        ValueError: ``tensor`` has fewer than two dimensions.
    """
    if tensor.ndim < 2:
        raise ValueError("Only tensors with 2 or more dimensions are supported")
    if not tensor.numel():
        return tensor
    rows = tensor.shape[0]
    shape = (rows, tensor.numel() // rows)
    draws = numpy_generator(generator).standard_normal(shape, np.float32)
    q, r = np.linalg.qr(draws.T if shape[0] < shape[1] else draws)
    # With the signs of the diagonal of r the matrix is uniformly distributed.
    q *= np.sign(np.diagonal(r))
    return _filled(tensor, gain * (q.T if shape[0] < shape[1] else q))


@no_grad()
def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Any = None) -> Tensor:
    """Fill a matrix with normal draws, with that share of each column set to 0 (Martens, 2010).

    Raises:
        ValueError: ``tensor`` does not have two dimensions.
    """
    _check_matrix(tensor)
    source = numpy_generator(generator)
    rows, columns = tensor.shape
    values = source.standard_normal((rows, columns), np.float32) * std
    for column in range(columns):
        values[source.permutation(rows)[: math.ceil(sparsity * rows)], column] = 0
    return _filled(tensor, values)


@no_grad()
def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Any = None,
) -> Tensor:
    """Fill with draws from the normal distribution, given that they lie within [``a``, ``b``].

    Raises:
        ValueError: there is nothing between the bounds, or they are so far out that hardly any draw
            falls between them.
    """
    low, high = (a - mean) / std, (b - mean) / std
    if low >= high or (math.erf(high / 2**0.5) - math.erf(low / 2**0.5)) / 2 < 1e-3:
        raise ValueError(
            f"trunc_normal_: hardly any draw of mean {mean} and std {std} is in [{a}, {b}]"
        )
    source = numpy_generator(generator)
    draws = source.standard_normal(tensor.numel())
    while (outside := (draws < low) | (draws > high)).any():
        draws[outside] = source.standard_normal(int(outside.sum()))
    return _filled(tensor, (draws * std + mean).reshape(tensor.shape).clip(a, b))


def _check_matrix(tensor: Tensor) -> None:
    if tensor.ndim != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")


def _filled(tensor: Tensor, values: Any) -> Tensor:
    values = np.ascontiguousarray(values.reshape(tensor.shape), tensor._array.dtype)
    return tensor.copy_(Tensor(moved(values, tensor.device)))
