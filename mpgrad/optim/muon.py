"""Muon: momentum whose singular values are brought near 1."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import device_of, zeros
from mpgrad.optim.optimizer import Optimizer, ParamGroup
from mpgrad.optim.scratch import Array
from mpgrad.recording.tensors.tensor import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class Muon(Optimizer):
    """Muon, with the options of ``torch.optim.Muon``, for parameters that are matrices.

    With gradient g and the matrices ``U V^T`` of the singular vectors of ``M``, nearly::

        momentum_buffer += (1 - momentum) * (g - momentum_buffer)
        M = g + momentum * (momentum_buffer - g)    (without ``nesterov``: momentum_buffer)
        parameter -= lr * weight_decay * parameter + lr * ratio * U V^T

    PyTorch computes ``U V^T`` in bfloat16; here it is float32, or float64 for such parameters.

    Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024.

    Args:
        params: matrices, or dicts with "params" and options of their own.
        lr: learning rate.
        weight_decay: how far a step of size 1 shrinks the parameter.
        momentum: share of the old momentum.
        nesterov: look ahead.
        ns_coefficients: of the odd polynomial of degree 5 that is applied to singular values.
        eps: the least norm that is divided by.
        ns_steps: how often it is applied, below 100.
        adjust_lr_fn: the ``ratio``: ``"original"`` (also None) for
            ``sqrt(max(1, rows / columns))``, ``"match_rms_adamw"`` for
            ``0.2 * sqrt(max(rows, columns))``.

    Raises:
        ValueError: an option is out of range, or a parameter is no matrix.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[ParamGroup],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = _COEFFICIENTS,
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        options = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }
        super().__init__(params, options)

    def _check_options(self, group: ParamGroup) -> None:
        for name, words in (
            ("lr", "Learning rate"),
            ("momentum", "momentum"),
            ("weight_decay", "weight decay"),
        ):
            if not group[name] >= 0.0:
                raise ValueError(f"{words} should be >= 0 but is: {group[name]}")
        if group["adjust_lr_fn"] not in (None, "original", "match_rms_adamw"):
            raise ValueError(
                f"Adjust learning rate function {group['adjust_lr_fn']} is not supported"
            )
        if group["ns_steps"] >= 100:
            raise ValueError(f"ns_steps must be less than 100, but is {group['ns_steps']}")
        if len(group["ns_coefficients"]) != 3:
            raise ValueError("ns_coefficients must be a tuple of exactly 3 values")
        for parameter in group["params"]:
            if parameter.ndim != 2:
                raise ValueError(
                    "Muon only supports 2D parameters whereas we found a parameter with size: "
                    f"{tuple(parameter.shape)}"
                )

    def _update(self, parameter: Tensor, grad: Tensor, group: ParamGroup) -> None:
        if parameter.is_complex():
            raise RuntimeError("Muon does not support complex parameters")
        array, slope, momentum = parameter._array, grad._array, group["momentum"]
        kept = self.state.setdefault(parameter, {})
        if "momentum_buffer" not in kept:
            empty = zeros(array.shape, array.dtype, device_of(array))
            kept["momentum_buffer"] = Tensor(empty)
        buffer = kept["momentum_buffer"]._array
        buffer += (slope - buffer) * (1 - momentum)
        kept["momentum_buffer"]._version_counter.count()
        direction = slope + (buffer - slope) * momentum if group["nesterov"] else buffer
        update = _orthogonal(direction, group)
        lr = float(group["lr"])
        np.multiply(array, 1 - lr * group["weight_decay"], out=array)
        array -= (lr * _ratio(array.shape, group["adjust_lr_fn"])) * update


def _ratio(shape: tuple[int, ...], way: str | None) -> float:
    rows, columns = shape
    if way == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))


def _orthogonal(matrix: Array, group: dict[str, Any]) -> Array:
    """``matrix`` with singular values near 1, by iterating a polynomial (Newton and Schulz)."""
    a, b, c = group["ns_coefficients"]
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / max(float(np.linalg.norm(x)), group["eps"])
    for _ in range(int(group["ns_steps"])):
        square = x @ x.T
        x = a * x + (b * square + c * (square @ square)) @ x
    return x.T if is_tall else x
