"""MultiheadAttention: several attentions side by side, each of its own projections."""

from __future__ import annotations

import math
from typing import Any

from mpgrad.nn import functional as F
from mpgrad.nn import init
from mpgrad.nn.layers import Linear
from mpgrad.nn.module import Module
from mpgrad.nn.parameter import Parameter
from mpgrad.ops.attention import shares
from mpgrad.ops.creation import empty
from mpgrad.ops.indexing import chunk
from mpgrad.tensor import Tensor


class MultiheadAttention(Module):
    """Vaswani et al., "Attention is all you need", 2017.

    Args:
        embed_dim: features of queries and outputs, divided among the heads.
        num_heads: attentions side by side.
        dropout: probability with which a share becomes zero in training.
        bias: add them to the projections.
        kdim: features of the keys, by default ``embed_dim``.
        vdim: features of the values, by default ``embed_dim``.
        batch_first: inputs are (batch, length, features), not (length, batch, features).
        device: where the parameters lie.
        dtype: of them.

    Raises:
        AssertionError: ``embed_dim`` cannot be divided among the heads.
    """

    in_proj_weight: Parameter | None
    in_proj_bias: Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise AssertionError("embed_dim must be divisible by num_heads")
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.head_dim, self.batch_first = embed_dim // num_heads, batch_first
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        joint = self.kdim == embed_dim and self.vdim == embed_dim
        columns = {"q": embed_dim, "k": self.kdim, "v": self.vdim}
        for name, count in columns.items():
            weight = None if joint else Parameter(empty((embed_dim, count), **made))
            self.register_parameter(f"{name}_proj_weight", weight)
        weight = Parameter(empty((3 * embed_dim, embed_dim), **made)) if joint else None
        self.register_parameter("in_proj_weight", weight)
        biases = Parameter(empty(3 * embed_dim, **made)) if bias else None
        self.register_parameter("in_proj_bias", biases)
        self.out_proj = Linear(embed_dim, embed_dim, bias, **made)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for name, parameter in self.named_parameters(recurse=False):
            if name == "in_proj_bias":
                init.zeros_(parameter)
            else:
                init.xavier_uniform_(parameter)
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """(targets, batch, embed_dim) and (sources, batch, ...) -> outputs like ``query``, shares.

        Args:
            query: see above; all inputs may be without batch.
            key: see above.
            value: see above.
            key_padding_mask: (batch, sources), True for sources that are not seen, or numbers that
                are added.
            need_weights: return the shares (batch, targets, sources), too; else None.
            attn_mask: (targets, sources) or (batch * heads, targets, sources), likewise.
            average_attn_weights: their mean over the heads; else (batch, heads, ...).
            is_causal: a hint that ``attn_mask`` is causal.

        Raises:
            RuntimeError: ``is_causal`` without ``attn_mask``.
            AssertionError: features do not fit.
        """
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        if query.shape[-1] != self.embed_dim:
            raise AssertionError(
                f"was expecting embedding dimension of {self.embed_dim}, but got {query.shape[-1]}"
            )
        batched = query.ndim == 3
        inputs = [x if batched else x.unsqueeze(0) for x in (query, key, value)]
        if batched and not self.batch_first:
            inputs = [x.transpose(0, 1) for x in inputs]
        q, k, v = (self._heads(x) for x in self._projected(inputs))
        scores = (q * (1 / math.sqrt(self.head_dim))) @ k.transpose(-2, -1)
        for mask in self._masks(scores, key_padding_mask, attn_mask):
            scores = scores + mask
        weights = F.dropout(shares(scores, None), self.dropout, self.training)
        joined = (weights @ v).transpose(1, 2).reshape(q.shape[0], q.shape[2], self.embed_dim)
        out = self.out_proj(joined)
        if not batched:
            out = out.squeeze(0)
        elif not self.batch_first:
            out = out.transpose(0, 1)
        if not need_weights:
            return out, None
        told = weights.mean(1) if average_attn_weights else weights
        return out, told if batched else told.squeeze(0)

    def _projected(self, inputs: list[Tensor]) -> list[Tensor]:
        biases: Any = (None,) * 3 if self.in_proj_bias is None else chunk(self.in_proj_bias, 3)
        if self.in_proj_weight is None:
            weights: Any = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        elif inputs[0] is inputs[1] is inputs[2]:
            return list(chunk(F.linear(inputs[0], self.in_proj_weight, self.in_proj_bias), 3, -1))
        else:
            weights = chunk(self.in_proj_weight, 3)
        return [F.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)]

    def _heads(self, x: Tensor) -> Tensor:
        """(batch, length, embed_dim) -> (batch, heads, length, head_dim)."""
        split = x.reshape(x.shape[0], x.shape[1], self.num_heads, self.head_dim)
        return split.transpose(1, 2)

    def _masks(self, scores: Tensor, padding: Tensor | None, mask: Tensor | None) -> list[Tensor]:
        """What is added to ``scores`` (batch, heads, targets, sources)."""
        found = []
        if mask is not None:
            found.append(_added(mask, scores))
            if mask.ndim == 3:
                found[-1] = found[-1].reshape(tuple(scores.shape))
        if padding is not None:
            padding = padding if padding.ndim == 2 else padding.unsqueeze(0)
            found.append(_added(padding, scores).unsqueeze(1).unsqueeze(1))
        return found


def _added(mask: Tensor, scores: Tensor) -> Tensor:
    """``mask`` as numbers: where it is True, minus infinity."""
    if mask.dtype.kind != "b":
        return mask
    return mask.to(scores.dtype).masked_fill(mask, -math.inf)
