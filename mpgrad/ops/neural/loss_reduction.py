"""How the losses of elements become one: ``reduction``, its older forms, and shapes that differ."""

from __future__ import annotations

import warnings

from mpgrad.ops.reductions import reduction as reductions
from mpgrad.ops.shapes.joining import broadcast_tensors
from mpgrad.recording.tensors.tensor import Tensor


def alike(name: str, input: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    """``input`` and ``target`` in one shape; a warning where they had two."""
    if input.shape == target.shape:
        return input, target
    warnings.warn(
        f"{name}: using a target size {tuple(target.shape)} that is different to the input size "
        f"{tuple(input.shape)}. This will likely lead to incorrect results due to broadcasting. "
        "Please ensure they have the same size.",
        UserWarning,
        stacklevel=3,
    )
    return broadcast_tensors(input, target)


def meant_reduction(reduction: str, size_average: bool | None, reduce: bool | None) -> str:
    """``reduction``, or what PyTorch's older arguments say in its place.

    Raises:
        ValueError: there is no such reduction.
    """
    reduction = from_older(reduction, size_average, reduce)
    check_reduction(reduction)
    return reduction


def from_older(reduction: str, size_average: bool | None, reduce: bool | None) -> str:
    """As :func:`meant_reduction`, whatever ``reduction`` says."""
    if size_average is None and reduce is None:
        return reduction
    is_reduced, is_mean = (given is None or bool(given) for given in (reduce, size_average))
    meant = ("mean" if is_mean else "sum") if is_reduced else "none"
    warnings.warn(
        f"size_average and reduce args will be deprecated, please use reduction='{meant}' instead.",
        UserWarning,
        stacklevel=4,
    )
    return meant


def check_reduction(reduction: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{reduction} is not a valid value for reduction")


def reduced(losses: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return losses
    return reductions.sum(losses) if reduction == "sum" else reductions.mean(losses)
