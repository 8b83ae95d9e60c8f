"""Functions that old code calls directly, under PyTorch's name ``torch.autograd._functions``."""

from __future__ import annotations

import math
from typing import Any

from mpgrad.autograd.function import Function
from mpgrad.recording.tensors.tensor import Tensor


class Resize(Function):
    """``Resize.apply(x, shape)``: a copy of x in another shape of as many elements."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """
        Raises:
            RuntimeError: the shape has another number of elements.
        """
        if tensor.numel() != math.prod(sizes):
            raise RuntimeError(
                f"requested resize to {'x'.join(map(str, sizes))} ({math.prod(sizes)} elements in "
                f"total), but the given tensor has a size of {'x'.join(map(str, tensor.shape))} "
                f"({tensor.numel()} elements). autograd's resize can only change the shape of a "
                "given tensor, while preserving the number of elements."
            )
        ctx.input_sizes = tensor.shape
        return tensor.clone().view(*sizes)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        """The gradient in the old shape."""
        return grad_output.contiguous().view(ctx.input_sizes), None
