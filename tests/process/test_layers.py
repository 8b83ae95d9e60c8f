"""Models of each kind of layer train in workers with the bits that they have in ``local``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

import mpgrad as mg
from mpgrad import nn

pytestmark = pytest.mark.process

#: The third step of a model runs the generated source of its graph.
STEPS = 4


class OnOne(nn.Module):
    """Layers one after another; a layer that returns several tensors gives its first."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        for layer in self.layers:
            x = layer(x, x, x) if isinstance(layer, nn.MultiheadAttention) else layer(x)
            x = x[0] if isinstance(x, tuple) else x
        return x


class Cells(nn.Module):
    """A loop over the steps of a sequence that users write with cells."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru, self.rnn = nn.LSTMCell(3, 4), nn.GRUCell(4, 4), nn.RNNCell(4, 4)

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        state: Any = None
        gated = plain = None
        for step in x:
            state = self.lstm(step, state)
            gated = self.gru(state[0], gated)
            plain = self.rnn(gated, plain)
        assert plain is not None
        return plain


class Unpooled(nn.Module):
    """Pooling whose indices put the values back."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 2, 3, padding=1)
        self.pool, self.back = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        values, indices = self.pool(self.before(x))
        return self.after(self.back(values, indices))


class Pairs(nn.Module):
    """Two branches that meet in a Bilinear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.both = nn.Linear(4, 3), nn.Linear(4, 5), nn.Bilinear(3, 5, 2)
        self.similar = nn.CosineSimilarity()

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        left = self.left(x)
        return self.both(left, self.right(x)) * self.similar(left, left.roll(1, 0))[:, None]


class EncodedAndDecoded(nn.Module):
    """A Transformer with both of its stacks."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, dropout=0.1, batch_first=True)

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.transformer(x, x.flip(1), tgt_mask=mask)


_ACTIVATIONS = """
CELU ELU GELU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid Mish PReLU RReLU ReLU
ReLU6 SELU SiLU Sigmoid Softplus Softshrink Softsign Tanh Tanhshrink
"""

#: Name -> (how the model is made, the shape of its input).
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "LSTM": (lambda: OnOne(nn.LSTM(3, 4, num_layers=2, bidirectional=True)), (5, 2, 3)),
    "LSTM with projections": (lambda: OnOne(nn.LSTM(3, 4, 2, proj_size=2, dropout=0.1)), (5, 2, 3)),
    "GRU": (lambda: OnOne(nn.GRU(3, 4, batch_first=True)), (2, 5, 3)),
    "RNN": (lambda: OnOne(nn.RNN(3, 4, num_layers=2, nonlinearity="relu")), (5, 2, 3)),
    "cells": (Cells, (6, 2, 3)),
    "attention": (lambda: OnOne(nn.MultiheadAttention(4, 2), nn.LayerNorm(4)), (3, 2, 4)),
    "transformer": (EncodedAndDecoded, (2, 5, 8)),
    "convolutions 1d": (
        lambda: OnOne(
            nn.Conv1d(4, 8, 3, padding=2, dilation=2, groups=2),
            nn.BatchNorm1d(8),
            nn.MaxPool1d(2),
            nn.ConvTranspose1d(8, 4, 3, stride=2),
            nn.InstanceNorm1d(4, affine=True),
            nn.AvgPool1d(2),
            nn.Upsample(scale_factor=2, mode="linear"),
            nn.ReflectionPad1d(1),
            nn.LPPool1d(2, 2),
            nn.AdaptiveMaxPool1d(3),
        ),
        (2, 4, 12),
    ),
    "convolutions 2d": (
        lambda: OnOne(
            nn.Conv2d(2, 16, 3, padding="same", padding_mode="circular"),
            nn.BatchNorm2d(16),
            nn.Conv2d(16, 16, 3, stride=2, padding=1),
            nn.GroupNorm(2, 16),
            nn.ConvTranspose2d(16, 4, 2, stride=2, output_padding=1),
            nn.InstanceNorm2d(4, affine=True),
            nn.LocalResponseNorm(2),
            nn.Upsample(scale_factor=1.5, mode="bilinear"),
            nn.ReplicationPad2d(1),
            nn.MaxPool2d(3, stride=2, padding=1),
            nn.AvgPool2d(2),
            nn.AdaptiveAvgPool2d(2),
        ),
        (2, 2, 8, 8),
    ),
    "convolutions 3d": (
        lambda: OnOne(
            nn.Conv3d(2, 4, 3, padding=1),
            nn.BatchNorm3d(4),
            nn.MaxPool3d(2),
            nn.ConvTranspose3d(4, 2, 2, stride=2),
            nn.InstanceNorm3d(2, affine=True),
            nn.Upsample(scale_factor=2, mode="trilinear"),
            nn.AvgPool3d(2),
            nn.AdaptiveAvgPool3d((1, 2, 2)),
        ),
        (2, 2, 4, 4, 4),
    ),
    "rearranged pixels": (
        lambda: OnOne(
            nn.Conv2d(2, 8, 1),
            nn.PixelShuffle(2),
            nn.Conv2d(2, 2, 3, padding=1),
            nn.PixelUnshuffle(2),
            nn.ChannelShuffle(2),
            nn.Upsample(scale_factor=2, mode="bicubic"),
            nn.Conv2d(8, 2, 3),
            nn.Unfold(2, stride=2),
            nn.Conv1d(8, 8, 1),
            nn.Fold((6, 6), 2, stride=2),
            nn.ZeroPad2d(1),
            nn.Flatten(),
            nn.Linear(128, 6),
            nn.Unflatten(1, (2, 3)),
            nn.Softmax(-1),
        ),
        (2, 2, 4, 4),
    ),
    "pooling with indices": (Unpooled, (2, 2, 6, 6)),
    "two branches": (Pairs, (3, 4)),
    "dropout": (
        lambda: OnOne(
            nn.Conv2d(2, 6, 3),
            nn.Dropout2d(0.3),
            nn.FractionalMaxPool2d(2, output_size=3),
            nn.Flatten(),
            nn.AlphaDropout(0.1),
            nn.Linear(54, 5),
            nn.RMSNorm(5),
            nn.Dropout(0.2),
            nn.LogSoftmax(-1),
        ),
        (3, 2, 8, 8),
    ),
    "activations": (
        lambda: OnOne(
            *(
                layer
                for name in _ACTIVATIONS.split()
                for layer in (nn.Linear(6, 6), getattr(nn, name)())
            ),
            nn.GLU(),
        ),
        (3, 6),
    ),
    "embedding": (
        lambda: OnOne(nn.Embedding(7, 4, padding_idx=0, max_norm=1.5), nn.GRU(4, 3)),
        (5, 2),
    ),
    "bag of embeddings": (lambda: OnOne(nn.EmbeddingBag(7, 4, mode="mean"), nn.Tanh()), (3, 5)),
}


def _trained(name: str, mode: Any) -> list[dict[str, bytes]]:
    """The losses and all parameters and buffers after each step."""
    make, shape = MODELS[name]
    mg.manual_seed(0)
    model = make()
    x = mg.randint(0, 7, shape) if "embedding" in name else mg.randn(*shape)
    optimizer = mg.optim.Adam(model.parameters(), lr=0.01)
    reached = []
    with mode:
        for _ in range(STEPS):
            optimizer.zero_grad()
            out = model(x)
            loss = (out * out).sum() + out.mean()
            loss.backward()
            assert all(parameter.grad is not None for parameter in model.parameters())
            optimizer.step()
            state = {"loss": loss.detach(), **model.state_dict()}
            reached.append({key: value.numpy().tobytes() for key, value in state.items()})
    return reached


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_in_workers_with_the_bits_of_local(name: str, engine: mg.Engine) -> None:
    before = engine.statistics().backwards_process
    in_workers = _trained(name, contextlib.nullcontext())
    assert engine.statistics().backwards_process == before + STEPS
    assert in_workers == _trained(name, mg.Engine("local"))
    assert in_workers[0] != in_workers[-1]
