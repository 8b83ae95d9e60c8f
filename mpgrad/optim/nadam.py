"""NAdam: Adam with Nesterov's momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Unpack

import numpy as np

from mpgrad.optim.elementwise import ElementwiseOptimizer
from mpgrad.optim.optimizer import Implementation, ParamGroup
from mpgrad.optim.scratch import Array
from mpgrad.recording.tensors.tensor import Tensor


class NAdam(ElementwiseOptimizer):
    """NAdam, with the options of ``torch.optim.NAdam`` and the same formulas.

    With gradient g (plus ``weight_decay`` times the parameter) in step t::

        mu[t] = beta1 * (1 - 0.96 ** (t * momentum_decay) / 2)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        ahead = (1 - mu[t]) * g / (1 - mu[1] * ... * mu[t])
                + mu[t + 1] * m / (1 - mu[1] * ... * mu[t + 1])
        parameter -= lr * ahead / (sqrt(v / (1 - beta2 ** t)) + eps)

    Dozat, "Incorporating Nesterov momentum into Adam", 2016.

    Args:
        params: Tensors, or dicts with "params" and options of their own.
        lr: learning rate.
        betas: how much of the running means each step keeps.
        eps: added to the denominator.
        weight_decay: L2 penalty.
        momentum_decay: how fast the momentum rises to ``beta1``.
        decoupled_weight_decay: let the penalty shrink the parameter itself, as in ``AdamW``.
        maximize: go up instead of down.
        implementation: only there for PyTorch's callers.

    Raises:
        ValueError: an option is out of range.
    """

    _not_negative: ClassVar[tuple[str, ...]] = ("lr", "eps", "weight_decay", "momentum_decay")

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[ParamGroup],
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
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
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, options, **implementation)

    def _initial(self, group: ParamGroup) -> dict[str, float]:
        return {"exp_avg": 0.0, "exp_avg_sq": 0.0}

    def _move(self, array: Array, grad: Array, kept: dict[str, Any], group: ParamGroup) -> None:
        beta1, beta2 = group["betas"]
        step, decay = kept["step"], group["momentum_decay"]
        mu = beta1 * (1.0 - 0.5 * 0.96 ** (step * decay))
        mu_next = beta1 * (1.0 - 0.5 * 0.96 ** ((step + 1) * decay))
        product = kept["mu_product"] = kept.get("mu_product", 1.0) * mu
        mean, square = kept["exp_avg"]._array, kept["exp_avg_sq"]._array
        self._blend(mean, grad, beta1)
        self._blend(square, self._squared(grad), beta2)
        root = np.divide(square, 1.0 - beta2**step, out=self._scratch.like(array, 2))
        np.sqrt(root, out=root)
        np.add(root, group["eps"], out=root)
        for term, weight in (
            (grad, (1.0 - mu) / (1.0 - product)),
            (mean, mu_next / (1.0 - product * mu_next)),
        ):
            part = np.divide(term, root, out=self._scratch.like(array, 3))
            np.multiply(part, group["lr"] * weight, out=part)
            np.subtract(array, part, out=array)
