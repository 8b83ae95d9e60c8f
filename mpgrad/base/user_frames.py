"""Which frames of the stack are the user's, and which are mpgrad's."""

from __future__ import annotations

import sys


def level_of_caller() -> int:
    """The ``stacklevel`` of a warning for the line outside of this package that led to it."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    return level


def is_ours(module: str) -> bool:
    """Whether a module of that name belongs to mpgrad."""
    return module == "mpgrad" or module.startswith("mpgrad.")
