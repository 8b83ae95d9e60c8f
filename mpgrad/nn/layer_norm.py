"""Normalisation of each sample: LayerNorm, RMSNorm and LocalResponseNorm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpgrad.nn import functional as F
from mpgrad.nn import init
from mpgrad.nn.module import Module
from mpgrad.nn.parameter import Parameter
from mpgrad.ops.calling.dimensions import as_tuple
from mpgrad.ops.new_tensors.creation import empty
from mpgrad.recording.tensors.tensor import Tensor


class LayerNorm(Module):
    """Ba, Kiros and Hinton, "Layer normalization", 2016.

    Args:
        normalized_shape: the lengths of the last dimensions.
        eps: added to the variance.
        elementwise_affine: learn a scale for each element (and a shift, with ``bias``).
        bias: learn a shift.
        device: where the parameters lie.
        dtype: of the parameters.
    """

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = as_tuple(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        made: dict[str, Any] = {"dtype": dtype, "device": device}
        for name, learned in (
            ("weight", elementwise_affine),
            ("bias", elementwise_affine and bias),
        ):
            values = Parameter(empty(self.normalized_shape, **made)) if learned else None
            self.register_parameter(name, values)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scale 1, shift 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """(..., *normalized_shape), same shape."""
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, "
            f"elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"
        )


class RMSNorm(Module):
    """``input`` over its root mean square; see ``mg.nn.functional.rms_norm``.

    Args:
        normalized_shape: the lengths of the last dimensions.
        eps: added to the mean square; None for the dtype's distance from 1 to the next number.
        elementwise_affine: learn a scale for each element.
        device: where it lies.
        dtype: of it.
    """

    weight: Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = as_tuple(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        values = empty(self.normalized_shape, dtype=dtype, device=device)
        self.register_parameter("weight", Parameter(values) if elementwise_affine else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scale 1."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, input: Tensor) -> Tensor:
        """(..., *normalized_shape), same shape."""
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class LocalResponseNorm(Module):
    """``input`` over a power of its neighbours; see ``mg.nn.functional.local_response_norm``."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        """(batch, channels, ...), same shape."""
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
