"""Adam and AdamW: steps scaled by running means of the gradient and of its square."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from mpgrad.device_arrays import copied
from mpgrad.optim.optimizer import Optimizer, ParamGroup
from mpgrad.optim.scratch import Array, Scratch
from mpgrad.tensor import Tensor


class Adam(Optimizer):
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

    Raises:
        ValueError: an option is out of range.
        NotImplementedError: a parameter is complex.
    """

    #: Whether weight decay shrinks the parameter itself instead of adding to the gradient.
    _is_decoupled = False

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
    ) -> None:
        self._scratch = Scratch()
        options = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
        }
        super().__init__(params, options)

    def _check_options(self, group: ParamGroup) -> None:
        for name, words in (
            ("lr", "learning rate"),
            ("eps", "epsilon value"),
            ("weight_decay", "weight_decay value"),
        ):
            if not group[name] >= 0.0:
                raise ValueError(f"Invalid {words}: {group[name]}")
        for index, beta in enumerate(group["betas"]):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"Invalid beta parameter at index {index}: {beta}")
        for parameter in group["params"]:
            if parameter.is_complex():
                raise NotImplementedError(
                    f"{type(self).__name__}: a parameter is {parameter.dtype}; let its real and "
                    "its imaginary part be parameters instead"
                )

    def _update(self, parameter: Tensor, grad: Tensor, group: ParamGroup) -> None:
        array = parameter._array
        kept = self._kept(parameter, group)
        kept["step"] += 1
        self._decay(array, group)
        self._follow(kept, self._direction(array, grad._array, group), group)

        beta1, beta2 = group["betas"]
        scaled = self._denominator(kept, group, 1.0 - beta2 ** kept["step"])
        np.divide(kept["exp_avg"]._array, scaled, out=scaled)
        np.multiply(scaled, group["lr"] / (1.0 - beta1 ** kept["step"]), out=scaled)
        np.subtract(array, scaled, out=array)

    def _kept(self, parameter: Tensor, group: ParamGroup) -> dict[str, Any]:
        """The parameter's state; of a new one, zeros."""
        kept = self.state.setdefault(parameter, {})
        names = ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * group["amsgrad"]
        kept.setdefault("step", 0)
        for name in names:
            if name not in kept:
                # On the heap: no worker ever reads it, so it need not fill the shared arena.
                zeros = copied(parameter._array)
                zeros.fill(0)
                kept[name] = Tensor(zeros)
        return kept

    def _decay(self, array: Array, group: ParamGroup) -> None:
        if self._is_decoupled and group["weight_decay"] != 0:
            np.multiply(array, 1.0 - group["lr"] * group["weight_decay"], out=array)

    def _direction(self, array: Array, grad: Array, group: ParamGroup) -> Array:
        """The gradient of what is to become smaller, with its penalty."""
        if group["maximize"]:
            grad = np.negative(grad, out=self._scratch.like(array, 0))
        if not self._is_decoupled and group["weight_decay"] != 0:
            penalty = np.multiply(array, group["weight_decay"], out=self._scratch.like(array, 1))
            grad = np.add(grad, penalty, out=penalty)
        return grad

    def _follow(self, kept: dict[str, Any], grad: Array, group: ParamGroup) -> None:
        """Bring the running means up to date."""
        beta1, beta2 = group["betas"]
        mean, square = kept["exp_avg"]._array, kept["exp_avg_sq"]._array
        part = self._scratch.like(mean, 2)
        np.multiply(mean, beta1, out=mean)
        np.add(mean, np.multiply(grad, 1.0 - beta1, out=part), out=mean)
        np.multiply(square, beta2, out=square)
        np.multiply(grad, grad, out=part)
        np.add(square, np.multiply(part, 1.0 - beta2, out=part), out=square)
        if group["amsgrad"]:
            largest = kept["max_exp_avg_sq"]._array
            np.maximum(largest, square, out=largest)
        for value in kept.values():
            if isinstance(value, Tensor):
                value._version_counter.count()

    def _denominator(self, kept: dict[str, Any], group: ParamGroup, correction: float) -> Array:
        square = kept["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]._array
        root = np.sqrt(square, out=self._scratch.like(square, 2))
        np.divide(root, math.sqrt(correction), out=root)
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
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)
