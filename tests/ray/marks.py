"""The marks of tests that start a Ray cluster."""

from __future__ import annotations

import importlib.util

import pytest

needs_ray = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.ray,
    pytest.mark.process,
    pytest.mark.slow,
]
