"""What distributions share: parameters of one shape, probabilities and their logarithms."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

import numpy as np

from mpgrad.ops.elementwise.minimum_maximum import clamp
from mpgrad.ops.elementwise.piecewise import logit
from mpgrad.ops.elementwise.transcendental import log, sigmoid
from mpgrad.ops.neural.activation import softmax
from mpgrad.ops.new_tensors.creation import as_tensor
from mpgrad.ops.shapes.joining import broadcast_tensors
from mpgrad.recording.graph.grad_modes import enable_grad
from mpgrad.recording.tensors.tensor import Tensor

#: Euler's constant.
euler_constant = 0.57721566490153286060


def broadcast_all(*values: Any) -> tuple[Tensor, ...]:
    """Numbers and Tensors as Tensors of one shape; numbers get the dtype of the first Tensor.

    Raises:
        ValueError: a value is neither.
    """
    like = next((v for v in values if isinstance(v, Tensor)), None)
    for value in values:
        if not isinstance(value, Tensor | int | float | np.number | np.bool_):
            raise ValueError(
                "Input arguments must all be instances of Number, torch.Tensor or objects "
                f"implementing __torch_function__, but one is {type(value).__name__}"
            )
    made = [
        v
        if isinstance(v, Tensor)
        else as_tensor(float(v), **({} if like is None else {"dtype": like.dtype}))
        for v in values
    ]
    return broadcast_tensors(*made)


class lazy_property:
    """A property that is computed when it is first read, with a gradient, and then kept."""

    def __init__(self, wrapped: Callable[[Any], Any]) -> None:
        self.wrapped = wrapped
        update_wrapper(self, wrapped)  # type: ignore[arg-type]

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return property(self.wrapped)  # as which tools for documentation know it
        with enable_grad():
            value = self.wrapped(instance)
        setattr(instance, self.wrapped.__name__, value)
        return value


def resolution(like: Tensor) -> float:
    """The distance from 1 to the next number of the dtype."""
    return float(np.finfo(str(like.dtype).rpartition(".")[2]).eps)


def least(like: Tensor) -> float:
    """The least positive normal number of the dtype."""
    return float(np.finfo(str(like.dtype).rpartition(".")[2]).tiny)


def clamp_probs(probs: Tensor) -> Tensor:
    """Probabilities kept away from 0 and 1 by the resolution of the dtype."""
    eps = resolution(probs)
    return clamp(probs, eps, 1 - eps)


def logits_to_probs(logits: Tensor, is_binary: bool = False) -> Tensor:
    """Probabilities of log-odds, or of the logarithms along the last dimension."""
    return sigmoid(logits) if is_binary else softmax(logits, -1)  # type: ignore[no-any-return]


def probs_to_logits(probs: Tensor, is_binary: bool = False) -> Tensor:
    """The inverse of :func:`logits_to_probs`; 0 and 1 give the largest finite values."""
    inner = clamp_probs(probs)
    return logit(inner) if is_binary else log(inner)  # type: ignore[no-any-return]


def tril_matrix_to_vec(mat: Tensor, diag: int = 0) -> Tensor:
    """The lower triangle of (..., n, n), row by row, as a vector.

    Raises:
        ValueError: there is no such diagonal.
    """
    n = mat.shape[-1]
    if not -n <= diag < n:
        raise ValueError(f"diag ({diag}) provided is outside [{-n}, {n - 1}].")
    rows, columns = np.tril_indices(n, diag)
    return mat[..., rows, columns]


def vec_to_tril_matrix(vec: Tensor, diag: int = 0) -> Tensor:
    """The inverse of :func:`tril_matrix_to_vec`; (..., n, n) with zeros above the diagonal.

    Raises:
        ValueError: the length is that of no triangle.
    """
    length = vec.shape[-1]
    sizes = range(1, length + abs(diag) + 2)
    size = next((n for n in sizes if len(np.tril_indices(n, diag)[0]) == length), 0)
    if not size:
        raise ValueError(
            f"The size of last dimension is {length} which cannot be expressed as the lower "
            "triangular part of a square D x D matrix."
        )
    matrix = vec.new_zeros((*vec.shape[:-1], size, size))
    rows, columns = np.tril_indices(size, diag)
    matrix[..., rows, columns] = vec
    return matrix
