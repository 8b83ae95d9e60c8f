"""``softmax`` and its kin as layers have them: without ``dim``, one is chosen by the dimensions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from mpgrad.ops.neural import activation, composed_activations
from mpgrad.recording.tensors.tensor import Tensor


def _with_implied_dim(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    name = function.__name__

    def scaled(
        input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
    ) -> Tensor:
        if dim is None:
            dim = 0 if input.ndim in (0, 1, 3) else 1
            warnings.warn(
                f"Implicit dimension choice for {name} has been deprecated. Change the call to "
                f"include dim={dim} as an argument.",
                UserWarning,
                stacklevel=_stacklevel - 1,
            )
        return function(input, dim, dtype=dtype)

    scaled.__name__ = scaled.__qualname__ = name
    scaled.__doc__ = (
        f"``mg.{name}``; without ``dim`` along the first dimension of inputs with 0, 1 or 3 "
        "dimensions,\n    else along the second, with a warning."
    )
    return scaled


softmax = _with_implied_dim(activation.softmax)
log_softmax = _with_implied_dim(activation.log_softmax)
softmin = _with_implied_dim(composed_activations.softmin)
