"""Losses as Modules, with PyTorch's arguments: values and gradients against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import nn
from tests.semantics.paired import compare, seen
from tests.torch_outcomes import Of

generator = np.random.default_rng(0)
X, Y, Z = generator.standard_normal((3, 4, 3))
P, Q, V = generator.uniform(0.1, 0.9, (3, 4, 3))
SIGNS = np.where(generator.standard_normal((4, 3)) > 0, 1.0, -1.0)
LABELS, COUNTS = np.array([0, 2, 1, 2]), np.array([[0.0, 1, 2], [3, 4, 0], [1, 1, 5], [2, 9, 0]])
WEIGHTS = np.array([1.0, 2.0, 0.5])

#: Name -> (options, arguments); options that are arrays become tensors.
LOSSES: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "L1Loss": ({}, (X, Y)),
    "MSELoss": ({}, (X, Y)),
    "SmoothL1Loss": ({"beta": 0.6}, (X, Y)),
    "HuberLoss": ({"delta": 0.6}, (X, Y)),
    "KLDivLoss": ({}, (np.log(P), Q)),
    "KLDivLoss of logarithms": ({"log_target": True}, (np.log(P), np.log(Q))),
    "NLLLoss": ({"weight": WEIGHTS, "ignore_index": 1}, (np.log(P), LABELS)),
    "BCELoss": ({"weight": WEIGHTS}, (P, Q)),
    "BCEWithLogitsLoss": ({"weight": WEIGHTS, "pos_weight": WEIGHTS[::-1].copy()}, (X, Q)),
    "SoftMarginLoss": ({}, (X, SIGNS)),
    "MultiLabelSoftMarginLoss": ({"weight": WEIGHTS}, (X, (SIGNS + 1) / 2)),
    "HingeEmbeddingLoss": ({"margin": 0.7}, (X, SIGNS)),
    "MarginRankingLoss": ({"margin": 0.3}, (X, Y, SIGNS)),
    "CosineEmbeddingLoss": ({"margin": 0.1}, (X, Y, SIGNS[:, 0].copy())),
    "TripletMarginLoss": ({}, (X, Y, Z)),
    "TripletMarginLoss swap": ({"swap": True, "p": 3.0, "margin": 2.0}, (X, Y, Z)),
    "PoissonNLLLoss": ({}, (X, COUNTS)),
    "PoissonNLLLoss full": ({"log_input": False, "full": True}, (P, COUNTS)),
    "GaussianNLLLoss": ({}, (X, Y, V)),
    "GaussianNLLLoss full": ({"full": True}, (X, Y, V[:, :1].copy())),
}


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_are_pytorchs(name: str, of_torch: Of) -> None:
    options, arguments = LOSSES[name]

    def told(lib: Any) -> list[Any]:
        found: list[Any] = []
        made = {
            key: lib.tensor(value) if isinstance(value, np.ndarray) else value
            for key, value in options.items()
        }
        for reduction in ("mean", "sum", "none"):
            loss = getattr(lib.nn, name.split()[0])(reduction=reduction, **made)
            tensors = [lib.tensor(value) for value in arguments]
            inputs = tensors[:1] if len(tensors) == 2 else tensors
            inputs = [x.requires_grad_() for x in inputs if x.dtype == lib.float64]
            value = loss(*tensors)
            (value * value).sum().backward()
            found.append([value, [x.grad for x in inputs], sorted(loss.state_dict())])
        return seen(found, exact=False)

    for oracle, theirs in of_torch(told):
        compare(told(mg), theirs, 1e-9, 1e-12, oracle)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda x: nn.HuberLoss(delta=0.0)(x, x), RuntimeError, "non-positive values for delta"),
        (lambda x: nn.TripletMarginLoss(margin=0.0)(x, x, x), ValueError, "greater than 0"),
        (lambda x: nn.GaussianNLLLoss()(x, x, -x), ValueError, "negative entry"),
        (lambda x: nn.GaussianNLLLoss()(x, x, mg.ones(5)), ValueError, "incorrect size"),
        (lambda x: nn.CosineEmbeddingLoss()(x, x, x), RuntimeError, "2D target tensor expects 3D"),
        (lambda x: nn.L1Loss(reduction="middle")(x, x), ValueError, "middle is not a valid value"),
        (lambda x: nn.PReLU(3)(x), RuntimeError, "parameter numbers = 3 and channel size = 2"),
        (lambda x: nn.GLU(0)(mg.ones(3, 2)), RuntimeError, "Halving dimension must be even"),
        (lambda x: nn.Hardtanh(1.0, 0.0), ValueError, "max_val must be larger"),
        (lambda x: nn.ModuleDict({"a": x}), TypeError, "Tensor is not a Module"),
        (lambda x: nn.ParameterList([x])[1], IndexError, "index 1 is out of range"),
    ],
)
def test_misuse_is_named(make: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        make(mg.ones(2, 2))
