"""Adadelta: steps scaled by the size of earlier steps and gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

import numpy as np

from mpgrad.optim.elementwise import ElementwiseOptimizer
from mpgrad.optim.optimizer import Implementation, ParamGroup
from mpgrad.optim.scratch import Array
from mpgrad.recording.tensors.tensor import Tensor


class Adadelta(ElementwiseOptimizer):
    """Adadelta, with the options of ``torch.optim.Adadelta`` and the same formulas.

    With gradient g (plus ``weight_decay`` times the parameter)::

        v = rho * v + (1 - rho) * g * g
        step = sqrt(u + eps) / sqrt(v + eps) * g
        u = rho * u + (1 - rho) * step * step
        parameter -= lr * step

    Zeiler, "Adadelta: an adaptive learning rate method", 2012.

    Args:
        params: Tensors, or dicts with "params" and options of their own.
        lr: learning rate.
        rho: how much of the means each step keeps.
        eps: added below both roots.
        weight_decay: L2 penalty.
        maximize: go up instead of down.
        implementation: only there for PyTorch's callers.

    Raises:
        ValueError: an option is out of range.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[ParamGroup],
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        **implementation: Unpack[Implementation],
    ) -> None:
        options = {
            "lr": lr,
            "rho": rho,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, options, **implementation)

    def _check_options(self, group: ParamGroup) -> None:
        super()._check_options(group)
        if not 0.0 <= group["rho"] <= 1.0:
            raise ValueError(f"Invalid rho value: {group['rho']}")

    def _initial(self, group: ParamGroup) -> dict[str, float]:
        return {"square_avg": 0.0, "acc_delta": 0.0}

    def _move(self, array: Array, grad: Array, kept: dict[str, Any], group: ParamGroup) -> None:
        square, steps = kept["square_avg"]._array, kept["acc_delta"]._array
        self._blend(square, self._squared(grad), group["rho"])
        root = np.add(square, group["eps"], out=self._scratch.like(array, 2))
        np.sqrt(root, out=root)
        step = np.add(steps, group["eps"], out=self._scratch.like(array, 3))
        np.sqrt(step, out=step)
        np.divide(step, root, out=step)
        np.multiply(step, grad, out=step)
        self._blend(steps, self._squared(step), group["rho"])
        np.subtract(array, np.multiply(step, group["lr"], out=step), out=array)
