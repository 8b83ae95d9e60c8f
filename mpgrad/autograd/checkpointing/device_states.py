"""The random state of devices, of which there is none: numbers for GPUs are drawn on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpgrad.recording.tensors.tensor import Tensor


def get_device_states(*args: Any) -> tuple[list[int], list[Tensor]]:
    """``([], [])``: GPUs have no random state, because their numbers are drawn on the host.

    Args:
        args: tensors, as PyTorch's function takes them.
    """
    return [], []


def set_device_states(
    devices: Sequence[int], states: Sequence[Tensor], *, device_type: str | None = None
) -> None:
    """Set what :func:`get_device_states` gave: nothing.

    Raises:
        ValueError: there are states.
    """
    if len(devices) or len(states):
        raise ValueError("no device has a random state of its own: mg.set_rng_state() has it")
