"""Sequences of different lengths: packing, padding, and recurrent layers that read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.nn.utils import rnn
from tests.torch_outcomes import Of

LENGTHS = [3, 5, 1, 3]


def padded(lib: Any) -> Any:
    return lib.arange(5 * 4 * 2.0).reshape(5, 4, 2) / 10


def filled(layer: Any, lib: Any) -> Any:
    with lib.no_grad():
        for k, parameter in enumerate(layer.parameters()):
            values = np.sin(np.arange(parameter.numel()) + k).reshape(tuple(parameter.shape))
            parameter.copy_(lib.from_numpy(values.astype(np.float32)))
    return layer


@pytest.mark.parametrize("batch_first", [False, True])
def test_packing_and_padding_are_pytorchs(batch_first: bool, of_torch: Of) -> None:
    def values(lib: Any) -> list[Any]:
        tools = lib.nn.utils.rnn
        x = padded(lib).transpose(0, 1) if batch_first else padded(lib)
        packed = tools.pack_padded_sequence(x, LENGTHS, batch_first, enforce_sorted=False)
        again, lengths = tools.pad_packed_sequence(packed, batch_first, -1.0, total_length=7)
        parts = tools.unpack_sequence(packed)
        return [
            *(part.tolist() for part in (*packed, again, lengths, *parts)),
            tools.pad_sequence(parts, batch_first, 9.0).tolist(),
            tools.pad_sequence(parts, padding_side="left").tolist(),
            tools.pack_sequence(sorted(parts, key=len, reverse=True)).data.tolist(),
        ]

    for oracle, theirs in of_torch(values):
        assert values(mg) == theirs, oracle


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}])
@pytest.mark.parametrize("start", [False, True])
def test_recurrent_layers_read_packed_sequences(
    name: str, options: dict[str, Any], start: bool, of_torch: Of
) -> None:
    def values(lib: Any) -> list[Any]:
        layer = filled(getattr(lib.nn, name)(2, 3, **options), lib)
        x = padded(lib).requires_grad_()
        packed = lib.nn.utils.rnn.pack_padded_sequence(x, LENGTHS, enforce_sorted=False)
        count = 4 if options else 1
        state = lib.arange(count * 4 * 3.0).reshape(count, 4, 3) / 20
        given = ((state, -state) if name == "LSTM" else state) if start else None
        packed_out, ends = layer(packed, given)
        out, _ = lib.nn.utils.rnn.pad_packed_sequence(packed_out)
        ends = ends if name == "LSTM" else (ends,)
        sum((part * part).sum() for part in (out, *ends)).backward()
        parts = (out, *ends, x.grad, *(p.grad for p in layer.parameters()))
        return [part.detach().numpy() for part in parts]

    for oracle, theirs in of_torch(values):
        for here, there in zip(values(mg), theirs, strict=True):
            np.testing.assert_allclose(here, there, rtol=2e-4, atol=1e-5, err_msg=oracle)


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ([1, 2, 3, 3], "sorted in decreasing order"),
        ([3, 2, 1, 0], "has to be greater than 0"),
        ([3, 2], "to be equal to batch_size"),
        ([6, 2, 1, 1], "the sequences have 5 steps"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(lengths: list[int], said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        rnn.pack_padded_sequence(padded(mg), lengths)


def test_too_short_a_length_to_pad_to_is_refused() -> None:
    packed = rnn.pack_padded_sequence(padded(mg), LENGTHS, enforce_sorted=False)
    with pytest.raises(ValueError, match="total_length=4 and max sequence length being 5"):
        rnn.pad_packed_sequence(packed, total_length=4)
    with pytest.raises(ValueError, match="padding_side"):
        rnn.pad_sequence([mg.ones(2)], padding_side="top")
