"""The entry of a coordinator process, see ``base.interpreter``."""

from __future__ import annotations

from mpgrad.coordinator.coordinator_process import main

__all__ = ["main"]
