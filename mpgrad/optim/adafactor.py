"""Adafactor: of the squares of a matrix's gradient only means of rows and columns are kept."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import device_of, zeros
from mpgrad.optim.optimizer import Optimizer, ParamGroup
from mpgrad.optim.scratch import Array
from mpgrad.recording.tensors.tensor import Tensor


class Adafactor(Optimizer):
    """Adafactor, with the options of ``torch.optim.Adafactor`` and the same formulas.

    With gradient g in step t, the size ``rms`` (root of the mean square) and ``b = t ** decay``::

        rows += b * (mean of g * g along rows - rows);  columns likewise
        v = rows * columns / max(mean of rows, eps1)    (of vectors: the running mean of g * g)
        u = g / sqrt(max(v, eps1 ** 2))
        parameter -= max(eps2, rms(parameter)) * min(lr, 1 / sqrt(t)) * u / max(1, rms(u) / d)

    Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory cost", 2018.

    Args:
        params: Tensors, or dicts with "params" and options of their own.
        lr: the largest relative step, and the learning rate of ``weight_decay``.
        beta2_decay: the exponent ``decay``, at most 0.
        eps: ``(eps1, eps2)``; None for the resolution of the dtype.
        d: the largest size of an update.
        weight_decay: how far a step of size 1 shrinks the parameter.
        foreach: without effect.
        maximize: go up instead of down.

    Raises:
        ValueError: an option is out of range.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[ParamGroup],
        lr: float = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        options = {
            "lr": lr,
            "beta2_decay": beta2_decay,
            "eps": eps,
            "d": d,
            "weight_decay": weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, options)

    def _check_options(self, group: ParamGroup) -> None:
        eps1, eps2 = group["eps"]
        for words, value, fits in (
            ("Learning rate should be >= 0", group["lr"], group["lr"] >= 0),
            ("beta2_decay should be <= 0", group["beta2_decay"], group["beta2_decay"] <= 0),
            ("epsilon1 should be >= 0", eps1, eps1 is None or eps1 >= 0),
            ("epsilon2 should be >= 0", eps2, eps2 >= 0),
            ("Clipping threshold d should be >= 1", group["d"], group["d"] >= 1),
            ("weight_decay should be >= 0", group["weight_decay"], group["weight_decay"] >= 0),
        ):
            if not fits:
                raise ValueError(f"{words} but is: {value}")

    def _update(self, parameter: Tensor, grad: Tensor, group: ParamGroup) -> None:
        if parameter.is_complex():
            raise RuntimeError("Adafactor does not support complex parameters")
        array, slope = parameter._array, grad._array
        kept = self._kept(parameter)
        kept["step"] += 1
        eps1, eps2 = group["eps"]
        if eps1 is None:
            eps1 = float(np.finfo(array.dtype).eps)
        step, lr = kept["step"], float(group["lr"])
        size = max(eps2, _root_mean_square(array)) * min(lr, 1 / math.sqrt(step))
        if group["weight_decay"] != 0:
            np.multiply(array, 1 - lr * group["weight_decay"], out=array)
        spread = _spread(slope, kept, step ** group["beta2_decay"], eps1)
        update = slope / np.sqrt(np.maximum(spread, eps1 * eps1))
        size /= max(1.0, _root_mean_square(update) / group["d"])
        np.subtract(array, np.multiply(update, -size if group["maximize"] else size), out=array)
        for value in kept.values():
            if isinstance(value, Tensor):
                value._version_counter.count()

    def _kept(self, parameter: Tensor) -> dict[str, Any]:
        kept = self.state.setdefault(parameter, {})
        if not kept:
            kept["step"] = 0
            array = parameter._array
            shape = array.shape
            shapes = {"variance": shape}
            if len(shape) > 1:
                shapes = {
                    "row_var": (*shape[:-1], 1),
                    "col_var": (*shape[:-2], 1, shape[-1]),
                }
            for name, size in shapes.items():
                kept[name] = Tensor(zeros(size, array.dtype, device_of(array)))
        return kept


def _root_mean_square(array: Array) -> float:
    return float(np.linalg.norm(array)) / math.sqrt(max(array.size, 1))


def _spread(grad: Array, kept: dict[str, Any], share: float, eps1: float) -> Array:
    """The running mean of squares, in which the new ones have that share."""
    squares = grad * grad
    if "variance" in kept:
        return _blended(kept["variance"]._array, squares, share)
    rows = _blended(kept["row_var"]._array, squares.mean(-1, keepdims=True), share)
    columns = _blended(kept["col_var"]._array, squares.mean(-2, keepdims=True), share)
    return rows * columns / np.maximum(rows.mean(-2, keepdims=True), eps1)


def _blended(mean: Array, new: Array, share: float) -> Array:
    """``mean``, moved in place."""
    mean += (new - mean) * share
    return mean
