"""``torch.nn.attention``: which kernel computes attention. There is one here."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

from mpgrad.base.context_manager import contextmanager


class SDPBackend(enum.IntEnum):
    """PyTorch's kernels of ``scaled_dot_product_attention``."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


@contextmanager
def sdpa_kernel(backends: Any = None, set_priority: bool = False) -> Iterator[None]:
    """Do nothing: all kernels compute the same."""
    yield
