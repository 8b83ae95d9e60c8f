"""SGD: stochastic gradient descent with momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

import numpy as np

from mpgrad.arrays.cuda.device_arrays import copied
from mpgrad.optim.optimizer import Implementation, Optimizer, ParamGroup
from mpgrad.optim.scratch import Array, Scratch
from mpgrad.recording.tensors.tensor import Tensor


class SGD(Optimizer):
    """Gradient descent, with the options of ``torch.optim.SGD`` and the same formulas.

    With gradient g (plus ``weight_decay`` times the parameter)::

        buffer = momentum * buffer + (1 - dampening) * g        (first step: buffer = g)
        step   = g + momentum * buffer  if nesterov  else  buffer
        parameter -= lr * step

    Sutskever, Martens, Dahl and Hinton, "On the importance of initialization and momentum in deep
    learning", 2013, with the learning rate outside the buffer.

    Args:
        params: Tensors, or dicts with "params" and options of their own.
        lr: learning rate.
        momentum: how much of the previous steps each step keeps.
        dampening: share of the gradient that momentum leaves out.
        weight_decay: L2 penalty.
        nesterov: look ahead along the momentum.
        maximize: go up instead of down.
        implementation: only there for PyTorch's callers.

    Raises:
        ValueError: an option is out of range, or nesterov without momentum or with dampening.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[ParamGroup],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        **implementation: Unpack[Implementation],
    ) -> None:
        self._scratch = Scratch()
        options = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        super().__init__(params, options, **implementation)

    def _check_options(self, group: ParamGroup) -> None:
        for name, words in (
            ("lr", "learning rate"),
            ("momentum", "momentum value"),
            ("weight_decay", "weight_decay value"),
        ):
            if group[name] < 0:
                raise ValueError(f"Invalid {words}: {group[name]}")
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")

    def _update(self, parameter: Tensor, grad: Tensor, group: ParamGroup) -> None:
        array, step = parameter._array, grad._array
        if group["weight_decay"] != 0:
            scratch = self._scratch.like(array, 0)
            np.multiply(array, group["weight_decay"], out=scratch)
            # The penalty pulls towards zero in both directions of the search.
            combine = np.subtract if group["maximize"] else np.add
            step = combine(step, scratch, out=scratch)
        if group["momentum"] != 0:
            step = self._with_momentum(parameter, step, group)
        scaled = np.multiply(step, group["lr"], out=self._scratch.like(array, 1))
        ascend_or_descend = np.add if group["maximize"] else np.subtract
        ascend_or_descend(array, scaled, out=array)

    def _with_momentum(self, parameter: Tensor, grad: Array, group: ParamGroup) -> Array:
        """Update the parameter's buffer; return the step."""
        momentum = group["momentum"]
        kept = self.state.setdefault(parameter, {})
        if kept.get("momentum_buffer") is None:
            # On the heap: no worker ever reads it, so it need not fill the shared arena.
            kept["momentum_buffer"] = Tensor(copied(grad))
            buffer = kept["momentum_buffer"]._array
        else:
            buffer = kept["momentum_buffer"]._array
            np.multiply(buffer, momentum, out=buffer)
            share = 1 - group["dampening"]
            if share != 1:
                scaled = self._scratch.like(buffer, 1)
                np.add(buffer, np.multiply(grad, share, out=scaled), out=buffer)
            else:
                np.add(buffer, grad, out=buffer)
            kept["momentum_buffer"]._version_counter.count()
        if not group["nesterov"]:
            return buffer
        ahead = np.multiply(buffer, momentum, out=self._scratch.like(buffer, 1))
        return np.add(grad, ahead, out=ahead)
