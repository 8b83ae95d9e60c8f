"""Attention in several heads as one function: ``multi_head_attention_forward``."""

from __future__ import annotations

import math
from typing import Any

from mpgrad.ops.by_index.indexing import chunk
from mpgrad.ops.by_index.selection import pad
from mpgrad.ops.elementwise.arithmetic import add, mul
from mpgrad.ops.linear_algebra.matrix_products import linear, matmul
from mpgrad.ops.neural.dropout import dropout
from mpgrad.ops.neural.scaled_dot_product import shares
from mpgrad.ops.new_tensors.creation import zeros
from mpgrad.ops.reductions.reduction import mean
from mpgrad.ops.shapes.shape import (
    broadcast_to,
    cat,
    permute,
    reshape,
    squeeze,
    transpose,
    unsqueeze,
)
from mpgrad.recording.tensors.tensor import Tensor


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The attention of ``nn.MultiheadAttention``, whose documentation explains the arguments.

    Those that it lacks: ``in_proj_weight`` projects query, key and value together, or with
    ``use_separate_proj_weight`` one weight each; ``bias_k`` and ``bias_v`` are one more source;
    ``static_k`` and ``static_v`` (batch * heads, sources, features of a head) are the projections.

    Raises:
        RuntimeError: ``is_causal`` without ``attn_mask``.
        AssertionError: features do not fit.
    """
    features = query.shape[-1]
    if is_causal and attn_mask is None:
        raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
    if features != embed_dim_to_check or features % num_heads:
        raise AssertionError(
            f"was expecting embedding dimension of {embed_dim_to_check}, divisible by {num_heads} "
            f"heads, but got {features}"
        )
    batched = query.ndim == 3
    separate = (q_proj_weight, k_proj_weight, v_proj_weight)
    weights: Any = separate if use_separate_proj_weight else in_proj_weight
    if not batched:
        alone, query = query is key is value, unsqueeze(query, 1)
        key, value = (query if alone else unsqueeze(x, 1) for x in (key, value))
    q, k, v = _projected([query, key, value], weights, in_proj_bias)
    k, v = _with_bias(k, bias_k), _with_bias(v, bias_v)
    q, k, v = (_heads(x, num_heads) for x in (q, k, v))
    k, v = (
        own if static is None else reshape(static, (*q.shape[:2], *static.shape[1:]))
        for own, static in ((k, static_k), (v, static_v))
    )
    if add_zero_attn:
        k, v = _with_zeros(k), _with_zeros(v)
    found = dropout(_shares(q, k, key_padding_mask, attn_mask, need_weights), dropout_p, training)
    joined = reshape(permute(matmul(found, v), 2, 0, 1, 3), (q.shape[2], q.shape[0], features))
    out = linear(joined, out_proj_weight, out_proj_bias)
    out = out if batched else squeeze(out, 1)
    if not need_weights:
        return out, None
    told = mean(found, 1) if average_attn_weights else found
    return out, told if batched else squeeze(told, 0)


def _projected(inputs: list[Tensor], weights: Any, bias: Tensor | None) -> list[Tensor]:
    biases: Any = (None,) * 3 if bias is None else chunk(bias, 3)
    if isinstance(weights, Tensor):
        if inputs[0] is inputs[1] is inputs[2]:
            return list(chunk(linear(inputs[0], weights, bias), 3, -1))
        weights = chunk(weights, 3)
    return [linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)]


def _shares(
    q: Tensor, k: Tensor, padding: Tensor | None, mask: Tensor | None, need_weights: bool
) -> Tensor:
    """(batch, heads, targets, sources): how much each target takes of each source.

    As in PyTorch, who needs the weights gets NaN where a target may see nothing, others zeros.
    """
    scores = matmul(mul(q, 1 / math.sqrt(q.shape[-1])), transpose(k, -2, -1))
    masks = _masks(scores, padding, mask)
    if not masks:
        return shares(scores, None)
    total = masks[0] if len(masks) == 1 else add(*masks)
    return shares(add(scores, total), None) if need_weights else shares(scores, total)


def _with_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    """``x`` with one more source, the same for the whole batch."""
    return x if bias is None else cat([x, broadcast_to(bias, (1, *x.shape[1:]))], 0)


def _with_zeros(x: Tensor) -> Tensor:
    shape = (*x.shape[:2], 1, x.shape[3])
    return cat([x, zeros(shape, dtype=x.dtype, device=x.device)], 2)


def _heads(x: Tensor, count: int) -> Tensor:
    """(length, batch, features) -> (batch, heads, length, features of a head)."""
    split = reshape(x, (x.shape[0], x.shape[1], count, x.shape[2] // count))
    return transpose(transpose(split, 0, 1), 1, 2)


def _masks(scores: Tensor, padding: Tensor | None, mask: Tensor | None) -> list[Tensor]:
    """The array to add to ``scores`` (batch, heads, targets, sources)."""
    found = []
    if mask is not None:
        added = _added(mask, scores)
        if mask.ndim == 3:
            added = reshape(added, (*scores.shape[:3], mask.shape[2]))
        found.append(_with_more_sources(added, scores))
    if padding is not None:
        padding = padding if padding.ndim == 2 else unsqueeze(padding, 0)
        added = unsqueeze(unsqueeze(_added(padding, scores), 1), 1)
        found.append(_with_more_sources(added, scores))
    return found


def _with_more_sources(mask: Tensor, scores: Tensor) -> Tensor:
    """Further sources, which the layer itself has added, are seen by all."""
    more = scores.shape[-1] - mask.shape[-1]
    return pad(mask, (0, more)) if more else mask


def _added(mask: Tensor, scores: Tensor) -> Tensor:
    """``mask`` as numbers: where it is True, minus infinity."""
    if mask.dtype.kind != "b":
        return mask
    return mask.to(scores.dtype).masked_fill(mask, -math.inf)
