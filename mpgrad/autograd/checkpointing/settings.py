"""Settings for all checkpoints of the process, by context managers."""

from __future__ import annotations

from collections.abc import Iterator

from mpgrad.base.context_manager import contextmanager

#: They override the argument of each ``checkpoint`` call unless they are None.
early_stop: bool | None = None
debug_enabled: bool | None = None


@contextmanager
def set_checkpoint_early_stop(enable: bool) -> Iterator[None]:
    """Whether checkpoints made inside end their second call as soon as no tensor is missing.

    The setting is read when the checkpoint is made, not when backward runs.

    Args:
        enable: overrides the argument ``early_stop`` of ``checkpoint``.
    """
    global early_stop
    before, early_stop = early_stop, enable
    try:
        yield
    finally:
        early_stop = before


@contextmanager
def set_checkpoint_debug_enabled(enabled: bool | None) -> Iterator[None]:
    """Whether checkpoints made inside log their operators.

    Args:
        enabled: None: the argument ``debug`` of ``checkpoint`` decides.
    """
    global debug_enabled
    before, debug_enabled = debug_enabled, enabled
    try:
        yield
    finally:
        debug_enabled = before
