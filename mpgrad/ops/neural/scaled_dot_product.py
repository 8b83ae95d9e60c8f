"""Attention, made of products and softmax."""

from __future__ import annotations

import math

import numpy as np

from mpgrad.arrays.cpu.array_program import TRACING
from mpgrad.ops.by_index.selection import repeat_interleave, triu
from mpgrad.ops.calling.promotion import cast
from mpgrad.ops.elementwise.arithmetic import add, mul
from mpgrad.ops.elementwise.comparison import eq, logical_and, logical_not
from mpgrad.ops.linear_algebra.matrix_products import matmul
from mpgrad.ops.neural.activation import softmax
from mpgrad.ops.neural.dropout import dropout
from mpgrad.ops.new_tensors.creation import ones
from mpgrad.ops.shapes.shape import transpose
from mpgrad.recording.tensors.tensor import Tensor


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``softmax(query @ key.T * scale) @ value`` (Vaswani et al., 2017).

    Args:
        query: (..., targets, features).
        key: (..., sources, features).
        value: (..., sources, value features).
        attn_mask: broadcasts to (..., targets, sources): True where attention is allowed, or
            numbers that are added to the products.
        dropout_p: probability with which a share becomes zero.
        is_causal: a target sees no later source; without ``attn_mask`` only.
        scale: by default ``1 / sqrt(features)``.
        enable_gqa: several heads (dimension -3) of ``query`` share one of ``key`` and ``value``.

    Returns:
        (..., targets, value features).

    Raises:
        RuntimeError: both ``attn_mask`` and ``is_causal``.
    """
    if attn_mask is not None and is_causal:
        raise RuntimeError(
            "scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True"
        )
    if enable_gqa:
        key, value = (
            repeat_interleave(x, query.shape[-3] // x.shape[-3], -3) for x in (key, value)
        )
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    half = query.dtype == key.dtype == value.dtype == np.float16
    if half:  # rounded once, at the end
        query, key, value = (cast(x, np.float32) for x in (query, key, value))
    scores = matmul(mul(query, scale), transpose(key, -2, -1))
    found = matmul(dropout(shares(scores, attn_mask, is_causal), dropout_p), value)
    return cast(found, np.float16) if half else found


def shares(scores: Tensor, mask: Tensor | None, is_causal: bool = False) -> Tensor:
    """``scores`` as shares of each target's attention; zeros for one that may see nothing."""
    if mask is not None and mask.dtype.kind == "f":
        return _shares_beside(scores, mask)
    hidden = None
    if is_causal:
        hidden = triu(ones(scores.shape[-2:], device=scores.device), 1).bool()
    elif mask is not None and mask.dtype.kind == "b":
        hidden = logical_not(mask)
    if hidden is None:
        return softmax(scores if mask is None else add(scores, mask), -1)
    # Softmax of nothing is NaN, in gradients, too: such rows take all scores and give none.
    blind = hidden.all(-1, keepdim=True)
    seen = logical_not(blind)
    found = softmax(scores.masked_fill(logical_and(hidden, seen), -math.inf), -1)
    return found if bool(seen.all().item()) else found.masked_fill(blind, 0.0)


def _shares_beside(scores: Tensor, mask: Tensor) -> Tensor:
    """``shares`` with numbers to add: minus infinity hides a source."""
    blind = eq(mask, -math.inf).all(-1, keepdim=True)
    # A traced program must hold for other masks, too.
    if not TRACING.entered and not blind.any().item():
        return softmax(add(scores, mask), -1)
    return softmax(add(scores, mask.masked_fill(blind, 0.0)), -1).masked_fill(blind, 0.0)
