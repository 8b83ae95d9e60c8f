"""RAdam: Adam that waits until its mean square can be trusted."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Unpack

import numpy as np

from mpgrad.optim.elementwise import ElementwiseOptimizer
from mpgrad.optim.optimizer import Implementation, ParamGroup
from mpgrad.optim.scratch import Array
from mpgrad.recording.tensors.tensor import Tensor


class RAdam(ElementwiseOptimizer):
    """RAdam, with the options of ``torch.optim.RAdam`` and the same formulas.

    With gradient g (plus ``weight_decay`` times the parameter) in step t::

        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        rho_max = 2 / (1 - beta2) - 1
        rho = rho_max - 2 * t * beta2 ** t / (1 - beta2 ** t)
        r = sqrt((rho - 4) * (rho - 2) * rho_max / ((rho_max - 4) * (rho_max - 2) * rho))
        scale = r * sqrt(1 - beta2 ** t) / (sqrt(v) + eps)        if rho > 5, else 1
        parameter -= lr / (1 - beta1 ** t) * m * scale

    Liu et al., "On the variance of the adaptive learning rate and beyond", 2020.

    Args:
        params: Tensors, or dicts with "params" and options of their own.
        lr: learning rate.
        betas: how much of the running means each step keeps.
        eps: added to the denominator.
        weight_decay: L2 penalty.
        decoupled_weight_decay: let the penalty shrink the parameter itself, as in ``AdamW``.
        maximize: go up instead of down.
        implementation: only there for PyTorch's callers.

    Raises:
        ValueError: an option is out of range.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[ParamGroup],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
        **implementation: Unpack[Implementation],
    ) -> None:
        options = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, options, **implementation)

    def _initial(self, group: ParamGroup) -> dict[str, float]:
        return {"exp_avg": 0.0, "exp_avg_sq": 0.0}

    def _move(self, array: Array, grad: Array, kept: dict[str, Any], group: ParamGroup) -> None:
        beta1, beta2 = group["betas"]
        mean, square = kept["exp_avg"]._array, kept["exp_avg_sq"]._array
        self._blend(mean, grad, beta1)
        self._blend(square, self._squared(grad), beta2)
        lr = group["lr"] / (1.0 - beta1 ** kept["step"])
        rectified = _rectification(beta2, kept["step"])
        step = self._scratch.like(array, 2)
        if rectified is None:
            np.multiply(mean, lr, out=step)
        else:
            np.sqrt(square, out=step)
            np.add(step, group["eps"], out=step)
            np.divide(mean, step, out=step)
            np.multiply(step, lr * rectified, out=step)
        np.subtract(array, step, out=array)


def _rectification(beta2: float, step: int) -> float | None:
    """The divisor of the mean square's root; None while there are too few gradients."""
    correction = 1.0 - beta2**step
    longest = 2.0 / (1.0 - beta2) - 1.0
    length = longest - 2.0 * step * beta2**step / correction
    if length <= 5.0:
        return None
    variance = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    return math.sqrt(variance * correction)
