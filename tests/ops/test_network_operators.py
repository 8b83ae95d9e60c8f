"""What the operator table cannot show: running statistics, random masks, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpgrad.tensor_methods  # noqa: F401  (completes Tensor)
from mpgrad.ops import generators
from mpgrad.ops.neural.activation import log_softmax
from mpgrad.ops.neural.convolution import conv2d
from mpgrad.ops.neural.dropout import dropout
from mpgrad.ops.neural.fractional_pooling import fractional_max_pool2d
from mpgrad.ops.neural.loss import cross_entropy, nll_loss
from mpgrad.ops.neural.normalization import batch_norm, layer_norm
from mpgrad.ops.neural.pooling import max_pool2d
from mpgrad.ops.neural.regression_loss import mse_loss
from mpgrad.ops.new_tensors import creation
from mpgrad.ops.reductions.reduction import logsumexp
from tests.ops.serial_backward import gradients
from tests.torch_outcomes import Of


def test_batch_norm_updates_running_statistics_as_pytorch_does(of_torch: Of) -> None:
    x = np.random.default_rng(0).normal(size=(5, 3, 2))
    arrays = x, np.array([0.5, 0.0, 1.0]), np.array([1.0, 2.0, 3.0])

    def on_torch(torch: Any) -> list[np.ndarray]:
        x, *statistics = (torch.tensor(array) for array in arrays)
        torch.nn.functional.batch_norm(x, *statistics, training=True, momentum=0.3)
        return [statistic.numpy() for statistic in statistics]

    x, *ours = (creation.tensor(array) for array in arrays)
    batch_norm(x, *ours, training=True, momentum=0.3)
    assert [one._version for one in ours] == [1, 1]
    for oracle, theirs in of_torch(on_torch):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one.numpy(), other, rtol=1e-12, err_msg=oracle)


def test_dropout_zeroes_a_share_and_scales_the_rest() -> None:
    generators.manual_seed(0)
    x = creation.ones(100, 100, requires_grad=True)
    y = dropout(x, 0.25)
    values = set(np.unique(y._array).tolist())
    assert values == {0.0, np.float32(1 / 0.75).item()}
    assert abs(float((y._array == 0).mean()) - 0.25) < 0.02
    (grad,) = gradients([y], [np.ones(y.shape, np.float32)], [x])
    assert (grad == y._array).all()
    generators.manual_seed(0)
    assert (dropout(x, 0.25)._array == y._array).all()
    assert dropout(x, 0.25, training=False) is x


def test_extreme_logits_stay_finite() -> None:
    x = creation.tensor([[1000.0, 0.0], [-1000.0, -1000.0]], requires_grad=True)
    with np.errstate(over="raise", invalid="raise"):
        loss = cross_entropy(x, creation.tensor([0, 1]))
        assert loss.item() == pytest.approx(np.log(2) / 2)
        assert log_softmax(x, 1).tolist()[0] == [0.0, -1000.0]
        assert logsumexp(x, 1).tolist() == pytest.approx([1000.0, -1000 + np.log(2)])


def test_logsumexp_of_nothing_but_minus_infinity() -> None:
    x = creation.tensor([-np.inf, -np.inf], requires_grad=True)
    with np.errstate(divide="ignore"):
        total = logsumexp(x, 0)
    assert total.item() == -np.inf
    with np.errstate(invalid="ignore"):
        (grad,) = gradients([total], [np.ones((), np.float32)], [x])
    assert np.isnan(grad).all()  # as in PyTorch: no element is more to blame than another


def _zeros(*shape: int) -> Any:
    return creation.zeros(*shape)


@pytest.mark.parametrize(
    ("action", "error", "words"),
    [
        (lambda: conv2d(_zeros(1, 2, 4, 4), _zeros(3, 3, 2, 2)), RuntimeError, "3 channels"),
        (lambda: conv2d(_zeros(4, 4), _zeros(3, 2, 2, 2)), RuntimeError, "expected 4D"),
        (lambda: conv2d(_zeros(1, 1, 2, 2), _zeros(1, 1, 3, 3)), RuntimeError, "Kernel size"),
        (lambda: max_pool2d(_zeros(1, 1, 4, 4), 2, padding=2), RuntimeError, "at most half"),
        (
            lambda: cross_entropy(_zeros(2, 3), creation.tensor([0, 3])),
            IndexError,
            "Target 3 is out of bounds",
        ),
        (lambda: nll_loss(_zeros(2, 3), creation.tensor([0])), ValueError, "batch_size"),
        (
            lambda: mse_loss(_zeros(2), _zeros(2), reduction="average"),
            ValueError,
            "not a valid value",
        ),
        (lambda: dropout(_zeros(2), 1.5), ValueError, "between 0 and 1"),
        (lambda: layer_norm(_zeros(2, 3), (4,)), RuntimeError, "normalized_shape"),
        (lambda: fractional_max_pool2d(_zeros(1, 3, 3), -1, 2), RuntimeError, "do not fit"),
        (
            lambda: batch_norm(_zeros(1, 3), None, None, training=True),
            ValueError,
            "more than 1 value per channel",
        ),
    ],
)
def test_misuse_raises_what_pytorch_raises(action: Any, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        action()
