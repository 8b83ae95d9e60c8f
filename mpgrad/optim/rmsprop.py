"""RMSprop: steps scaled by a running mean of the gradient's square."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Unpack

import numpy as np

from mpgrad.optim.elementwise import ElementwiseOptimizer
from mpgrad.optim.optimizer import Implementation, ParamGroup
from mpgrad.optim.scratch import Array
from mpgrad.recording.tensors.tensor import Tensor


class RMSprop(ElementwiseOptimizer):
    """RMSprop, with the options of ``torch.optim.RMSprop`` and the same formulas.

    With gradient g (plus ``weight_decay`` times the parameter)::

        v = alpha * v + (1 - alpha) * g * g
        m = alpha * m + (1 - alpha) * g                     if centered, else 0
        step = g / (sqrt(v - m * m) + eps)
        buffer = momentum * buffer + step                   step = buffer if momentum
        parameter -= lr * step

    Tieleman and Hinton, 2012; centered: Graves, "Generating sequences", 2013.

    Args:
        params: Tensors, or dicts with "params" and options of their own.
        lr: learning rate.
        alpha: how much of the means each step keeps.
        eps: added to the denominator.
        weight_decay: L2 penalty.
        momentum: how much of the previous steps each step keeps.
        centered: divide by the standard deviation.
        maximize: go up instead of down.
        implementation: only there for PyTorch's callers.

    Raises:
        ValueError: an option is out of range.
    """

    _not_negative: ClassVar[tuple[str, ...]] = ("lr", "eps", "momentum", "weight_decay", "alpha")

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[ParamGroup],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
        **implementation: Unpack[Implementation],
    ) -> None:
        options = {
            "lr": lr,
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "centered": centered,
            "maximize": maximize,
        }
        super().__init__(params, options, **implementation)

    def _initial(self, group: ParamGroup) -> dict[str, float]:
        names = ["square_avg"] + ["momentum_buffer"] * bool(group["momentum"] > 0)
        return dict.fromkeys(names + ["grad_avg"] * group["centered"], 0.0)

    def _move(self, array: Array, grad: Array, kept: dict[str, Any], group: ParamGroup) -> None:
        square = kept["square_avg"]._array
        self._blend(square, self._squared(grad), group["alpha"])
        spread = square
        if group["centered"]:
            mean = kept["grad_avg"]._array
            self._blend(mean, grad, group["alpha"])
            spread = self._squared(mean)
            np.subtract(square, spread, out=spread)
        root = np.sqrt(spread, out=self._scratch.like(array, 2))
        np.add(root, group["eps"], out=root)
        step = scaled = np.divide(grad, root, out=root)
        if group["momentum"] > 0:
            step = kept["momentum_buffer"]._array
            np.multiply(step, group["momentum"], out=step)
            np.add(step, scaled, out=step)
        np.subtract(array, np.multiply(step, group["lr"], out=scaled), out=array)
