"""Layers with weights, and those that only reshape or thin out: Linear, Bilinear, Dropout."""

from __future__ import annotations

import math
from typing import Any

from mpgrad.nn import functional as F
from mpgrad.nn import init
from mpgrad.nn.module import Module
from mpgrad.nn.parameter import Parameter
from mpgrad.ops.new_tensors.creation import empty
from mpgrad.ops.shapes.shape import flatten, unflatten
from mpgrad.recording.tensors.tensor import Tensor


class Weighted(Module):
    """A layer with a ``weight`` of shape (out, in, *kernel) and perhaps a ``bias``."""

    weight: Parameter
    bias: Parameter | None

    def _make_parameters(
        self, shape: tuple[int, ...], bias: bool, outputs: int, **made: Any
    ) -> None:
        self.weight = Parameter(empty(shape, **made))
        if bias:
            self.bias = Parameter(empty(outputs, **made))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within ``1 / sqrt(fan_in)``, PyTorch's default (LeCun et al., 1998)."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(max(init.fans(self.weight)[0], 1))
            init.uniform_(self.bias, -bound, bound)


class Linear(Weighted):
    """``input @ weight.T + bias``.

    Args:
        in_features: length of the input's last dimension.
        out_features: length of the output's.
        bias: add one.
        device: where the parameters lie.
        dtype: of the parameters.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        shape = (out_features, in_features)
        self._make_parameters(shape, bias, out_features, device=device, dtype=dtype)

    def forward(self, input: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class Flatten(Module):
    """Joins dimensions ``start_dim`` to ``end_dim``; by default all but the batch."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Tensor) -> Tensor:
        """(batch, a, b, ...) -> (batch, a * b * ...)."""
        return flatten(input, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """One dimension becomes several.

    Args:
        dim: which one.
        unflattened_size: the lengths of the new dimensions; one of them may be -1.
    """

    def __init__(self, dim: int, unflattened_size: Any) -> None:
        super().__init__()
        self.dim, self.unflattened_size = dim, unflattened_size

    def forward(self, input: Tensor) -> Tensor:
        """(..., a * b, ...) -> (..., a, b, ...)."""
        return unflatten(input, self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class Identity(Module):
    """The identity; it takes any other arguments and ignores them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        """``input`` itself."""
        return input


class Dropout(Module):
    """Zeroes random elements while training; see ``mg.nn.functional.dropout``.

    Raises:
        ValueError: ``p`` is not a probability.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p, self.inplace = p, inplace

    def forward(self, input: Tensor) -> Tensor:
        """Same shape."""
        return F.dropout(input, self.p, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Bilinear(Module):
    """``input1 @ weight[k] @ input2 + bias[k]``; see ``mg.nn.functional.bilinear``.

    Raises:
        ValueError: ``in1_features`` is not positive.
    """

    bias: Parameter | None

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if in1_features <= 0:
            raise ValueError(f"in1_features must be > 0, but got {in1_features}")
        self.in1_features, self.in2_features = in1_features, in2_features
        self.out_features = out_features
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = Parameter(empty((out_features, in1_features, in2_features), **made))
        self.register_parameter("bias", Parameter(empty(out_features, **made)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within ``1 / sqrt(in1_features)``."""
        bound = 1 / math.sqrt(self.in1_features)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        """(..., in1_features), (..., in2_features) -> (..., out_features)."""
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )
