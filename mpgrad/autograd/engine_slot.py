"""The slot that the engine sits in: autograd calls it without knowing it, so nothing imports up.

``mpgrad.engine`` fills the slot when it is loaded; the first backward loads it by name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpgrad.autograd.freeze import FrozenGraph

#: Runs a frozen graph; for each of its captures the array (or None) and whether nobody else holds
#: it, so that ``.grad`` may adopt it.
Execute = Callable[["FrozenGraph"], list[tuple[Any, bool]]]

_execute: Execute | None = None

#: True in a worker process, where every engine is local.
is_worker = False


def install(execute: Execute) -> None:
    """Put the engine in."""
    global _execute
    _execute = execute


def execute(frozen: FrozenGraph) -> list[tuple[Any, bool]]:
    """Run ``frozen`` on the current engine."""
    if _execute is None:
        importlib.import_module("mpgrad.engine.engine")
    if _execute is None:
        raise RuntimeError("mpgrad.engine did not install itself")
    return _execute(frozen)
