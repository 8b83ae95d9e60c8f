"""ElementwiseOptimizer: the base of optimizers whose steps treat each element separately."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Unpack

import numpy as np

from mpgrad.arrays.cuda.device_arrays import copied
from mpgrad.optim.optimizer import Implementation, Optimizer, ParamGroup
from mpgrad.optim.scratch import Array, Scratch, parts_of
from mpgrad.recording.tensors.tensor import Tensor


class ElementwiseOptimizer(Optimizer):
    """Keeps arrays of the parameter's shape beside each parameter; subclasses define ``_move``.

    The options that it knows are "weight_decay", "maximize", "betas" and "decoupled_weight_decay".

    Args:
        params: Tensors, or dicts with "params" and options of their own.
        options: options of groups that do not set them.

    Raises:
        ValueError: an option is out of range.
    """

    #: Options that are never negative.
    _not_negative: ClassVar[tuple[str, ...]] = ("lr", "eps", "weight_decay")
    #: Whether weight decay shrinks the parameter itself instead of adding to the gradient.
    _is_decoupled = False

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[ParamGroup],
        options: dict[str, Any],
        **implementation: Unpack[Implementation],
    ) -> None:
        self._scratch = Scratch()
        super().__init__(params, options, **implementation)

    def _check_options(self, group: ParamGroup) -> None:
        words = {"lr": "learning rate", "eps": "epsilon value"}
        for name in self._not_negative:
            if not group[name] >= 0.0:
                raise ValueError(f"Invalid {words.get(name, name + ' value')}: {group[name]}")
        for index, beta in enumerate(group.get("betas", ())):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"Invalid beta parameter at index {index}: {beta}")

    def _update(self, parameter: Tensor, grad: Tensor, group: ParamGroup) -> None:
        kept = self._kept(parameter, group)
        kept["step"] += 1
        if parameter.is_complex():
            self._update_parts(parameter._array, grad._array, kept, group)
        else:
            direction = self._direction(parameter._array, grad._array, group)
            self._move(parameter._array, direction, kept, group)
        for value in kept.values():
            if isinstance(value, Tensor):
                value._version_counter.count()

    def _update_parts(
        self, array: Array, grad: Array, kept: dict[str, Any], group: ParamGroup
    ) -> None:
        """A step of real and imaginary parts, as if each were an element of its own."""
        array, grad = parts_of(array), parts_of(grad)
        views = {
            name: Tensor(parts_of(value._array)) if isinstance(value, Tensor) else value
            for name, value in kept.items()
        }
        self._move(array, self._direction(array, grad, group), views, group)
        kept.update((n, value) for n, value in views.items() if not isinstance(value, Tensor))

    def _move(self, array: Array, grad: Array, kept: dict[str, Any], group: ParamGroup) -> None:
        """Change the parameter's ``array`` and its ``kept`` arrays, all in place.

        Args:
            array: the parameter.
            grad: gradient of what is to become smaller, with its penalty; it may lie in the scratch
                arrays 0 and 1.
            kept: the parameter's state, its "step" counted from 1.
            group: options.
        """
        raise NotImplementedError

    def _initial(self, group: ParamGroup) -> dict[str, float]:
        """Names of the arrays that are kept, and their initial values."""
        raise NotImplementedError

    def _kept(self, parameter: Tensor, group: ParamGroup) -> dict[str, Any]:
        """The parameter's state."""
        kept = self.state.setdefault(parameter, {})
        kept.setdefault("step", 0)
        for name, value in self._initial(group).items():
            if name not in kept:
                # On the heap: no worker ever reads it, so it need not fill the shared arena.
                array = copied(parameter._array)
                (parts_of(array) if parameter.is_complex() else array).fill(value)
                kept[name] = Tensor(array)
        return kept

    def _direction(self, array: Array, grad: Array, group: ParamGroup) -> Array:
        """The gradient of the minimised function, with its penalty."""
        if group["maximize"]:
            grad = np.negative(grad, out=self._scratch.like(array, 0))
        weight_decay = group.get("weight_decay", 0)
        if weight_decay == 0:
            return grad
        if group.get("decoupled_weight_decay", self._is_decoupled):
            np.multiply(array, 1.0 - group["lr"] * weight_decay, out=array)
            return grad
        penalty = np.multiply(array, weight_decay, out=self._scratch.like(array, 1))
        return np.add(grad, penalty, out=penalty)

    def _blend(self, mean: Array, new: Array, share: float) -> None:
        """``mean = share * mean + (1 - share) * new``; scratch array 2 is overwritten."""
        np.multiply(mean, share, out=mean)
        part = np.multiply(new, 1.0 - share, out=self._scratch.like(mean, 2))
        np.add(mean, part, out=mean)

    def _squared(self, grad: Array) -> Array:
        """The square, in scratch array 2."""
        return np.multiply(grad, grad, out=self._scratch.like(grad, 2))
