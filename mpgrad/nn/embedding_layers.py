"""Embedding and EmbeddingBag: a table with a learned vector for each index."""

from __future__ import annotations

from typing import Any

from mpgrad.nn import functional as F
from mpgrad.nn import init
from mpgrad.nn.module import Module
from mpgrad.nn.parameter import Parameter
from mpgrad.ops.new_tensors.creation import empty
from mpgrad.recording.graph.grad_modes import no_grad
from mpgrad.recording.tensors.tensor import Tensor


class Embedding(Module):
    """The rows of ``weight`` at the indices; see ``mg.nn.functional.embedding``.

    Args:
        num_embeddings: rows.
        embedding_dim: features.
        padding_idx: a row that starts as zeros and gets no gradient.
        max_norm: rows with a greater norm are scaled to it when they are looked up.
        norm_type: which norm.
        scale_grad_by_freq: see ``mg.nn.functional.embedding``.
        sparse: has no effect: gradients are dense.
        device: where the table lies.
        dtype: of it.

    Raises:
        AssertionError: the row ``padding_idx`` does not exist.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        _weight: Tensor | None = None,
        _freeze: bool = False,
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        if padding_idx is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise AssertionError("Padding_idx must be within num_embeddings")
            padding_idx %= num_embeddings
        self.padding_idx, self.max_norm, self.norm_type = padding_idx, max_norm, norm_type
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        if _weight is not None:
            self.weight = Parameter(_weight, not _freeze)
            return
        shape = (num_embeddings, embedding_dim)
        self.weight = Parameter(empty(shape, dtype=dtype, device=device), not _freeze)
        self.reset_parameters()

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None, **options: Any
    ) -> Embedding:
        """A table that shares the memory of ``embeddings`` (rows, features).

        Args:
            embeddings: the table.
            freeze: do not train it.
            padding_idx: see the class.
            options: the other arguments of the class.

        Raises:
            AssertionError: ``embeddings`` is no matrix.
        """
        if embeddings.ndim != 2:
            raise AssertionError("Embeddings parameter is expected to be 2-dimensional")
        rows, features = embeddings.shape
        own: dict[str, Any] = {"_weight": embeddings.detach(), "_freeze": freeze}
        return cls(rows, features, padding_idx, **options, **own)

    def reset_parameters(self) -> None:
        """Normal of mean 0 and variance 1, and zeros for padding."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx].zero_()

    def forward(self, input: Tensor) -> Tensor:
        """Indices of any shape -> (*shape, embedding_dim)."""
        return F.embedding(
            input,
            self.weight,
            self.padding_idx,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.sparse,
        )

    def extra_repr(self) -> str:
        parts = [f"{self.num_embeddings}, {self.embedding_dim}"]
        for name, usual in (
            ("padding_idx", None),
            ("max_norm", None),
            ("norm_type", 2.0),
            ("scale_grad_by_freq", False),
            ("sparse", False),
        ):
            if getattr(self, name) != usual:
                parts.append(f"{name}={getattr(self, name)}")
        return ", ".join(parts)


class EmbeddingBag(Module):
    """The sum, mean or maximum of rows of a table; see ``mg.nn.functional.embedding_bag``."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.mode, self.sparse = scale_grad_by_freq, mode, sparse
        self.include_last_offset = include_last_offset
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        if _weight is None:
            shape = (num_embeddings, embedding_dim)
            self.weight = Parameter(empty(shape, dtype=dtype, device=device))
            self.reset_parameters()
        else:
            self.weight = Parameter(_weight)

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, **options: Any
    ) -> EmbeddingBag:
        """A table that shares the memory of ``embeddings``; ``freeze``: do not train it.

        Raises:
            AssertionError: ``embeddings`` is no matrix.
        """
        if embeddings.ndim != 2:
            raise AssertionError("Embeddings parameter is expected to be 2-dimensional")
        rows, features = embeddings.shape
        layer = cls(rows, features, _weight=embeddings.detach(), **options)
        layer.weight.requires_grad_(not freeze)
        return layer

    def reset_parameters(self) -> None:
        """Normal of mean 0 and variance 1, and zeros for padding."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx].zero_()

    def forward(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """(bags, indices of each), or a row with ``offsets`` -> (bags, embedding_dim)."""
        return F.embedding_bag(
            input,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            self.sparse,
            per_sample_weights,
            self.include_last_offset,
            self.padding_idx,
        )

    def extra_repr(self) -> str:
        parts = [f"{self.num_embeddings}, {self.embedding_dim}"]
        for name, usual in (
            ("max_norm", None),
            ("norm_type", 2.0),
            ("scale_grad_by_freq", False),
        ):
            if getattr(self, name) != usual:
                parts.append(f"{name}={getattr(self, name)}")
        parts.append(f"mode={self.mode!r}")
        if self.padding_idx is not None:
            parts.append(f"padding_idx={self.padding_idx}")
        return ", ".join(parts)
