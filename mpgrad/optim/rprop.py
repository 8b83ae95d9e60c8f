"""Rprop: steps whose size follows the gradient's sign alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Unpack

import numpy as np

from mpgrad.optim.elementwise import ElementwiseOptimizer
from mpgrad.optim.optimizer import Implementation, ParamGroup
from mpgrad.optim.scratch import Array
from mpgrad.recording.tensors.tensor import Tensor


class Rprop(ElementwiseOptimizer):
    """Resilient backpropagation, with the options of ``torch.optim.Rprop`` and the same formulas.

    With gradient g, that of the step before, and each element by itself::

        size *= etas[1] where g has kept its sign, etas[0] where it has changed it
        g = 0           where it has changed it
        parameter -= sign(g) * size

    Riedmiller and Braun, "A direct adaptive method for faster backpropagation learning", 1993.

    Args:
        params: Tensors, or dicts with "params" and options of their own.
        lr: size of the first step.
        etas: factors that shrink and grow the step.
        step_sizes: the smallest and the largest step.
        maximize: go up instead of down.
        implementation: only there for PyTorch's callers.

    Raises:
        ValueError: an option is out of range.
    """

    _not_negative: ClassVar[tuple[str, ...]] = ("lr",)

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[ParamGroup],
        lr: float = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        maximize: bool = False,
        **implementation: Unpack[Implementation],
    ) -> None:
        options = {
            "lr": lr,
            "etas": etas,
            "step_sizes": step_sizes,
            "maximize": maximize,
        }
        super().__init__(params, options, **implementation)

    def _check_options(self, group: ParamGroup) -> None:
        super()._check_options(group)
        shrink, grow = group["etas"]
        if not 0.0 < shrink < 1.0 < grow:
            raise ValueError(f"Invalid eta values: {shrink}, {grow}")

    def _initial(self, group: ParamGroup) -> dict[str, float]:
        return {"prev": 0.0, "step_size": group["lr"]}

    def _move(self, array: Array, grad: Array, kept: dict[str, Any], group: ParamGroup) -> None:
        before, size = kept["prev"]._array, kept["step_size"]._array
        shrink, grow = group["etas"]
        agreement = np.multiply(grad, before, out=self._scratch.like(array, 2))
        has_turned = agreement < 0
        np.multiply(size, np.where(has_turned, shrink, 1.0), out=size)
        np.multiply(size, np.where(agreement > 0, grow, 1.0), out=size)
        np.clip(size, *group["step_sizes"], out=size)
        np.copyto(before, np.where(has_turned, 0.0, grad))
        step = np.sign(before, out=agreement)
        np.subtract(array, np.multiply(step, size, out=step), out=array)
