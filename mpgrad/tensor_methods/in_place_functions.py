"""In-place methods as functions, as PyTorch has them: ``mg.relu_(x)`` is ``x.relu_()``."""

from __future__ import annotations

from typing import Any

from mpgrad.recording.tensors.tensor import Tensor


def __getattr__(name: str) -> Any:
    if name.startswith("_") or not name.endswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(Tensor, name)
