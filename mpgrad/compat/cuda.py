"""The names of ``torch.cuda`` that ``mpgrad.cuda`` lacks."""

from __future__ import annotations

from mpgrad.ops.generators import get_rng_state as get_rng_state
from mpgrad.ops.generators import manual_seed as manual_seed
from mpgrad.ops.generators import manual_seed as manual_seed_all
from mpgrad.ops.generators import set_rng_state as set_rng_state


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """False."""
    return False


__all__ = ["get_rng_state", "is_bf16_supported", "manual_seed", "manual_seed_all", "set_rng_state"]
