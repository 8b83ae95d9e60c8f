"""mpgrad.profiler: the profiler under PyTorch's name for it."""

from __future__ import annotations

from mpgrad.autograd.profiler import ProfilerActivity, profile, record_function

__all__ = ["ProfilerActivity", "profile", "record_function"]
