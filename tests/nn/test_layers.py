"""Layers: shapes, start values, modes; and forward and gradients against PyTorch."""

from __future__ import annotations

import math

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import nn
from mpgrad.nn import init

#: Name -> (layer, PyTorch's arguments, shape of the input).
LAYERS = {
    "Linear": ((5, 3), {}, (4, 5)),
    "Linear no bias": ((5, 3), {"bias": False}, (2, 4, 5)),
    "Conv2d": ((2, 4, 3), {"padding": 1, "stride": 2}, (2, 2, 7, 6)),
    "Conv2d groups": ((4, 4, (3, 2)), {"groups": 2, "bias": False, "dilation": 2}, (2, 4, 7, 6)),
    "BatchNorm1d": ((3,), {}, (6, 3)),
    "BatchNorm1d average": ((3,), {"momentum": None}, (6, 3, 2)),
    "BatchNorm2d": ((3,), {"eps": 1e-3, "momentum": 0.3}, (4, 3, 2, 5)),
    "BatchNorm2d plain": ((3,), {"affine": False, "track_running_stats": False}, (4, 3, 2, 5)),
    "ReLU": ((), {}, (3, 4)),
    "Tanh": ((), {}, (3, 4)),
    "GELU": ((), {}, (3, 4)),
    "GELU tanh": (("tanh",), {}, (3, 4)),
    "SiLU": ((), {}, (3, 4)),
    "Softmax": ((1,), {}, (3, 4)),
    "LogSoftmax": ((), {"dim": -1}, (3, 4)),
    "LayerNorm": ((4,), {}, (2, 3, 4)),
    "LayerNorm of two": (((3, 4),), {"eps": 1e-3}, (2, 3, 4)),
    "LayerNorm no bias": ((4,), {"bias": False}, (2, 3, 4)),
    "LayerNorm plain": ((4,), {"elementwise_affine": False}, (2, 3, 4)),
    "Sigmoid": ((), {}, (3, 4)),
    "Flatten": ((), {}, (3, 4, 2)),
    "MaxPool2d": ((2,), {}, (2, 3, 6, 4)),
    "MaxPool2d overlapping": ((3,), {"stride": 2, "padding": 1}, (2, 3, 6, 5)),
    "AvgPool2d": (((2, 3),), {"padding": (1, 0)}, (2, 3, 6, 6)),
}


def to_array(tensor) -> np.ndarray:
    return tensor.detach().numpy()


@pytest.mark.parametrize("name", LAYERS)
def test_forward_and_gradients_are_pytorchs(name: str) -> None:
    torch = pytest.importorskip("torch")
    args, options, shape = LAYERS[name]
    kind = name.split()[0]
    theirs = getattr(torch.nn, kind)(*args, **options).double()
    ours = getattr(nn, kind)(*args, **options).double()
    if kind in ("Linear", "Conv2d", "Flatten", "ReLU"):
        assert repr(ours) == repr(theirs)
    ours.load_state_dict({key: value.numpy() for key, value in theirs.state_dict().items()})

    values = np.random.default_rng(0).standard_normal((3, *shape))
    for mode in (True, True, False):
        ours.train(mode)
        theirs.train(mode)
        x, y = mg.tensor(values[0], requires_grad=True), torch.tensor(values[0], requires_grad=True)
        out, expected = ours(x), theirs(y)
        np.testing.assert_allclose(to_array(out), to_array(expected), rtol=1e-10, atol=1e-12)
        (out * out).sum().backward()
        (expected * expected).sum().backward()
        np.testing.assert_allclose(to_array(x.grad), to_array(y.grad), rtol=1e-8, atol=1e-10)
        values = values[1:]
    for (key, mine), (other, its) in zip(
        ours.named_parameters(), theirs.named_parameters(), strict=True
    ):
        assert key == other
        np.testing.assert_allclose(to_array(mine.grad), to_array(its.grad), rtol=1e-8, atol=1e-10)
    state = theirs.state_dict()
    assert list(ours.state_dict()) == list(state)
    for key, mine in ours.state_dict().items():
        np.testing.assert_allclose(mine.numpy(), state[key].numpy(), rtol=1e-10)


def test_losses_are_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(0)
    logits, labels = generator.standard_normal((5, 3)), generator.integers(0, 3, 5)
    weight = np.array([1.0, 2.0, 0.5])
    ours = nn.CrossEntropyLoss(mg.tensor(weight), label_smoothing=0.1)
    theirs = torch.nn.CrossEntropyLoss(torch.tensor(weight), label_smoothing=0.1)
    expected = theirs(torch.tensor(logits), torch.tensor(labels)).item()
    assert ours(mg.tensor(logits), mg.tensor(labels)).item() == pytest.approx(expected)
    for reduction in ("mean", "sum"):
        expected = torch.nn.MSELoss(reduction=reduction)(
            torch.tensor(logits), torch.tensor(logits[::-1].copy())
        ).item()
        found = nn.MSELoss(reduction)(mg.tensor(logits), mg.tensor(logits[::-1].copy()))
        assert found.item() == pytest.approx(expected)


def test_linear_by_hand() -> None:
    layer = nn.Linear(2, 1)
    layer.load_state_dict({"weight": np.array([[2.0, 3.0]]), "bias": np.array([1.0])})
    layer(mg.tensor([[1.0, 10.0], [2.0, 20.0]])).sum().backward()
    assert layer(mg.tensor([1.0, 10.0])).tolist() == [33.0]
    assert layer.weight.grad.tolist() == [[3.0, 30.0]]
    assert layer.bias.grad.tolist() == [2.0]


def test_default_start_values_fill_their_interval() -> None:
    mg.manual_seed(0)
    for layer, fan_in in ((nn.Linear(400, 300), 400), (nn.Conv2d(40, 60, 3), 360)):
        bound = 1 / math.sqrt(fan_in)
        for parameter in layer.parameters():
            values = parameter.detach().numpy()
            assert 0.95 * bound < np.abs(values).max() <= bound
            assert abs(values.mean()) < 0.1 * bound


def test_the_same_seed_gives_the_same_network() -> None:
    def weights() -> bytes:
        mg.manual_seed(7)
        return nn.Linear(3, 3).weight.detach().numpy().tobytes()

    assert weights() == weights()


def test_dropout_only_while_training() -> None:
    mg.manual_seed(0)
    layer, x = nn.Dropout(0.5), mg.ones(1000)
    out = layer(x).numpy()
    assert set(np.unique(out)) == {0.0, 2.0}
    assert 400 < np.count_nonzero(out) < 600
    assert layer.eval()(x) is x


def test_batch_norm_updates_only_while_training() -> None:
    layer = nn.BatchNorm1d(2, momentum=0.5)
    layer(mg.tensor([[0.0, 1.0], [2.0, 5.0]]))
    assert layer.running_mean.tolist() == [0.5, 1.5]
    assert layer.running_var.tolist() == [1.5, 4.5]
    layer.eval()(mg.tensor([[9.0, 9.0]]))
    assert layer.running_mean.tolist() == [0.5, 1.5]
    assert layer.num_batches_tracked.item() == 1


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: nn.Conv2d(3, 4, 3, groups=2), ValueError, "in_channels must be divisible"),
        (lambda: nn.Dropout(1.5), ValueError, "between 0 and 1, but got 1.5"),
        (lambda: nn.BatchNorm2d(3)(mg.ones(2, 3)), ValueError, r"expected 4D input \(got 2D"),
        (lambda: nn.BatchNorm1d(3)(mg.ones(2, 4)), ValueError, "expected 3 channels"),
        (lambda: nn.Linear(3, 4)(mg.ones(2, 5)), RuntimeError, "linear"),
        (lambda: init.calculate_gain("step"), ValueError, "Unsupported nonlinearity step"),
        (lambda: init.xavier_uniform_(mg.ones(3)), ValueError, "fewer than 2 dimensions"),
        (lambda: init.kaiming_normal_(mg.ones(3, 3), mode="in"), ValueError, "Mode in not"),
    ],
)
def test_misuse_is_named(make, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        make()


@pytest.mark.parametrize(
    ("fill", "deviation"),
    [
        (init.xavier_uniform_, math.sqrt(2 / 500)),
        (init.xavier_normal_, math.sqrt(2 / 500)),
        (lambda t: init.kaiming_uniform_(t, nonlinearity="relu"), math.sqrt(2 / 300)),
        (lambda t: init.kaiming_normal_(t, mode="fan_out"), math.sqrt(2 / 200)),
        (lambda t: init.normal_(t, 0.0, 3.0), 3.0),
        (lambda t: init.uniform_(t, -1.0, 1.0), 1 / math.sqrt(3)),
        (init.zeros_, 0.0),
    ],
)
def test_initialisation_has_the_right_deviation(fill, deviation: float) -> None:
    mg.manual_seed(0)
    weight = nn.Parameter(mg.ones(200, 300))
    assert fill(weight) is weight
    assert weight.detach().numpy().std() == pytest.approx(deviation, rel=0.02)
    assert weight.is_leaf
