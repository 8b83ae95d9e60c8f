"""Work that holds the GIL: one Python loop, the same for every contender."""

from __future__ import annotations

from itertools import repeat
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]


def spin(loops: int) -> float:
    """Pure Python arithmetic; the result, in (0, 1), enters the gradients, so none can skip it.

    The logistic map (May 1976), on floats because those come from a free list of the interpreter:
    integers come from its allocator, which is up to 20 % slower or faster depending on how full a
    memory pool happens to be, and stays so for a whole process.
    """
    total = 0.3
    for _ in repeat(None, loops):
        total = 3.9 * total * (1.0 - total)
    return total


def branch_input(branch: int, elements: int) -> Array:
    """The saved array of branch number ``branch``: float32, the same in every process."""
    return np.random.default_rng(branch).standard_normal(elements, np.float32)


def branch_forward(ctx: Any, x: Any, loops: int) -> Any:
    """``forward`` of the branches' Function, in every library."""
    ctx.save_for_backward(x)
    ctx.loops = loops
    return x.sum()


def branch_backward(ctx: Any, grad: Any) -> Any:
    """``x * grad * spin(loops)``: one product after the loop; a large ``x``, a large gradient."""
    (x,) = ctx.saved_tensors
    return x * (grad * spin(ctx.loops)), None
