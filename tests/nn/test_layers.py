"""Layers: shapes, start values, modes; and forward and gradients against PyTorch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import nn
from mpgrad.nn import init
from tests.semantics.paired import compare, seen
from tests.torch_outcomes import Of

#: Name -> (layer, PyTorch's arguments, shape of the input).
LAYERS = {
    "Linear": ((5, 3), {}, (4, 5)),
    "Linear no bias": ((5, 3), {"bias": False}, (2, 4, 5)),
    "Conv2d": ((2, 4, 3), {"padding": 1, "stride": 2}, (2, 2, 7, 6)),
    "Conv2d groups": ((4, 4, (3, 2)), {"groups": 2, "bias": False, "dilation": 2}, (2, 4, 7, 6)),
    "Conv2d same": ((2, 3, 4), {"padding": "same", "padding_mode": "reflect"}, (2, 2, 7, 6)),
    "Conv1d": ((4, 6, 3), {"padding": 1, "stride": 2, "groups": 2}, (2, 4, 9)),
    "Conv1d same": ((2, 3, 4), {"padding": "same", "dilation": 2}, (2, 2, 9)),
    "Conv1d circular": ((2, 3, 3), {"padding": 2, "padding_mode": "circular"}, (2, 2, 5)),
    "Conv1d unbatched": ((2, 3, 3), {}, (2, 5)),
    "ConvTranspose2d": ((4, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}, (2, 4, 3, 4)),
    "ConvTranspose2d groups": ((4, 6, (2, 3)), {"groups": 2, "dilation": 2}, (2, 4, 3, 4)),
    "ConvTranspose1d": ((4, 3, 4), {"stride": 2, "padding": 1, "bias": False}, (2, 4, 5)),
    "ConvTranspose1d unbatched": ((4, 3, 4), {"stride": 3}, (4, 5)),
    "BatchNorm1d": ((3,), {}, (6, 3)),
    "BatchNorm1d average": ((3,), {"momentum": None}, (6, 3, 2)),
    "BatchNorm2d": ((3,), {"eps": 1e-3, "momentum": 0.3}, (4, 3, 2, 5)),
    "BatchNorm2d plain": ((3,), {"affine": False, "track_running_stats": False}, (4, 3, 2, 5)),
    "GroupNorm": ((2, 4), {}, (2, 4, 3, 2)),
    "GroupNorm plain": ((4, 4), {"affine": False, "eps": 1e-3}, (2, 4, 3)),
    "InstanceNorm1d": ((3,), {}, (2, 3, 5)),
    "InstanceNorm2d": ((3,), {"affine": True, "track_running_stats": True}, (2, 3, 5, 2)),
    "InstanceNorm2d unbatched": ((3,), {}, (3, 5, 2)),
    "Upsample": ((), {"scale_factor": 2}, (2, 3, 4, 3)),
    "Upsample exact": ((), {"size": (3, 7), "mode": "nearest-exact"}, (2, 3, 4, 5)),
    "Upsample odd": ((), {"scale_factor": 1.6}, (2, 3, 7)),
    "Upsample bilinear": ((), {"size": (7, 2), "mode": "bilinear"}, (2, 3, 4, 3)),
    "Upsample factor": ((), {"scale_factor": (1.7, 2.5), "mode": "bilinear"}, (2, 3, 4, 3)),
    "Upsample linear": ((7,), {"mode": "linear", "align_corners": True}, (2, 3, 4)),
    "UpsamplingBilinear2d": ((), {"scale_factor": 2}, (2, 3, 4, 3)),
    "PixelShuffle": ((2,), {}, (2, 8, 3, 2)),
    "PixelUnshuffle": ((2,), {}, (2, 2, 4, 6)),
    "ZeroPad2d": ((1,), {}, (2, 3, 4, 3)),
    "ConstantPad1d": (((1, 2), 3.5), {}, (2, 3, 4)),
    "ReflectionPad2d": (((1, 2, 0, 1),), {}, (2, 3, 4, 3)),
    "ReplicationPad1d": ((2,), {}, (2, 3, 4)),
    "CircularPad2d": ((1,), {}, (2, 3, 4, 3)),
    "ReLU": ((), {}, (3, 4)),
    "Tanh": ((), {}, (3, 4)),
    "GELU": ((), {}, (3, 4)),
    "GELU tanh": (("tanh",), {}, (3, 4)),
    "SiLU": ((), {}, (3, 4)),
    "Softmax": ((1,), {}, (3, 4)),
    "LogSoftmax": ((), {"dim": -1}, (3, 4)),
    "BatchNorm2d no bias": ((3,), {"bias": False}, (4, 3, 2, 5)),
    "BatchNorm3d": ((3,), {}, (4, 3, 2, 2, 3)),
    "LayerNorm": ((4,), {}, (2, 3, 4)),
    "LayerNorm of two": (((3, 4),), {"eps": 1e-3}, (2, 3, 4)),
    "LayerNorm no bias": ((4,), {"bias": False}, (2, 3, 4)),
    "LayerNorm plain": ((4,), {"elementwise_affine": False}, (2, 3, 4)),
    "Sigmoid": ((), {}, (3, 4)),
    "Flatten": ((), {}, (3, 4, 2)),
    "MaxPool2d": ((2,), {}, (2, 3, 6, 4)),
    "MaxPool2d overlapping": ((3,), {"stride": 2, "padding": 1}, (2, 3, 6, 5)),
    "Identity": ((7,), {"anything": 1}, (3, 4)),
    "LeakyReLU": ((0.2,), {}, (3, 4)),
    "LeakyReLU inplace": ((), {"inplace": True}, (3, 4)),
    "ELU": ((), {"alpha": 0.7}, (3, 4)),
    "CELU": ((0.5,), {}, (3, 4)),
    "SELU": ((), {}, (3, 4)),
    "SELU inplace": ((True,), {}, (3, 4)),
    "Mish": ((), {}, (3, 4)),
    "Hardsigmoid": ((), {}, (3, 4)),
    "Hardswish": ((), {}, (3, 4)),
    "Hardtanh": ((-0.5, 0.3), {}, (3, 4)),
    "Hardtanh inplace": ((), {"inplace": True}, (3, 4)),
    "ReLU6": ((), {}, (3, 4)),
    "Threshold": ((0.1, 20.0), {}, (3, 4)),
    "Softplus": ((2, 1), {}, (3, 4)),
    "LogSigmoid": ((), {}, (3, 4)),
    "Softsign": ((), {}, (3, 4)),
    "Tanhshrink": ((), {}, (3, 4)),
    "Hardshrink": ((), {}, (3, 4)),
    "Softshrink": ((0.3,), {}, (3, 4)),
    "Softmin": ((1,), {}, (3, 4)),
    "PReLU": ((), {}, (3, 4)),
    "PReLU channels": ((4,), {"init": 0.1}, (3, 4, 2)),
    "GLU": ((1,), {}, (3, 4)),
    "Unflatten": ((1, (2, -1)), {}, (3, 4)),
    "MaxPool1d": ((3, 2), {"padding": 1, "ceil_mode": True}, (2, 3, 8)),
    "AvgPool1d": ((3,), {"stride": 2, "padding": 1, "count_include_pad": False}, (2, 3, 8)),
    "AvgPool1d unbatched": ((2,), {}, (3, 8)),
    "AdaptiveAvgPool1d": ((3,), {}, (2, 3, 8)),
    "AdaptiveAvgPool2d": (((1, None),), {}, (2, 3, 4, 5)),
    "AvgPool2d": (((2, 3),), {"padding": (1, 0)}, (2, 3, 6, 6)),
    "Conv3d": ((2, 3, 3), {"padding": 1, "stride": 2}, (2, 2, 5, 4, 4)),
    "Conv3d groups": ((4, 4, (2, 1, 3)), {"groups": 2, "dilation": (1, 2, 1)}, (1, 4, 3, 4, 4)),
    "Conv3d same": ((2, 2, (1, 3, 3)), {"padding": "same", "bias": False}, (1, 2, 3, 4, 3)),
    "Conv3d unbatched": ((2, 3, 2), {"padding_mode": "replicate", "padding": 1}, (2, 3, 3, 2)),
    "ConvTranspose3d": (
        (4, 3, 3),
        {"stride": 2, "padding": 1, "output_padding": 1},
        (1, 4, 2, 3, 2),
    ),
    "ConvTranspose3d groups": ((4, 2, (2, 3, 1)), {"groups": 2, "dilation": 2}, (2, 4, 2, 2, 3)),
    "ConvTranspose2d far": (
        (2, 3, (2, 3)),
        {"dilation": 4, "stride": (2, 1), "padding": (1, 2), "output_padding": (3, 2)},
        (2, 2, 3, 4),
    ),
    "MaxPool3d": ((2,), {"stride": 1, "padding": 1}, (2, 2, 3, 4, 3)),
    "MaxPool3d ceil": (((2, 1, 3),), {"ceil_mode": True, "dilation": (1, 2, 1)}, (2, 3, 4, 4)),
    "AvgPool3d": ((2,), {"padding": 1, "count_include_pad": False}, (2, 2, 3, 4, 3)),
    "AvgPool3d divisor": ((2,), {"ceil_mode": True, "divisor_override": 3}, (2, 2, 3, 4, 3)),
    "AdaptiveAvgPool3d": (((2, None, 3),), {}, (2, 2, 3, 2, 5)),
    "AdaptiveMaxPool1d": ((3,), {}, (2, 3, 8)),
    "AdaptiveMaxPool2d": (((2, None),), {}, (2, 3, 5, 4)),
    "AdaptiveMaxPool3d": ((2,), {}, (2, 3, 4, 3)),
    "LPPool1d": ((2, 3), {"stride": 2}, (2, 3, 8)),
    "LPPool2d": ((4, (2, 3)), {"ceil_mode": True}, (2, 3, 5, 6)),
    "LPPool3d": ((2, 2), {}, (1, 2, 4, 4, 3)),
    "RMSNorm": ((4,), {}, (2, 3, 4)),
    "RMSNorm plain": (((3, 4),), {"eps": 1e-3, "elementwise_affine": False}, (2, 3, 4)),
    "LocalResponseNorm": ((3,), {"alpha": 0.5, "k": 2.0}, (2, 5, 3, 2)),
    "LocalResponseNorm lines": ((2,), {"beta": 0.5}, (2, 5, 3)),
    "ChannelShuffle": ((2,), {}, (2, 4, 3)),
    "Softmax2d": ((), {}, (2, 3, 2, 2)),
    "Unfold": (((2, 3),), {"padding": 1, "stride": 2, "dilation": (1, 2)}, (2, 2, 5, 6)),
    "Fold": (((4, 5), (2, 3)), {"padding": 1, "stride": (2, 1)}, (2, 12, 15)),
    "Dropout1d nothing": ((0.0,), {}, (2, 3, 4)),
    "Dropout2d all": ((1.0,), {}, (2, 3, 4, 2)),
    "Dropout3d nothing": ((0.0,), {}, (2, 3, 2, 2, 2)),
    "AlphaDropout all": ((1.0,), {}, (2, 3)),
    "FeatureAlphaDropout nothing": ((0.0,), {}, (2, 3, 4)),
    "RReLU fixed": ((0.25, 0.25), {}, (2, 3)),
    "TransformerEncoderLayer": ((4, 2, 6), {"dropout": 0.0}, (3, 2, 4)),
    "TransformerEncoderLayer first": (
        (4, 1, 6, 0.0, "gelu"),
        {"norm_first": True, "batch_first": True, "bias": False},
        (2, 3, 4),
    ),
}


def _like(value: mg.Tensor, generator: np.random.Generator) -> np.ndarray:
    """Start values for a parameter or a running statistic, the same in both libraries."""
    array = value.numpy()
    return array if array.dtype.kind != "f" else np.asarray(generator.uniform(0.1, 1, array.shape))


@pytest.mark.parametrize("name", LAYERS)
def test_forward_and_gradients_are_pytorchs(name: str, of_torch: Of) -> None:
    args, options, shape = LAYERS[name]
    kind = name.split()[0]
    first = getattr(nn, kind)(*args, **options).double().state_dict()
    generator = np.random.default_rng(0)
    start = {key: _like(value, generator) for key, value in first.items()}
    values = generator.standard_normal((3, *shape))

    def trained(lib: Any) -> list[Any]:
        layer = getattr(lib.nn, kind)(*args, **options).double()
        # What PyTorch calls a Linear that its quantization leaves alone.
        text = repr(layer).replace("NonDynamicallyQuantizableLinear", "Linear")
        layer.load_state_dict({key: lib.tensor(value) for key, value in start.items()})
        outputs, grads = [], []
        for mode, value in zip((True, True, False), values, strict=True):
            layer.train(mode)
            x = lib.tensor(value, requires_grad=True)
            # Multiplied: a leaf must not be written into.
            outputs.append(layer(x * 1))
            (outputs[-1] * outputs[-1]).sum().backward()
            grads.append(x.grad)
        grads += [{key: parameter.grad} for key, parameter in layer.named_parameters()]
        return [text, *(seen(part, exact=False) for part in (outputs, grads, layer.state_dict()))]

    text, outputs, grads, state = trained(mg)
    for oracle, (their_text, their_outputs, their_grads, their_state) in of_torch(trained):
        assert text == their_text, oracle
        compare(outputs, their_outputs, 1e-10, 1e-12, f"{oracle}: outputs")
        # PyTorch's hardsigmoid takes 1 / 6 in float32.
        rtol = 1e-7 if kind == "Hardsigmoid" else 1e-8
        compare(grads, their_grads, rtol, 1e-10, f"{oracle}: gradients")
        compare(state, their_state, 1e-10, 0.0, f"{oracle}: state")


def test_losses_are_pytorchs(of_torch: Of) -> None:
    generator = np.random.default_rng(0)
    logits, labels = generator.standard_normal((5, 3)), generator.integers(0, 3, 5)
    weight = np.array([1.0, 2.0, 0.5])

    def losses(lib: Any) -> list[float]:
        cross_entropy = lib.nn.CrossEntropyLoss(lib.tensor(weight), label_smoothing=0.1)
        found = [cross_entropy(lib.tensor(logits), lib.tensor(labels))]
        for reduction in ("mean", "sum"):
            squares = lib.nn.MSELoss(reduction=reduction)
            found.append(squares(lib.tensor(logits), lib.tensor(logits[::-1].copy())))
        return [loss.item() for loss in found]

    for oracle, theirs in of_torch(losses):
        assert losses(mg) == pytest.approx(theirs), oracle


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


def test_containers_find_what_is_in_them(of_torch: Of) -> None:
    def told(lib: Any) -> list[Any]:
        values = lib.nn.ParameterList([lib.ones(2), 5])
        values.append(lib.zeros(3))
        values[0] = lib.nn.Parameter(lib.ones(1))
        named = lib.nn.ParameterDict({"a": lib.ones(2), "b": lib.nn.Parameter(lib.ones(4))})
        popped = list(named.pop("a").shape)
        branches = lib.nn.ModuleDict({"x": lib.nn.LeakyReLU(), "y": lib.nn.Linear(2, 3)})
        branches.update([("z", lib.nn.Identity())])
        del branches["x"]
        whole = lib.nn.Module()
        whole.values, whole.named, whole.branches = values, named, branches
        return [
            [(name, list(value.shape)) for name, value in whole.state_dict().items()],
            [len(values), len(values[1:]), [type(value).__name__ for value in values]],
            [popped, list(named), "b" in named, "a" in named, list(named.keys())],
            [repr(branches), list(branches), "y" in branches, len(branches)],
        ]

    for oracle, theirs in of_torch(told):
        assert [_listed(part) for part in told(mg)] == theirs, oracle


def _listed(value: Any) -> Any:
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value


def test_instance_norm_of_halves_has_running_statistics_of_halves() -> None:
    layer = mg.nn.InstanceNorm1d(3, track_running_stats=True)
    x = mg.rand(2, 3, 5).half()
    expected = layer(x.float())
    halves = mg.nn.InstanceNorm1d(3, track_running_stats=True).half()
    found = halves(x)
    assert (found.dtype, halves.running_mean.dtype) == (mg.float16, mg.float16)
    assert mg.allclose(found.float(), expected, atol=1e-2)
    assert mg.allclose(halves.running_mean.float(), layer.running_mean, atol=1e-3)
