"""Distances and angles of vectors as Modules."""

from __future__ import annotations

from mpgrad.nn import functional as F
from mpgrad.nn.module import Module
from mpgrad.recording.tensors.tensor import Tensor


class CosineSimilarity(Module):
    """The cosine of the angle between vectors along ``dim``."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Two tensors that broadcast -> their shape without ``dim``."""
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """The ``p``-norm of the difference along the last dimension."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Two tensors that broadcast -> their shape without the last dimension."""
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)
