"""Random layers: dropout of whole channels, alpha dropout, rrelu and the Gumbel softmax."""

from __future__ import annotations

import math
import warnings

import numpy as np

from mpgrad.ops.by_index.indexing import scatter_along_axis
from mpgrad.ops.calling.promotion import cast
from mpgrad.ops.elementwise.arithmetic import add, mul, neg, sub
from mpgrad.ops.elementwise.comparison import ge
from mpgrad.ops.elementwise.minimum_maximum import where
from mpgrad.ops.elementwise.transcendental import log
from mpgrad.ops.neural.activation import leaky_relu, softmax
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.ops.random import bernoulli_mask, rand_like
from mpgrad.ops.reductions.extrema import argmax
from mpgrad.ops.shapes.shape import broadcast_to, clone, squeeze, unsqueeze
from mpgrad.recording.tensors.tensor import Tensor

#: Where SELU's negative side ends (Klambauer et al., "Self-normalizing neural networks", 2017).
_SELU_END = -1.7580993408473766


def _probability(p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def _written(input: Tensor, result: Tensor, inplace: bool) -> Tensor:
    return input.copy_(result) if inplace else result  # type: ignore[no-any-return]


def _of_channels(
    name: str, input: Tensor, p: float, training: bool, inplace: bool, dims: tuple[int, int]
) -> Tensor:
    _probability(p)
    if input.ndim not in dims:
        warnings.warn(
            f"{name}: Received a {input.ndim}-D input, expected {dims[0]}-D or {dims[1]}-D; "
            "whole channels are dropped.",
            UserWarning,
            stacklevel=3,
        )
    if not training or p == 0.0:
        return input
    batched = input if input.ndim != dims[0] else unsqueeze(input, 0)
    shape = (*batched.shape[:2], *(1,) * (batched.ndim - 2))
    scale = 1 / (1 - p) if p < 1 else 0.0
    mask = beside(input, (bernoulli_mask(shape, 1 - p) * scale).astype(input.dtype))
    result = mul(batched, mask)
    return _written(input, result if batched is input else squeeze(result, 0), inplace)


def dropout1d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Zero whole channels of (batch, channels, length) with probability ``p``, scale the others.

    Raises:
        ValueError: ``p`` is no probability.
        RuntimeError: ``input`` has other dimensions than these, with or without the batch.
    """
    if input.ndim not in (2, 3):
        raise RuntimeError(
            f"dropout1d: Expected 2D or 3D input, but received a {input.ndim}D input"
        )
    return _of_channels("dropout1d", input, p, training, inplace, (2, 3))


def dropout2d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Zero whole channels of (batch, channels, height, width) with probability ``p``.

    A tensor of three dimensions is (batch, channels, length), as in PyTorch.

    Raises:
        ValueError: ``p`` is no probability.
    """
    return _of_channels("dropout2d", input, p, training, inplace, (-1, max(input.ndim, 3)))


def dropout3d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Zero whole channels of (batch, channels, depth, height, width), or without the batch.

    Raises:
        ValueError: ``p`` is no probability.
    """
    return _of_channels("dropout3d", input, p, training, inplace, (4, 5))


def alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Random elements become SELU's least value, so that mean and variance are kept.

    Raises:
        ValueError: ``p`` is no probability.
    """
    return _alpha(input, p, training, inplace, input.shape)


def feature_alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """``alpha_dropout`` of whole channels of (batch, channels, ...).

    Raises:
        ValueError: ``p`` is no probability.
    """
    return _alpha(input, p, training, inplace, (*input.shape[:2], *(1,) * (input.ndim - 2)))


def _alpha(
    input: Tensor, p: float, training: bool, inplace: bool, shape: tuple[int, ...]
) -> Tensor:
    _probability(p)
    if not training or p == 0.0:
        return input
    if p == 1.0:
        return _written(input, mul(input, 0.0), inplace)
    scale = 1 / math.sqrt((1 - p) * (1 + p * _SELU_END**2))
    mask = bernoulli_mask(shape, 1 - p)
    kept = np.where(mask, scale, 0.0)
    rest = np.where(mask, 0.0, _SELU_END * scale) - _SELU_END * p * scale
    factor, summand = (beside(input, np.asarray(part, input.dtype)) for part in (kept, rest))
    return _written(input, add(mul(input, factor), summand), inplace)


def rrelu(
    input: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """``leaky_relu`` with slopes drawn between two bounds while training, their mean after it
    (Xu et al., "Empirical evaluation of rectified activations", 2015).

    Raises:
        RuntimeError: ``lower`` is greater than ``upper``.
    """
    if lower > upper:
        raise RuntimeError(
            f"Lower bound should be less than or equal to the upper bound, but got {lower}, {upper}"
        )
    x = clone(input) if inplace else input
    if not training:
        return _written(input, leaky_relu(x, (lower + upper) / 2), inplace)
    slopes = add(mul(rand_like(input), upper - lower), lower)
    return _written(input, where(ge(x, 0), x, mul(x, slopes)), inplace)


def gumbel_softmax(
    logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    """Draws near to one-hot vectors, with a gradient (Jang, Gu and Poole, "Categorical
    reparameterization with Gumbel-Softmax", 2017).

    Args:
        logits: unnormalised log-probabilities.
        tau: the temperature.
        hard: one-hot in forward, the soft draw in backward.
        eps: nothing depends on it.
        dim: along which the choices lie.
    """
    uniform = sub(1.0, rand_like(logits))  # never 0
    noise = neg(log(neg(log(mul(uniform, 1 - 1e-7)))))
    soft = softmax(mul(add(logits, noise), 1 / tau), dim)
    if not hard:
        return soft
    best = argmax(soft.detach(), dim, keepdim=True)
    ones = cast(broadcast_to(beside(logits, np.ones((), np.float64)), best.shape), soft.dtype)
    chosen = scatter_along_axis(ones, best, dim % soft.ndim, soft.shape[dim])
    return add(sub(chosen, soft.detach()), soft)
