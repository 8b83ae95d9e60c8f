"""What the source of a graph calls (:mod:`mpgrad.engine.graph_source`)."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from mpgrad.autograd.running.validate_outputs import validate_output
from mpgrad.recording.graph.node import InputMetadata


def checked(
    name: str, found: Sequence[Any], forms: Sequence[InputMetadata | None], xp: Any
) -> list[Any]:
    """The results of a Node with many inputs, as its consumers expect them."""
    return [
        grad
        if grad is None
        or meta is None
        or (
            type(grad) is np.ndarray
            and grad.shape == meta.shape
            and grad.dtype is meta.dtype
            and grad.flags.c_contiguous
        )
        else validate_output(name, nr, grad, meta, xp)
        for nr, (grad, meta) in enumerate(zip(found, forms, strict=True))
    ]


def undefined(count: int, times: list[float] | None) -> Any:
    """The results of a Node that does not run, because nothing flows into it."""
    if times is not None:
        times += perf_counter(), perf_counter()
    return None if count == 1 else (None,) * count


def added(first: Any, second: Any) -> Any:
    """The sum of two gradients that may be undefined."""
    if first is None or second is None:
        return second if first is None else first
    return np.asarray(first + second)
