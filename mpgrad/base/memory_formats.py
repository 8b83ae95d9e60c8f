"""PyTorch's memory formats: the orders in which the elements of a copy lie in memory.

All copies are C-contiguous here, which both formats allow.
"""

from __future__ import annotations

import enum


class MemoryFormat(enum.Enum):
    """What ``memory_format=`` takes."""

    preserve_format = "preserve_format"
    contiguous_format = "contiguous_format"


preserve_format, contiguous_format = MemoryFormat
