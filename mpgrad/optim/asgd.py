"""ASGD: gradient descent whose parameters are averaged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Unpack

import numpy as np

from mpgrad.optim.elementwise import ElementwiseOptimizer
from mpgrad.optim.optimizer import Implementation, ParamGroup
from mpgrad.optim.scratch import Array
from mpgrad.recording.tensors.tensor import Tensor


class ASGD(ElementwiseOptimizer):
    """Averaged gradient descent, with the options of ``torch.optim.ASGD`` and the same formulas.

    With gradient g (plus ``weight_decay`` times the parameter) in step t::

        parameter *= 1 - lambd * eta
        parameter -= eta * g
        ax += mu * (parameter - ax)
        eta = lr / (1 + lambd * lr * t) ** alpha
        mu = 1 / max(1, t - t0)

    ``state[parameter]["ax"]`` is the average. Polyak and Juditsky, "Acceleration of stochastic
    approximation by averaging", 1992.

    Args:
        params: Tensors, or dicts with "params" and options of their own.
        lr: learning rate.
        lambd: how fast the parameters and the learning rate shrink.
        alpha: power with which the learning rate shrinks.
        t0: step from which on there is an average.
        weight_decay: L2 penalty.
        maximize: go up instead of down.
        implementation: only there for PyTorch's callers.

    Raises:
        ValueError: an option is out of range.
    """

    _not_negative: ClassVar[tuple[str, ...]] = ("lr", "weight_decay")

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[ParamGroup],
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        **implementation: Unpack[Implementation],
    ) -> None:
        options = {
            "lr": lr,
            "lambd": lambd,
            "alpha": alpha,
            "t0": t0,
            "weight_decay": weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, options, **implementation)

    def _initial(self, group: ParamGroup) -> dict[str, float]:
        return {"ax": 0.0}

    def _move(self, array: Array, grad: Array, kept: dict[str, Any], group: ParamGroup) -> None:
        average, step = kept["ax"]._array, kept["step"]
        lr, lambd = group["lr"], group["lambd"]
        if kept["step"] == 1:
            kept.update(eta=lr, mu=1.0)
        eta, mu = kept["eta"], kept["mu"]
        np.multiply(array, 1.0 - lambd * eta, out=array)
        part = np.multiply(grad, eta, out=self._scratch.like(array, 2))
        np.subtract(array, part, out=array)
        if mu == 1:
            np.copyto(average, array)
        else:
            np.subtract(array, average, out=part)
            np.add(average, np.multiply(part, mu, out=part), out=average)
        kept["eta"] = lr / (1.0 + lambd * lr * step) ** group["alpha"]
        kept["mu"] = 1.0 / max(1.0, step - group["t0"])
