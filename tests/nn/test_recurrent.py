"""Recurrent layers and Embedding: outputs, states and gradients against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import nn
from tests.semantics.paired import compare, seen
from tests.torch_outcomes import Of

#: Name -> (arguments, options, shape of the input, shapes of the states that are given).
LAYERS: dict[str, tuple[tuple[int, ...], dict[str, Any], tuple[int, ...], list[Any]]] = {
    "RNN": ((3, 4), {}, (5, 2, 3), []),
    "RNN relu": ((3, 4), {"nonlinearity": "relu", "bias": False}, (5, 2, 3), [(1, 2, 4)]),
    "LSTM": ((3, 4), {}, (5, 2, 3), []),
    "LSTM deep": (
        (3, 4, 2),
        {"bidirectional": True, "batch_first": True},
        (2, 5, 3),
        [(4, 2, 4), (4, 2, 4)],
    ),
    "LSTM unbatched": ((3, 4), {"bias": False}, (5, 3), [(1, 4), (1, 4)]),
    "GRU": ((3, 4), {"batch_first": True}, (2, 5, 3), []),
    "GRU deep": ((3, 4, 2), {"bidirectional": True}, (5, 2, 3), [(4, 2, 4)]),
    "GRU unbatched": ((3, 4), {}, (5, 3), []),
    "RNNCell": ((3, 4), {"nonlinearity": "relu"}, (2, 3), [(2, 4)]),
    "LSTMCell": ((3, 4), {}, (2, 3), [(2, 4), (2, 4)]),
    "LSTMCell from zeros": ((3, 4), {"bias": False}, (3,), []),
    "GRUCell": ((3, 4), {}, (2, 3), [(2, 4)]),
}


@pytest.mark.parametrize("name", LAYERS)
def test_outputs_states_and_gradients_are_pytorchs(name: str, of_torch: Of) -> None:
    args, options, shape, state_shapes = LAYERS[name]
    kind = name.split()[0]
    generator = np.random.default_rng(0)
    first = getattr(nn, kind)(*args, **options).state_dict()
    start = {key: generator.uniform(-1, 1, value.shape) for key, value in first.items()}
    values, *given = (generator.standard_normal(s) for s in (shape, *state_shapes))

    def told(lib: Any) -> list[Any]:
        layer = getattr(lib.nn, kind)(*args, **options).double()
        layer.load_state_dict({key: lib.tensor(value) for key, value in start.items()})
        inputs = [lib.tensor(value, requires_grad=True) for value in (values, *given)]
        states = tuple(inputs[1:]) if len(inputs) == 3 else inputs[1] if given else None
        results = _flat(layer(inputs[0], states))
        sum((result * result).sum() for result in results).backward()
        grads = [*(x.grad for x in inputs), {k: p.grad for k, p in layer.named_parameters()}]
        return [repr(layer), seen(results, exact=False), seen(grads, exact=False)]

    text, results, grads = told(mg)
    for oracle, (their_text, their_results, their_grads) in of_torch(told):
        assert text == their_text, oracle
        compare(results, their_results, 1e-10, 1e-12, f"{oracle}: results")
        compare(grads, their_grads, 1e-8, 1e-10, f"{oracle}: gradients")


def _flat(value: Any) -> list[Any]:
    if isinstance(value, tuple):
        return [part for item in value for part in _flat(item)]
    return [value]


def test_embedding_is_pytorchs(of_torch: Of) -> None:
    table = np.random.default_rng(0).standard_normal((5, 3))

    def told(lib: Any) -> list[Any]:
        layer = lib.nn.Embedding(5, 3, padding_idx=-4, max_norm=1.5).double()
        padding = layer.weight[1].tolist()
        layer.load_state_dict({"weight": lib.tensor(table)})
        rows = layer(lib.tensor([[0, 1], [4, 0]]))
        (rows * rows).sum().backward()
        frozen = lib.nn.Embedding.from_pretrained(lib.tensor(table))
        found = [rows, layer.weight.grad, layer.weight, frozen(lib.tensor(2))]
        return [repr(layer), repr(frozen), padding, seen(found, exact=False)]

    *text, found = told(mg)
    for oracle, (*their_text, theirs) in of_torch(told):
        assert text == their_text, oracle
        compare(found, theirs, 1e-6, 1e-12, oracle)


def test_dropout_between_layers_is_of_training_only() -> None:
    mg.manual_seed(0)
    layer, x = nn.GRU(3, 4, num_layers=2, dropout=0.5), mg.ones(5, 2, 3)
    assert not mg.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    assert mg.equal(layer(x)[0], layer(x)[0])


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: nn.LSTM(3, 4)(mg.ones(5, 2, 2)), RuntimeError, "Expected 3, got 2"),
        (lambda: nn.LSTM(3, 4)(mg.ones(3)), ValueError, "2D or 3D, got 1D"),
        (lambda: nn.GRU(3, 4)(mg.ones(5, 2, 3), mg.ones(1, 1, 4)), RuntimeError, "Expected hidden"),
        (lambda: nn.RNN(3, 4, nonlinearity="step"), ValueError, "Unknown nonlinearity 'step'"),
        (lambda: nn.RNN(3, 4, dropout=2.0), ValueError, "number in range"),
        (lambda: nn.LSTMCell(3, 4)(mg.ones(2, 2)), RuntimeError, "got 2 expected 3"),
        (lambda: nn.GRUCell(3, 4)(mg.ones(2, 3), mg.ones(1, 4)), RuntimeError, "inconsistent"),
        (lambda: nn.Embedding(3, 4, padding_idx=3), AssertionError, "Padding_idx"),
    ],
)
def test_misuse_is_named(make: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        make()
