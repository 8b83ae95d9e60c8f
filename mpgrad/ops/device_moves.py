"""Tensors from device to device: ``to_device``, whose gradient goes the way back."""

from __future__ import annotations

from typing import Any

from mpgrad import storage
from mpgrad.device import Device
from mpgrad.device_arrays import moved
from mpgrad.dispatch import call
from mpgrad.ops.registry import operator
from mpgrad.tensor import Tensor


def _move(xp: Any, x: Any, device: str) -> Any:
    """``x``, an array of any namespace, on ``device``."""
    if isinstance(x, Tensor):
        return call(_to_device, x, device=device)
    return moved(x, Device(device), storage.empty)


#: Runs on the device that it moves from; its gradient on the one that it moved to.
_to_device = operator(
    "to_device",
    lambda xp, input, *, device: _move(xp, input, device),
    input=lambda xp, grad, input_device: _move(xp, grad, input_device),
    node_name="ToCopyBackward",
)


def to_device(input: Tensor, device: Device) -> Tensor:
    """A differentiable copy on ``device`` (with its number); ``input`` itself if it is there."""
    return input if input.device == device else call(_to_device, input, device=str(device))


def beside(other: Tensor, array: Any) -> Tensor:
    """An array of the CPU as a constant on the device of ``other``."""
    return Tensor(moved(array, other.device))
