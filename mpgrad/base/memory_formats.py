"""PyTorch's memory formats: the order of the elements of a copy in memory.

All copies are C-contiguous here, which both formats allow.
"""

from __future__ import annotations

import enum


class MemoryFormat(enum.Enum):
    """The values of ``memory_format=``."""

    preserve_format = "preserve_format"
    contiguous_format = "contiguous_format"


preserve_format, contiguous_format = MemoryFormat
