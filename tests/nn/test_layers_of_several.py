"""Layers with several inputs: outputs and gradients against PyTorch."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import nn
from tests.semantics.paired import compare, seen
from tests.torch_outcomes import Of

numbers = np.random.default_rng(3)


def _of(*shape: int) -> np.ndarray:
    return numbers.standard_normal(shape)


_CAUSAL = np.triu(np.full((3, 3), -np.inf), 1)
_INDICES = np.array([[0, 2, 1], [3, 3, 0]])
_POSITIONS = np.array([[[1, 3, 6], [9, 8, 11]]])

#: Name -> (arguments of the layer, its options, inputs; options of the call).
LAYERS: dict[
    str, tuple[tuple[Any, ...], dict[str, Any], tuple[np.ndarray, ...], dict[str, Any]]
] = {
    "Bilinear": ((3, 2, 4), {}, (_of(5, 3), _of(5, 2)), {}),
    "EmbeddingBag": ((4, 3), {"mode": "sum"}, (_INDICES,), {"per_sample_weights": _of(2, 3)}),
    "EmbeddingBag mean": ((4, 3), {"padding_idx": 3}, (_INDICES,), {}),
    "EmbeddingBag max": (
        (4, 3),
        {"mode": "max", "include_last_offset": True},
        (_INDICES.reshape(-1),),
        {"offsets": np.array([0, 4, 4, 6])},
    ),
    "CosineSimilarity": ((), {"dim": 0}, (_of(3, 4), _of(3, 4)), {}),
    "PairwiseDistance": ((1,), {"keepdim": True}, (_of(3, 4), _of(3, 4)), {}),
    "MaxUnpool1d": ((2,), {}, (_of(1, 2, 3), _POSITIONS % 6), {"output_size": (1, 2, 7)}),
    "MaxUnpool2d": ((2,), {"stride": 2}, (_of(1, 2, 1, 3), _POSITIONS.reshape(1, 2, 1, 3)), {}),
    "MaxUnpool3d": ((2,), {}, (_of(1, 2, 1, 1, 3), _POSITIONS.reshape(1, 2, 1, 1, 3)), {}),
    "MultiheadAttention": (
        (4, 2),
        {"add_bias_kv": True, "add_zero_attn": True},
        (_of(3, 2, 4), _of(5, 2, 4), _of(5, 2, 4)),
        {"key_padding_mask": np.array([[False] * 4 + [True], [True] + [False] * 4])},
    ),
    "TransformerDecoderLayer": (
        (4, 2, 6),
        {"dropout": 0.0, "batch_first": True},
        (_of(2, 3, 4), _of(2, 5, 4)),
        {"tgt_mask": _CAUSAL, "tgt_is_causal": True},
    ),
    "TransformerDecoderLayer first": (
        (4, 2, 6),
        {"dropout": 0.0, "norm_first": True},
        (_of(3, 2, 4), _of(5, 2, 4)),
        {"memory_key_padding_mask": np.array([[False] * 5, [True] * 2 + [False] * 3])},
    ),
    "Transformer": (
        (4, 2, 2, 1, 6),
        {"dropout": 0.0},
        (_of(5, 2, 4), _of(3, 2, 4)),
        {"tgt_mask": _CAUSAL},
    ),
    "TripletMarginWithDistanceLoss": (
        (),
        {"swap": True, "margin": 0.7},
        (_of(3, 4), _of(3, 4), _of(3, 4)),
        {},
    ),
    "MultiMarginLoss": ((), {"p": 2, "margin": 0.5}, (_of(3, 4), np.array([1, 0, 3])), {}),
    "MultiLabelMarginLoss": (
        (),
        {"reduction": "sum"},
        (_of(2, 4), np.array([[3, 0, -1, 1], [1, -1, 2, 3]])),
        {},
    ),
    "CTCLoss": (
        (),
        {},
        (_of(5, 2, 4), np.array([[1, 2, 2], [3, 0, 0]]), np.array([5, 4]), np.array([3, 1])),
        {},
    ),
    "CTCLoss impossible": (
        (1,),
        {"zero_infinity": True, "reduction": "sum"},
        (_of(4, 2, 4), np.array([2, 2, 2, 0, 3]), np.array([4, 3]), np.array([3, 2])),
        {},
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_outputs_and_gradients_are_pytorchs(name: str, of_torch: Of) -> None:
    args, made, inputs, called = LAYERS[name]
    kind = name.split()[0]
    first = getattr(nn, kind)(*args, **made).double().state_dict()
    start = {key: np.random.default_rng(7).uniform(-1, 1, x.shape) for key, x in first.items()}

    def told(lib: Any) -> list[Any]:
        with warnings.catch_warnings():  # of PyTorch's about its fast paths
            warnings.simplefilter("ignore")
            return run(lib)

    def run(lib: Any) -> list[Any]:
        layer = getattr(lib.nn, kind)(*args, **made).double()
        layer.load_state_dict({key: lib.tensor(value) for key, value in start.items()})
        given = [lib.tensor(value, requires_grad=value.dtype.kind == "f") for value in inputs]
        options = {
            key: lib.tensor(value) if isinstance(value, np.ndarray) else value
            for key, value in called.items()
        }
        if kind == "CTCLoss":
            out = layer(lib.nn.functional.log_softmax(given[0], -1), *given[1:])
        else:
            out = layer(*given, **options)
        outputs = list(out) if isinstance(out, tuple) else [out]
        (outputs[0] * outputs[0]).sum().backward()
        grads = [x.grad for x in given] + [p.grad for p in layer.parameters()]
        return seen([outputs, grads], exact=False)

    for oracle, theirs in of_torch(told):
        compare(told(mg), theirs, 1e-8, 1e-11, oracle)


def test_a_transformer_is_causal_with_its_own_mask() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    x = mg.randn(3, 1, 4)
    whole = encoder(x, mask=mask, is_causal=True)
    part = encoder(x[:2], mask=mask[:2, :2])
    np.testing.assert_allclose(whole[:2].detach().numpy(), part.detach().numpy(), atol=1e-6)


def test_dropout_drops_whole_channels() -> None:
    mg.manual_seed(0)
    out = nn.Dropout2d(0.5)(mg.ones(8, 16, 2, 2)).numpy()
    assert set(np.unique(out)) == {0.0, 2.0}
    assert (out == out[:, :, :1, :1]).all()


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    mg.manual_seed(0)
    out = nn.AlphaDropout(0.3)(mg.randn(100_000)).numpy()
    assert abs(out.mean()) < 0.02
    assert abs(out.var() - 1) < 0.02


def test_gumbel_softmax_draws_with_the_probabilities() -> None:
    mg.manual_seed(0)
    logits = mg.log(mg.tensor([0.1, 0.3, 0.6])).repeat(20_000, 1).requires_grad_()
    draws = nn.functional.gumbel_softmax(logits, tau=0.5, hard=True)
    assert set(np.unique(draws.detach().numpy())) == {0.0, 1.0}
    np.testing.assert_allclose(draws.detach().mean(0).numpy(), [0.1, 0.3, 0.6], atol=0.02)
    draws[:, 0].sum().backward()
    assert np.abs(logits.grad.numpy()).sum() > 0


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: nn.Bilinear(0, 1, 1), ValueError, "in1_features must be > 0"),
        (lambda: nn.Conv3d(2, 2, 3)(mg.ones(1, 3, 4, 4, 4)), RuntimeError, "to have 2 channels"),
        (lambda: nn.MaxPool3d(2)(mg.ones(2, 2)), RuntimeError, "Expected 4D or 5D"),
        (lambda: nn.TransformerEncoderLayer(4, 2, activation="x"), RuntimeError, "relu/gelu"),
        (lambda: nn.EmbeddingBag(3, 2)(mg.tensor([1])), ValueError, "offsets has to be a 1D"),
        (lambda: nn.functional.unfold(mg.ones(1, 1, 2, 2), 3), RuntimeError, "no window"),
        (
            lambda: nn.functional.grid_sample(mg.ones(1, 1, 2, 2), mg.ones(2, 1, 1, 2), "cubic"),
            ValueError,
            "expected mode to be one of",
        ),
    ],
)
def test_misuse_is_named(make: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        make()
