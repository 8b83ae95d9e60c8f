"""PyTorch's memory formats: the order of the elements of a copy in memory.

All tensors are made C-contiguous here, whichever format is asked for: a format changes no value.
"""

from __future__ import annotations

import enum


class _Named(enum.Enum):
    def __repr__(self) -> str:
        return f"mpgrad.{self.name}"

    __str__ = __repr__


class MemoryFormat(_Named):
    """The values of ``memory_format=``."""

    preserve_format = "preserve_format"
    contiguous_format = "contiguous_format"
    channels_last = "channels_last"
    channels_last_3d = "channels_last_3d"


preserve_format, contiguous_format, channels_last, channels_last_3d = MemoryFormat


class TensorLayout(_Named):
    """The value of ``layout=``: all tensors are dense."""

    strided = "strided"


strided = TensorLayout.strided
