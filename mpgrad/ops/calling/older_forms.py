"""PyTorch's older order of arguments, in which numbers stand before tensors.

``x.add_(0.1, y)`` is ``x.add_(y, alpha=0.1)``. PyTorch takes it with a warning.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mpgrad.recording.tensors.tensor import Tensor

#: Functions with an older form -> the names of their numbers, and how many tensors they take.
OLDER: dict[str, tuple[tuple[str, ...], int]] = {
    **dict.fromkeys(("add", "sub"), (("alpha",), 2)),
    **dict.fromkeys(("addcmul", "addcdiv"), (("value",), 3)),
    **dict.fromkeys(("addmm", "addmv", "addr", "addbmm", "baddbmm"), (("beta", "alpha"), 3)),
}


def with_older_form(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, called ``name`` in PyTorch, which takes the older order of arguments, too."""
    numbers, count = OLDER[name]

    @functools.wraps(function)
    def either(*args: Any, **options: Any) -> Any:
        if len(args) > count:
            tensors = [value for value in args if isinstance(value, Tensor)]
            given = [value for value in args if not isinstance(value, Tensor)]
            if len(tensors) == count and len(given) <= len(numbers):
                options.update(zip(numbers, given, strict=False))
                args = tuple(tensors)
        return function(*args, **options)

    return either
