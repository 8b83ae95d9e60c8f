"""Adam and AdamW: steps scaled by running means of the gradient and of its square."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

import numpy as np

from mpgrad.optim.elementwise import ElementwiseOptimizer
from mpgrad.optim.optimizer import Implementation, ParamGroup
from mpgrad.optim.scratch import Array
from mpgrad.recording.tensors.tensor import Tensor


class Adam(ElementwiseOptimizer):
    """Adam, with the options of ``torch.optim.Adam`` and the same formulas.

    With gradient g (plus ``weight_decay`` times the parameter) in step t::

        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        parameter -= lr / (1 - beta1 ** t) * m / (sqrt(v / (1 - beta2 ** t)) + eps)

    Kingma and Ba, "Adam: a method for stochastic optimization", 2015; ``amsgrad`` takes the largest
    v so far: Reddi, Kale and Kumar, "On the convergence of Adam and beyond", 2018.

    Args:
        params: Tensors, or dicts with "params" and options of their own.
        lr: learning rate.
        betas: how much of the means of g and of g * g each step keeps.
        eps: added to the denominator.
        weight_decay: L2 penalty.
        amsgrad: let the denominator never become smaller.
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
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        **implementation: Unpack[Implementation],
    ) -> None:
        options = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
        }
        super().__init__(params, options, **implementation)

    def _initial(self, group: ParamGroup) -> dict[str, float]:
        names = ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * group["amsgrad"]
        return dict.fromkeys(names, 0.0)

    def _move(self, array: Array, grad: Array, kept: dict[str, Any], group: ParamGroup) -> None:
        beta1, beta2 = group["betas"]
        mean, square = kept["exp_avg"]._array, kept["exp_avg_sq"]._array
        self._blend(mean, grad, beta1)
        self._blend(square, self._squared(grad), beta2)
        if group["amsgrad"]:
            largest = kept["max_exp_avg_sq"]._array
            np.maximum(largest, square, out=largest)
        scaled = self._denominator(kept, group, 1.0 - beta2 ** kept["step"])
        np.divide(mean, scaled, out=scaled)
        np.multiply(scaled, group["lr"] / (1.0 - beta1 ** kept["step"]), out=scaled)
        np.subtract(array, scaled, out=array)

    def _denominator(self, kept: dict[str, Any], group: ParamGroup, correction: float) -> Array:
        square = kept["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]._array
        root = np.sqrt(square, out=self._scratch.like(square, 2))
        np.divide(root, correction**0.5, out=root)
        return np.add(root, group["eps"], out=root)


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameter itself: ``parameter *= 1 - lr * weight_decay``.

    The options of ``torch.optim.AdamW`` and the same formulas. Loshchilov and Hutter, "Decoupled
    weight decay regularization", 2019.

    Args: those of ``Adam``; ``weight_decay`` is 0.01 unless given.
    """

    _is_decoupled = True

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[ParamGroup],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        **implementation: Unpack[Implementation],
    ) -> None:
        options = (lr, betas, eps, weight_decay, amsgrad)
        super().__init__(params, *options, maximize=maximize, **implementation)
