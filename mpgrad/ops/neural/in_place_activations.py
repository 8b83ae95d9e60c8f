"""Activations that are written into their input: ``elu_`` and its kin."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mpgrad.ops.neural.activation import elu, leaky_relu, relu
from mpgrad.ops.neural.channel_dropout import rrelu
from mpgrad.ops.neural.composed_activations import celu, hardtanh, selu, threshold
from mpgrad.recording.tensors.tensor import Tensor


def _in_place(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def written(input: Tensor, *args: Any, **options: Any) -> Tensor:
        return function(input, *args, inplace=True, **options)

    written.__name__ = written.__qualname__ = f"{function.__name__}_"
    written.__doc__ = f"``{function.__name__}``, written into ``input``."
    return written


celu_ = _in_place(celu)
elu_ = _in_place(elu)
hardtanh_ = _in_place(hardtanh)
leaky_relu_ = _in_place(leaky_relu)
relu_ = _in_place(relu)
rrelu_ = _in_place(rrelu)
selu_ = _in_place(selu)
threshold_ = _in_place(threshold)
