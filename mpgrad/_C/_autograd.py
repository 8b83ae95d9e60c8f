"""``torch._C._autograd`` by its names: saved tensors."""

from __future__ import annotations

from mpgrad.autograd.saved.hooks_in_force import HOOKS as _HOOKS
from mpgrad.autograd.saved.saved_attributes import SavedTensor as SavedTensor

__all__ = ["SavedTensor", "_saved_tensors_hooks_is_enabled"]


def _saved_tensors_hooks_is_enabled() -> bool:
    """False inside ``mg.autograd.graph.disable_saved_tensors_hooks()`` on this thread."""
    return _HOOKS.state.forbidden is None
