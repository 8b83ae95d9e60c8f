"""The names of ``torch.accelerator``: the GPUs, if there are any."""

from __future__ import annotations

from typing import Any

import mpgrad.cuda as cuda
from mpgrad.base.device import Device
from mpgrad.cuda import device_count as device_count
from mpgrad.cuda import is_available as is_available
from mpgrad.cuda import synchronize as synchronize

__all__ = [
    "current_accelerator",
    "current_device_index",
    "device_count",
    "is_available",
    "synchronize",
]


def current_accelerator(check_available: bool = False) -> Any:
    """The device ``cuda``; None if there is none."""
    return Device("cuda") if is_available() else None


def current_device_index() -> int:
    """The number of the GPU that "cuda" means in this thread."""
    return cuda.current_device()
