"""The names of ``torch._C._autograd``: saved tensors."""

from __future__ import annotations

from mpgrad.recording.dispatch.saved_attributes import SavedTensor as SavedTensor
from mpgrad.recording.tensors.hooks_in_force import HOOKS as _HOOKS

__all__ = ["SavedTensor", "_saved_tensors_hooks_is_enabled"]


def _saved_tensors_hooks_is_enabled() -> bool:
    """False inside ``mg.autograd.graph.disable_saved_tensors_hooks()`` on this thread."""
    return _HOOKS.thread.state.forbidden is None
