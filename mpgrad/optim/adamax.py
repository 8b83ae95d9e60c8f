"""Adamax: Adam with the largest gradient in place of the mean square."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

import numpy as np

from mpgrad.optim.elementwise import ElementwiseOptimizer
from mpgrad.optim.optimizer import Implementation, ParamGroup
from mpgrad.optim.scratch import Array
from mpgrad.recording.tensors.tensor import Tensor


class Adamax(ElementwiseOptimizer):
    """Adamax, with the options of ``torch.optim.Adamax`` and the same formulas.

    With gradient g (plus ``weight_decay`` times the parameter) in step t::

        m = beta1 * m + (1 - beta1) * g
        u = max(beta2 * u, abs(g) + eps)
        parameter -= lr / (1 - beta1 ** t) * m / u

    Kingma and Ba, "Adam: a method for stochastic optimization", 2015.

    Args:
        params: Tensors, or dicts with "params" and options of their own.
        lr: learning rate.
        betas: how much of the mean and of the maximum each step keeps.
        eps: added to the gradient's size.
        weight_decay: L2 penalty.
        maximize: go up instead of down.
        implementation: only there for PyTorch's callers.

    Raises:
        ValueError: an option is out of range.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[ParamGroup],
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        **implementation: Unpack[Implementation],
    ) -> None:
        options = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, options, **implementation)

    def _initial(self, group: ParamGroup) -> dict[str, float]:
        return {"exp_avg": 0.0, "exp_inf": 0.0}

    def _move(self, array: Array, grad: Array, kept: dict[str, Any], group: ParamGroup) -> None:
        beta1, beta2 = group["betas"]
        mean, largest = kept["exp_avg"]._array, kept["exp_inf"]._array
        self._blend(mean, grad, beta1)
        size = np.abs(grad, out=self._scratch.like(array, 2))
        np.add(size, group["eps"], out=size)
        np.multiply(largest, beta2, out=largest)
        np.maximum(largest, size, out=largest)
        step = np.divide(mean, largest, out=size)
        np.multiply(step, group["lr"] / (1.0 - beta1 ** kept["step"]), out=step)
        np.subtract(array, step, out=array)
