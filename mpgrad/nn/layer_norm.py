"""LayerNorm: standardise each sample over its last dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpgrad.nn import functional as F
from mpgrad.nn import init
from mpgrad.nn.module import Module
from mpgrad.nn.parameter import Parameter
from mpgrad.ops.creation import empty
from mpgrad.tensor import Tensor


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
        self.normalized_shape = (
            (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        )
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
