"""The names of ``torch.distributed`` with which programs check whether it is available."""

from __future__ import annotations


def is_available() -> bool:
    """False."""
    return False


def is_initialized() -> bool:
    """False."""
    return False
