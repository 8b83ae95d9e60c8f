"""The names of ``torch.backends`` that programs set or read, for libraries that mpgrad lacks."""

from __future__ import annotations

#: Settings without an effect: all algorithms are deterministic, on NumPy or CuPy.
benchmark = False
deterministic = True
enabled = False
allow_tf32 = False


def is_available() -> bool:
    """False."""
    return False


def is_built() -> bool:
    """False."""
    return False


def version() -> None:
    """None: there is none."""
    return
