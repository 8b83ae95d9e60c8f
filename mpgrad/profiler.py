"""mpgrad.profiler: the profiler under PyTorch's name for it, and the page about a profile."""

from __future__ import annotations

import os

from mpgrad.autograd.profiler import (
    ProfilerAction,
    ProfilerActivity,
    latest,
    profile,
    record_function,
    schedule,
    supported_activities,
    tensorboard_trace_handler,
)
from mpgrad.engine.report.page import write_report

__all__ = [
    "ProfilerAction",
    "ProfilerActivity",
    "profile",
    "record_function",
    "report",
    "schedule",
    "supported_activities",
    "tensorboard_trace_handler",
]


def report(path: str | os.PathLike[str], prof: profile | None = None) -> None:
    """Write one HTML page about a profile: timeline, graph, bounds, idle times and advice.

    The page needs no network and no other file.

    Args:
        path: where to.
        prof: the profile; default: the one that records, or recorded last.

    Raises:
        RuntimeError: nothing has been profiled.
    """
    write_report((prof or latest()).recording, os.fspath(path))
