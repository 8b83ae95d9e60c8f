"""Adagrad: steps scaled by the sum of all squares of the gradient."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Unpack

import numpy as np

from mpgrad.optim.elementwise import ElementwiseOptimizer
from mpgrad.optim.optimizer import Implementation, ParamGroup
from mpgrad.optim.scratch import Array
from mpgrad.recording.tensors.tensor import Tensor


class Adagrad(ElementwiseOptimizer):
    """Adagrad, with the options of ``torch.optim.Adagrad`` and the same formulas.

    With gradient g (plus ``weight_decay`` times the parameter) in step t::

        sum += g * g
        parameter -= lr / (1 + (t - 1) * lr_decay) * g / (sqrt(sum) + eps)

    Duchi, Hazan and Singer, "Adaptive subgradient methods", 2011.

    Args:
        params: Tensors, or dicts with "params" and options of their own.
        lr: learning rate.
        lr_decay: how fast the learning rate falls.
        weight_decay: L2 penalty.
        initial_accumulator_value: the sum at first.
        eps: added to the denominator.
        maximize: go up instead of down.
        implementation: only there for PyTorch's callers.

    Raises:
        ValueError: an option is out of range.
    """

    _not_negative: ClassVar[tuple[str, ...]] = (
        "lr",
        "lr_decay",
        "weight_decay",
        "initial_accumulator_value",
        "eps",
    )

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[ParamGroup],
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        **implementation: Unpack[Implementation],
    ) -> None:
        options = {
            "lr": lr,
            "lr_decay": lr_decay,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "eps": eps,
            "maximize": maximize,
        }
        super().__init__(params, options, **implementation)
        for group in self.param_groups:
            for parameter in group["params"]:
                self._kept(parameter, group)

    def _initial(self, group: ParamGroup) -> dict[str, float]:
        return {"sum": group["initial_accumulator_value"]}

    def _move(self, array: Array, grad: Array, kept: dict[str, Any], group: ParamGroup) -> None:
        total = kept["sum"]._array
        np.add(total, self._squared(grad), out=total)
        step = np.sqrt(total, out=self._scratch.like(array, 2))
        np.add(step, group["eps"], out=step)
        np.divide(grad, step, out=step)
        lr = group["lr"] / (1 + (kept["step"] - 1) * group["lr_decay"])
        np.subtract(array, np.multiply(step, lr, out=step), out=array)
