"""The names by which programs for PyTorch choose how processes share tensors: here are copies."""

from __future__ import annotations

_STRATEGIES = {"file_descriptor", "file_system"}
_chosen = "file_descriptor"


def get_all_sharing_strategies() -> set[str]:
    """PyTorch's."""
    return set(_STRATEGIES)


def get_sharing_strategy() -> str:
    """What was chosen last."""
    return _chosen


def set_sharing_strategy(new_strategy: str) -> None:
    """Without effect.

    Raises:
        ValueError: PyTorch has no such strategy.
    """
    global _chosen
    if new_strategy not in _STRATEGIES:
        raise ValueError(f"{new_strategy!r} is none of {sorted(_STRATEGIES)}")
    _chosen = new_strategy
