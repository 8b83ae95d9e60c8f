"""The names of ``torch.types``, for annotations."""

from __future__ import annotations

import builtins
from collections.abc import Sequence

from mpgrad.base.device import Device
from mpgrad.recording.tensors.tensor import Tensor

__all__ = ["Device", "Number", "_TensorOrTensors", "_bool", "_float", "_int", "_size"]

_int = builtins.int
_float = builtins.float
_bool = builtins.bool
Number = builtins.int | builtins.float | builtins.bool
_size = Sequence[builtins.int]
_TensorOrTensors = Tensor | Sequence[Tensor]
