"""HealthCheck: whether user code has left this worker as other tasks need it: its limits, what it
has imported, and the names of NumPy and of Python itself.

A worker that fails is replaced before its next task, which may be that of another Function.
"""

from __future__ import annotations

import builtins
import resource
import sys
from typing import Any

import numpy as np

from mpgrad.base import machine

_LIMITS = (
    resource.RLIMIT_AS,
    resource.RLIMIT_CPU,
    resource.RLIMIT_DATA,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_NOFILE,
)


class HealthCheck:
    """How this process is now, to be compared with later."""

    def __init__(self) -> None:
        self._limits = _limits()
        self._modules = dict(sys.modules)
        self._names = [(vars(module), dict(vars(module))) for module in (np, builtins)]

    def passes(self, *, is_thorough: bool) -> bool:
        """Whether nothing of it has changed for the worse.

        Args:
            is_thorough: all of it is looked at (0.1 ms), because a rule has failed.
        """
        try:
            if _limits() != self._limits or sys.modules.get("numpy") is not np:
                return False
            if any(len(now) < len(before) for now, before in self._names):
                return False
            return not is_thorough or self._is_whole()
        except Exception:
            return False  # what this needs is broken, too

    def _is_whole(self) -> bool:
        if any(sys.modules.get(name) is not module for name, module in self._modules.items()):
            return False
        return all(
            now.get(name) is value for now, before in self._names for name, value in before.items()
        )


def _limits() -> list[Any]:
    return [machine.resource_limits(kind)[0] for kind in _LIMITS]
