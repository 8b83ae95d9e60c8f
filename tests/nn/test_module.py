"""Module: what it registers, how its tree is walked, and what it saves and loads."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import nn


class Net(nn.Module):
    """A layer, a parameter, a buffer, and a layer that appears twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.again = self.first
        self.scale = nn.Parameter(mg.ones(4))
        self.register_buffer("offset", mg.zeros(4))
        self.register_buffer("scratch", mg.zeros(1), persistent=False)

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        return self.first(x) * self.scale + self.offset


def names(entries) -> list[str]:
    return [name for name, _ in entries]


def test_attributes_are_registered_and_found_once() -> None:
    net = Net()
    assert names(net.named_parameters()) == ["scale", "first.weight", "first.bias"]
    assert names(net.named_buffers()) == ["offset", "scratch"]
    assert names(net.named_modules()) == ["", "first"]
    assert len(list(net.parameters())) == 3
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in net.parameters())


def test_assigning_none_or_another_kind_moves_the_registration() -> None:
    net = Net()
    net.scale = None
    assert names(net.named_parameters()) == ["first.weight", "first.bias"]
    with pytest.raises(TypeError, match="cannot assign 'int' as parameter 'scale'"):
        net.scale = 3
    net.first = nn.Parameter(mg.ones(2))
    assert "first" in dict(net.named_parameters())
    assert names(net.named_modules()) == ["", "again"]
    del net.again
    assert not hasattr(net, "again")


def test_what_is_missing_is_named() -> None:
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'weigth'"):
        Net().weigth  # noqa: B018
    with pytest.raises(NotImplementedError, match='missing the required "forward"'):
        nn.Module()(1)


def test_assigning_before_init_is_named() -> None:
    class Early(nn.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(1, 1)

    with pytest.raises(AttributeError, match=r"before Module.__init__\(\) call"):
        Early()


@pytest.mark.parametrize("name", ["a.b", "", "training"])
def test_names_that_cannot_be_paths_are_refused(name: str) -> None:
    with pytest.raises(KeyError):
        nn.Module().register_buffer(name, mg.zeros(1))


def test_train_and_eval_reach_every_module() -> None:
    net = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout()))
    assert not any(module.training for module in net.eval().modules())
    assert all(module.training for module in net.train().modules())


def test_apply_visits_children_first() -> None:
    seen: list[str] = []
    net = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh()))
    assert net.apply(lambda module: seen.append(type(module).__name__)) is net
    assert seen == ["ReLU", "Tanh", "Sequential", "Sequential"]


def test_zero_grad_drops_or_fills() -> None:
    net = Net()
    net(mg.ones(2, 3)).sum().backward()
    kept = net.scale.grad
    net.zero_grad(set_to_none=False)
    assert kept is not None
    assert np.all(net.scale.grad.numpy() == 0)
    net.zero_grad()
    assert all(parameter.grad is None for parameter in net.parameters())


def test_requires_grad_freezes() -> None:
    net = Net().requires_grad_(False)
    assert not net(mg.ones(2, 3)).requires_grad


def test_state_travels_between_networks() -> None:
    mg.manual_seed(0)
    source, target = Net(), Net()
    state = source.state_dict()
    # A Module in two places is saved under both names, and `scratch` is not persistent.
    assert set(state) == {
        "scale",
        "offset",
        "first.weight",
        "first.bias",
        "again.weight",
        "again.bias",
    }
    assert not any(tensor.requires_grad for tensor in state.values())
    weight = target.first.weight
    assert target.load_state_dict(state) == ([], [])
    assert target.first.weight is weight
    assert weight.requires_grad
    np.testing.assert_array_equal(weight.detach().numpy(), source.first.weight.detach().numpy())


def test_loading_bumps_the_version() -> None:
    layer = nn.Linear(2, 2)
    x = mg.ones(1, 2, requires_grad=True)
    out = layer(x).sum()
    layer.load_state_dict(nn.Linear(2, 2).state_dict())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    layer = nn.Linear(2, 2)
    before = layer.bias.detach().numpy().copy()
    state = {"bias": np.ones(2), "weight": np.ones((3, 2)), "extra": np.ones(1)}
    with pytest.raises(RuntimeError) as caught:
        layer.load_state_dict(state)
    for said in ("loading state_dict for Linear", "size mismatch for weight", "extra"):
        assert said in str(caught.value)
    np.testing.assert_array_equal(layer.bias.detach().numpy(), before)


def test_a_missing_name_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "bias"'):
        nn.Linear(2, 2).load_state_dict({"weight": np.ones((2, 2))})


def test_a_state_that_holds_no_array_is_refused() -> None:
    with pytest.raises(RuntimeError, match='parameter named "bias", expected'):
        nn.Linear(1, 1).load_state_dict({"weight": np.ones((1, 1)), "bias": 1.0})


def test_strict_false_reports_what_did_not_match() -> None:
    layer = nn.Linear(2, 2)
    result = layer.load_state_dict({"bias": np.ones(2), "extra": np.ones(1)}, strict=False)
    assert (result.missing_keys, result.unexpected_keys) == (["weight"], ["extra"])
    assert layer.bias.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_are_whole_and_separate(copied) -> None:
    net = Net()
    other = copied(net)
    assert isinstance(other.scale, nn.Parameter)
    assert other.again is other.first
    with mg.no_grad():
        other.scale.zero_()
    assert net.scale.tolist() == [1.0] * 4


def test_to_converts_what_floats_and_gradients_follow() -> None:
    norm = nn.BatchNorm1d(2)
    norm(mg.randn(4, 2)).sum().backward()
    norm.double()
    assert norm.weight.dtype == norm.weight.grad.dtype == norm.running_var.dtype == np.float64
    assert norm.num_batches_tracked.dtype == np.int64
    norm(mg.randn(4, 2, dtype=mg.float64)).sum().backward()


def test_repr_shows_the_tree() -> None:
    net = nn.Sequential(nn.Linear(1, 2), nn.Sequential(nn.ReLU()))
    assert repr(net) == (
        "Sequential(\n"
        "  (0): Linear(in_features=1, out_features=2, bias=True)\n"
        "  (1): Sequential(\n"
        "    (0): ReLU()\n"
        "  )\n"
        ")"
    )


def test_a_parameter_shares_memory_with_its_tensor() -> None:
    data = mg.zeros(3)
    parameter = nn.Parameter(data)
    data.fill_(2)
    assert parameter.tolist() == [2.0] * 3
    assert parameter.is_leaf
    assert repr(parameter).startswith("Parameter containing:\ntensor(")
    with pytest.raises(RuntimeError, match="only Tensors of floating point"):
        nn.Parameter(mg.zeros(3, dtype=mg.int64))


def test_large_parameters_are_born_in_the_shared_arena() -> None:
    from mpgrad.shm.arena import client_arena

    before = client_arena().statistics().used_bytes
    layer = nn.Linear(256, 256)
    assert client_arena().statistics().used_bytes - before >= layer.weight.nbytes


def test_containers() -> None:
    net = nn.Sequential({"up": nn.Linear(1, 2), "down": nn.Linear(2, 1)})
    assert names(net.named_children()) == ["up", "down"]
    assert isinstance(net[:1], nn.Sequential)
    assert net[-1] is net.down
    net[0] = nn.Tanh()
    assert isinstance(net.up, nn.Tanh)
    with pytest.raises(IndexError, match="out of range"):
        net[2]
    with pytest.raises(TypeError, match="is not a Module subclass"):
        nn.Sequential(len)  # type: ignore[arg-type]

    layers = nn.ModuleList([nn.Linear(1, 1)]).append(nn.Linear(1, 1))
    assert names(layers.named_parameters()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert len(layers) == 2


def test_parts_are_found_by_their_names() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3)))
    assert net.get_submodule("") is net
    assert net.get_submodule("1.0") is net[1][0]
    assert net.get_parameter("0.weight") is net[0].weight
    assert net.get_buffer("1.0.running_mean") is net[1][0].running_mean
    for find, name in (
        (net.get_submodule, "1.1"),
        (net.get_parameter, "0.gamma"),
        (net.get_buffer, "0.weight"),
    ):
        with pytest.raises(AttributeError, match=r"gamma|weight|1"):
            find(name)


@pytest.mark.parametrize(
    "name", ["pairing_layers Fold", "pooling_kind_layers MaxPool3d", "resizing ZeroPad2d"]
)
def test_pickles_of_classes_that_have_moved(name: str) -> None:
    module, cls = name.split()
    source = f"import pickle; print(pickle.loads(b'cmpgrad.nn.{module}\\n{cls}\\n.').__module__)"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("mpgrad.nn.")
    assert module not in done.stdout
