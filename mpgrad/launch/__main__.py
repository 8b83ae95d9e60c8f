"""The entry of the process of a rank, see ``base.interpreter``."""

from __future__ import annotations

from mpgrad.distributed.launch.rank_process import main

__all__ = ["main"]
