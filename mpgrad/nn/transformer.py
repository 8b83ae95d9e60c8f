"""Transformer: encoders and decoders made of attention (Vaswani et al., "Attention is all you
need", 2017)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from mpgrad.nn import functional as F
from mpgrad.nn import init
from mpgrad.nn.attention_layers import MultiheadAttention
from mpgrad.nn.containers import ModuleList
from mpgrad.nn.layer_norm import LayerNorm
from mpgrad.nn.layers import Dropout, Linear
from mpgrad.nn.module import Module
from mpgrad.ops.by_index.selection import triu
from mpgrad.ops.new_tensors.creation import full
from mpgrad.recording.tensors.tensor import Tensor


def _activation(given: str | Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    if given == "relu":
        return F.relu
    if given == "gelu":
        return F.gelu
    if isinstance(given, str):
        raise RuntimeError(f"activation should be relu/gelu, not {given}")
    return given


class _Layer(Module):
    """The base of both layers: self-attention, a network for each place, and sums around them.

    Args:
        d_model: features.
        nhead: heads of attention.
        dim_feedforward: features inside the network.
        dropout: probability with which an element becomes zero in training.
        activation: of the network, ``"relu"``, ``"gelu"`` or a function.
        layer_norm_eps: added to variances.
        batch_first: inputs are (batch, length, features), not (length, batch, features).
        norm_first: normalise before attention and network, not after.
        bias: add them everywhere.
        device: where the parameters lie.
        dtype: of them.
    """

    #: How often there is a sum, and so a norm and a dropout.
    _sums: int

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        names = ("self_attn", "multihead_attn")[: self._sums - 1]
        for name in names:
            attention = MultiheadAttention(
                d_model, nhead, dropout, bias, batch_first=batch_first, **made
            )
            self.add_module(name, attention)
        self.linear1 = Linear(d_model, dim_feedforward, bias, **made)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, **made)
        self.norm_first = norm_first
        for number in range(1, self._sums + 1):
            norm = LayerNorm(d_model, layer_norm_eps, bias=bias, **made)
            self.add_module(f"norm{number}", norm)
        for number in range(1, self._sums + 1):
            self.add_module(f"dropout{number}", Dropout(dropout))
        self.activation = _activation(activation)

    def _added(self, x: Tensor, number: int, change: Callable[[Tensor], Tensor]) -> Tensor:
        """``x`` plus what ``change`` makes of it, normalised before or after."""
        norm, dropout = getattr(self, f"norm{number}"), getattr(self, f"dropout{number}")
        if self.norm_first:
            return x + dropout(change(norm(x)))
        return norm(x + dropout(change(x)))  # type: ignore[no-any-return]

    def _network(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))  # type: ignore[no-any-return]


class TransformerEncoderLayer(_Layer):
    __doc__ = (_Layer.__doc__ or "").replace("What both kinds share: a", "A")
    _sums = 2

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """(length, batch, d_model), same shape; masks as for ``MultiheadAttention``."""

        def attend(x: Tensor) -> Tensor:
            return self.self_attn(  # type: ignore[no-any-return]
                x,
                x,
                x,
                attn_mask=src_mask,
                key_padding_mask=src_key_padding_mask,
                need_weights=False,
                is_causal=is_causal,
            )[0]

        return self._added(self._added(src, 1, attend), 2, self._network)


class TransformerDecoderLayer(_Layer):
    __doc__ = (_Layer.__doc__ or "").replace(
        "The base of both layers: self-attention,", "Self-attention, attention to a memory,"
    )
    _sums = 3

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """(length, batch, d_model), same shape; masks as for ``MultiheadAttention``."""

        def attend(x: Tensor) -> Tensor:
            return self.self_attn(  # type: ignore[no-any-return]
                x,
                x,
                x,
                attn_mask=tgt_mask,
                key_padding_mask=tgt_key_padding_mask,
                need_weights=False,
                is_causal=tgt_is_causal,
            )[0]

        def remember(x: Tensor) -> Tensor:
            return self.multihead_attn(  # type: ignore[no-any-return]
                x,
                memory,
                memory,
                attn_mask=memory_mask,
                key_padding_mask=memory_key_padding_mask,
                need_weights=False,
                is_causal=memory_is_causal,
            )[0]

        seen = self._added(self._added(tgt, 1, attend), 2, remember)
        return self._added(seen, 3, self._network)


class TransformerEncoder(Module):
    """Copies of a layer in a row.

    Args:
        encoder_layer: the layer to copy.
        num_layers: how often.
        norm: applied at the end, or None.
        enable_nested_tensor: changes nothing.
        mask_check: changes nothing.
    """

    def __init__(
        self,
        encoder_layer: TransformerEncoderLayer,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(encoder_layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.norm = norm
        self.enable_nested_tensor, self.mask_check = enable_nested_tensor, mask_check

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """(length, batch, features), same shape; masks as for ``MultiheadAttention``."""
        x, causal = src, bool(is_causal) and mask is not None
        for layer in self.layers:
            x = layer(x, mask, src_key_padding_mask, causal)
        return x if self.norm is None else self.norm(x)


class TransformerDecoder(Module):
    """Copies of a layer in a row, which all look at one memory.

    Args:
        decoder_layer: the layer to copy.
        num_layers: how often.
        norm: applied at the end, or None.
    """

    def __init__(
        self, decoder_layer: TransformerDecoderLayer, num_layers: int, norm: Module | None = None
    ) -> None:
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(decoder_layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """(length, batch, features), same shape; masks as for ``MultiheadAttention``."""
        x, causal = tgt, bool(tgt_is_causal) and tgt_mask is not None
        for layer in self.layers:
            x = layer(
                x,
                memory,
                tgt_mask,
                memory_mask,
                tgt_key_padding_mask,
                memory_key_padding_mask,
                causal,
                memory_is_causal,
            )
        return x if self.norm is None else self.norm(x)


class Transformer(Module):
    """An encoder of a source and a decoder of a target that looks at it.

    Args:
        d_model: features.
        nhead: heads of attention.
        num_encoder_layers: layers of the encoder.
        num_decoder_layers: layers of the decoder.
        dim_feedforward: see the layers, as for the others.
        custom_encoder: in place of the encoder.
        custom_decoder: in place of the decoder.

    Raises:
        RuntimeError: batches or features do not fit.
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        custom_encoder: Any = None,
        custom_decoder: Any = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        options = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps)
        options += (batch_first, norm_first, bias)  # type: ignore[assignment]

        def last() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, bias=bias, **made)

        self.encoder = custom_encoder
        if custom_encoder is None:
            encoder_layer = TransformerEncoderLayer(*options, **made)  # type: ignore[arg-type]
            self.encoder = TransformerEncoder(encoder_layer, num_encoder_layers, last())
        self.decoder = custom_decoder
        if custom_decoder is None:
            decoder_layer = TransformerDecoderLayer(*options, **made)  # type: ignore[arg-type]
            self.decoder = TransformerDecoder(decoder_layer, num_decoder_layers, last())
        self._reset_parameters()
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first

    def _reset_parameters(self) -> None:
        for parameter in self.parameters():
            if parameter.ndim > 1:
                init.xavier_uniform_(parameter)

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """(sources, batch, d_model) and (targets, batch, d_model) -> the shape of the latter."""
        batch = 0 if self.batch_first else 1
        if src.ndim == 3 and src.shape[batch] != tgt.shape[batch]:
            raise RuntimeError("the batch number of src and tgt must be equal")
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise RuntimeError("the feature number of src and tgt must be equal to d_model")
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        return self.decoder(  # type: ignore[no-any-return]
            tgt,
            memory,
            tgt_mask,
            memory_mask,
            tgt_key_padding_mask,
            memory_key_padding_mask,
            tgt_is_causal,
            memory_is_causal,
        )

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Tensor:
        """(sz, sz): minus infinity for later sources, 0 for the others."""
        return triu(full((sz, sz), -math.inf, dtype=dtype, device=device), 1)
