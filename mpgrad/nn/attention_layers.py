"""MultiheadAttention: several attentions in parallel, each with its own projections."""

from __future__ import annotations

from typing import Any

from mpgrad.nn import functional as F
from mpgrad.nn import init
from mpgrad.nn.layers import Linear
from mpgrad.nn.module import Module
from mpgrad.nn.parameter import Parameter
from mpgrad.ops.new_tensors.creation import empty
from mpgrad.recording.tensors.tensor import Tensor


class MultiheadAttention(Module):
    """Vaswani et al., "Attention is all you need", 2017.

    Args:
        embed_dim: features of queries and outputs, divided among the heads.
        num_heads: attentions side by side.
        dropout: probability with which a share becomes zero in training.
        bias: add them to the projections.
        add_bias_kv: learn one more source.
        add_zero_attn: add one more source of zeros.
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
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
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
        for name in ("bias_k", "bias_v"):
            more = Parameter(empty((1, 1, embed_dim), **made)) if add_bias_kv else None
            self.register_parameter(name, more)
        self.add_zero_attn = add_zero_attn
        self.out_proj = Linear(embed_dim, embed_dim, bias, **made)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for name, parameter in self.named_parameters(recurse=False):
            if name == "in_proj_bias":
                init.zeros_(parameter)
            elif name in ("bias_k", "bias_v"):
                init.xavier_normal_(parameter)
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
        batched = query.ndim == 3
        if batched and self.batch_first:
            alone = query is key is value
            query = query.transpose(0, 1)
            key, value = (query if alone else x.transpose(0, 1) for x in (key, value))
        joint = self.in_proj_weight is not None
        out, told = F.multi_head_attention_forward(
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            self.in_proj_weight,
            self.in_proj_bias,
            self.bias_k,
            self.bias_v,
            self.add_zero_attn,
            self.dropout,
            self.out_proj.weight,
            self.out_proj.bias,
            training=self.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            use_separate_proj_weight=not joint,
            q_proj_weight=self.q_proj_weight,
            k_proj_weight=self.k_proj_weight,
            v_proj_weight=self.v_proj_weight,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )
        return (out.transpose(0, 1) if batched and self.batch_first else out), told
