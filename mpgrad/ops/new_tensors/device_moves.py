"""Tensors from device to device: ``to_device``, ``scatter``, ``gather``; gradients go back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from mpgrad.arrays.cuda.device_arrays import moved, on
from mpgrad.base.device import Device
from mpgrad.ops.calling.dimensions import one_dim
from mpgrad.recording.dispatch.operator_call import call, namespace_for
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors import storage
from mpgrad.recording.tensors.tensor import Tensor


def _move(x: Any, device: str) -> Any:
    """``x``, an array or a Tensor, on ``device``."""
    if isinstance(x, Tensor):
        return to_device(x, Device(device))
    return moved(x, Device(device), storage.empty)


#: Runs on the device that it moves from; its gradient on the one that it moved to.
_to_device = operator(
    "to_device",
    lambda xp, input, *, device: _move(input, device),
    input=lambda xp, grad, input_device: _move(grad, input_device),
)


def to_device(input: Tensor, device: Device) -> Tensor:
    """A differentiable copy on ``device`` (with its number); ``input`` itself if it is there."""
    return input if input.device == device else call(_to_device, input, device=str(device))


def beside(other: Tensor, array: Any) -> Tensor:
    """An array of the CPU as a constant on the device of ``other``."""
    return Tensor(moved(array, other.device))


# ---------------------------------------------------------------------- to and from several


def _slice(xp: Any, x: Any, dim: int, start: int, stop: int) -> Any:
    return xp.getitem(x, (slice(None),) * dim + (slice(start, stop),), ())


def _scattered(
    xp: Any, input: Any, *, devices: tuple[str, ...], lengths: tuple[int, ...], dim: int
) -> tuple[Any, ...]:
    starts = [sum(lengths[:at]) for at in range(len(lengths))]
    pieces = zip(devices, starts, lengths, strict=True)
    return tuple(
        _move_copied(xp, _slice(xp, input, dim, start, start + length), device)
        for device, start, length in pieces
    )


def _move_copied(xp: Any, part: Any, device: str) -> Any:
    """A piece on its device, in memory of its own also where that is the same device."""
    there = _move(part, device)
    return xp.copy(part) if there is part else there


def _joined(xp: Any, parts: Sequence[Any], device: str, dim: int) -> Any:
    gathered = [_move(part, device) for part in parts]
    if isinstance(gathered[0], Tensor):
        return xp.concatenate(gathered, dim)
    with on(Device(device)):
        return namespace_for(gathered[0]).concatenate(gathered, dim)


_scatter = operator(
    "scatter_to_devices",
    _scattered,
    outputs=None,
    input=lambda xp, grads, input_device, dim: _joined(xp, grads, input_device, dim),
)


def _gathered_grads(
    xp: Any, grad: Any, tensors_shape: Any, tensors_device: Any, needs: Any, dim: int
) -> list[Any]:
    lengths = [shape[dim] for shape in tensors_shape]
    return [
        _move(_slice(xp, grad, dim, end - length, end), device) if needed else None
        for length, end, device, needed in zip(
            lengths, accumulate(lengths), tensors_device, needs, strict=True
        )
    ]


_gather = operator(
    "gather_to_device",
    lambda xp, *tensors, device, dim: _joined(xp, tensors, device, dim),
    joint=_gathered_grads,
    on_any_devices=True,
)


def scatter(input: Tensor, devices: Sequence[Device], dim: int) -> tuple[Tensor, ...]:
    """``input`` in pieces along ``dim``, one for each of ``devices`` as far as they go."""
    dim = one_dim(dim, input.ndim)
    size = input.shape[dim]
    step = math.ceil(size / len(devices)) or 1
    lengths = [min(step, size - start) for start in range(0, size, step)] or [0]
    names = tuple(str(device) for device in devices[: len(lengths)])
    return tuple(call(_scatter, input, devices=names, lengths=tuple(lengths), dim=dim))


def gather(tensors: Sequence[Tensor], device: Device, dim: int) -> Tensor:
    """``tensors``, which may lie on several devices, joined along ``dim`` on ``device``."""
    dim = one_dim(dim, tensors[0].ndim)
    return call(_gather, *tensors, device=str(device), dim=dim)
