"""The names of ``torch.backends`` that programs set or read, for libraries that mpgrad lacks."""

from __future__ import annotations

from types import SimpleNamespace

#: Settings without an effect: all algorithms are deterministic, on NumPy or CuPy.
benchmark = False
deterministic = True
enabled = False
allow_tf32 = False
matmul = SimpleNamespace(allow_tf32=False, allow_fp16_reduced_precision_reduction=False)


def is_available() -> bool:
    """False."""
    return False


def is_built() -> bool:
    """False."""
    return False


def version() -> None:
    """None: there is none."""
    return


def enable_flash_sdp(enabled: bool) -> None:
    """Do nothing: there is one kernel of attention."""


enable_math_sdp = enable_mem_efficient_sdp = enable_cudnn_sdp = enable_flash_sdp
