"""The branches in PyTorch, where it is installed."""

from __future__ import annotations

from typing import Any

from examples.demo.branches import BRANCHES, ELEMENTS, Branches, slope_by_leibniz


def branches(terms: int) -> Branches | None:
    """The branches in PyTorch; None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None

    class TimesPi(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * slope_by_leibniz(terms)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * slope_by_leibniz(terms)

    leaves = [torch.full((ELEMENTS,), k + 1.0, requires_grad=True) for k in range(BRANCHES)]
    return Branches(leaves, lambda: torch.cat([TimesPi.apply(leaf) for leaf in leaves]).sum())
