"""Recurrent layers as operators: first and second derivatives, of sequences of several lengths."""

from __future__ import annotations

from typing import Any

import pytest

import mpgrad as mg
from mpgrad import nn
from mpgrad.ops.neural.recurrent_layers import recurrent_layer

HIDDEN = 2


def drawn(*shape: int) -> mg.Tensor:
    return mg.randn(shape, dtype=mg.float64, requires_grad=True)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("sizes", [(2, 2), (3, 2, 1)])
@pytest.mark.parametrize(
    ("kind", "gates", "projected"),
    [("rnn_tanh", 1, 0), ("rnn_relu", 1, 0), ("gru", 3, 0), ("lstm", 4, 0), ("lstm", 4, 1)],
)
def test_derivatives(
    kind: str, gates: int, projected: int, sizes: tuple[int, ...], backwards: bool
) -> None:
    mg.manual_seed(1)
    features = projected or HIDDEN
    inputs = [
        drawn(sum(sizes), gates * HIDDEN), drawn(gates * HIDDEN, features), drawn(gates * HIDDEN),
        drawn(sizes[0], features),
    ]  # fmt: skip
    inputs += [drawn(sizes[0], HIDDEN)] if kind == "lstm" else []
    inputs += [drawn(projected, HIDDEN)] if projected else []

    def layer(rows: Any, weight: Any, bias: Any, *rest: Any) -> Any:
        states, projection = (rest[:-1], rest[-1]) if projected else (rest, None)
        outputs, last = recurrent_layer(
            kind, rows, weight, bias, projection, states, sizes, backwards
        )
        return (outputs, *last)

    assert mg.autograd.gradcheck(layer, inputs, fast_mode=True)
    assert mg.autograd.gradgradcheck(layer, inputs, fast_mode=True)


def test_each_direction_of_a_layer_is_one_node() -> None:
    # One Node for each operator of a step, and one product for the gradient of the weight in each
    # step: workers took twice the time of one process.
    net = nn.LSTM(2, 3, num_layers=2, bidirectional=True)
    found = net(mg.randn(5, 4, 2))[0].sum()
    with mg.Engine("process", cpu_workers=2) as engine:
        assert "LstmBackward0 x 4" in str(engine.explain(found))
