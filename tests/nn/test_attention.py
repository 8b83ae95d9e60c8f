"""Attention: outputs, shares and gradients against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import nn
from tests.semantics.paired import compare, seen
from tests.torch_outcomes import Of

generator = np.random.default_rng(0)
Q, K = generator.standard_normal((2, 2, 4, 3, 5))
SEES = np.array([[True, False, True], [False, False, False], [True, True, True]])

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True, "scale": 0.3},
    "bool mask": {"attn_mask": SEES},
    "added mask": {"attn_mask": np.arange(9.0).reshape(3, 3)},
    "gqa": {"enable_gqa": True},
}


@pytest.mark.parametrize("name", KINDS)
def test_scaled_dot_product_attention_is_pytorchs(name: str, of_torch: Of) -> None:
    def told(lib: Any) -> list[Any]:
        options = {
            key: lib.tensor(value) if isinstance(value, np.ndarray) else value
            for key, value in KINDS[name].items()
        }
        heads = 2 if name == "gqa" else 4
        arrays = (Q, K[:, :heads].copy(), (K * 2)[:, :heads].copy())
        inputs = [lib.tensor(value, requires_grad=True) for value in arrays]
        out = lib.nn.functional.scaled_dot_product_attention(*inputs, **options)
        (out * out).sum().backward()
        return seen([out, [x.grad for x in inputs]], exact=False)

    for oracle, theirs in of_torch(told):
        compare(told(mg), theirs, 1e-9, 1e-12, oracle)


#: Name -> (options of the layer, options of the call, whether all inputs are one).
LAYERS: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "self": ({}, {}, True),
    "batch first": ({"batch_first": True, "bias": False}, {"average_attn_weights": False}, False),
    "masks": (
        {},
        {
            "attn_mask": np.triu(np.ones((3, 3), bool), 1),
            "key_padding_mask": np.array([[False, False, True], [False, True, False]]),
        },
        True,
    ),
    "other features": ({"kdim": 5, "vdim": 2}, {"need_weights": False}, False),
    "unbatched": ({}, {}, True),
}


@pytest.mark.parametrize("name", LAYERS)
def test_multihead_attention_is_pytorchs(name: str, of_torch: Of) -> None:
    made, called, alone = LAYERS[name]
    numbers = np.random.default_rng(1)
    first = nn.MultiheadAttention(4, 2, **made).state_dict()
    start = {key: numbers.uniform(-1, 1, value.shape) for key, value in first.items()}
    shape = (3,) if name == "unbatched" else (2, 3) if "batch_first" in made else (3, 2)
    widths = (4, made.get("kdim", 4), made.get("vdim", 4))
    values = [numbers.standard_normal((*shape, width)) for width in widths]

    def told(lib: Any) -> list[Any]:
        layer = lib.nn.MultiheadAttention(4, 2, **made).double()
        layer.load_state_dict({key: lib.tensor(value) for key, value in start.items()})
        options = {
            key: lib.tensor(value) if isinstance(value, np.ndarray) else value
            for key, value in called.items()
        }
        inputs = [lib.tensor(value, requires_grad=True) for value in values]
        inputs = inputs[:1] if alone else inputs
        out, weights = layer(*(inputs * 3 if alone else inputs), **options)
        (out * out).sum().backward()
        grads = [*(x.grad for x in inputs), {k: p.grad for k, p in layer.named_parameters()}]
        return [
            repr(layer).split("(")[0],
            list(layer.state_dict()),
            seen([out, weights], exact=False),
            seen(grads, exact=False),
        ]

    for oracle, theirs in of_torch(told):
        ours = told(mg)
        assert ours[0] == theirs[0], oracle
        compare(ours[1], theirs[1], 1e-9, 1e-12, oracle)
        compare(ours[2], theirs[2], 1e-8, 1e-12, oracle)


def test_misuse_is_named() -> None:
    with pytest.raises(AssertionError, match="divisible by num_heads"):
        nn.MultiheadAttention(5, 2)
    x = mg.ones(3, 2, 4)
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        nn.MultiheadAttention(4, 2)(x, x, x, is_causal=True)
