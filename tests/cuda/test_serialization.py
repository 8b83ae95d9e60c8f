"""``mg.save`` and ``mg.load``."""

from __future__ import annotations

import io
import os
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.arrays.cuda.device_arrays import CUDA
from tests.cuda.conftest import forget_driver
from tests.cuda.fake_driver import NO_GPUS


def through_a_file(value: Any, **options: Any) -> Any:
    file = io.BytesIO()
    mg.save(value, file)
    file.seek(0)
    return mg.load(file, **options)


def test_a_state_dict_comes_back(tmp_path: Path) -> None:
    network = mg.nn.Sequential(mg.nn.Linear(3, 2), mg.nn.BatchNorm1d(2))
    optimizer = mg.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    network(mg.ones(4, 3)).pow(2).sum().backward()
    optimizer.step()
    state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    mg.save(state, tmp_path / "state")
    loaded = mg.load(tmp_path / "state")
    assert loaded["epoch"] == 3
    for name, tensor in network.state_dict().items():
        assert mg.equal(loaded["network"][name], tensor)
    optimizer.load_state_dict(loaded["optimizer"])
    network.load_state_dict(loaded["network"])


def test_a_function_may_say_where_tensors_go() -> None:
    seen: list[Any] = []

    def here(storage: Any, location: str) -> Any:
        seen.append((len(storage), location))
        return storage

    for function in (here, lambda storage, location: None, lambda storage, location: storage.cpu()):
        loaded = through_a_file({"x": mg.arange(3)}, map_location=function)
        assert loaded["x"].tolist() == [0, 1, 2]
    assert seen == [(24, "cpu")]


def test_what_a_tensor_keeps() -> None:
    x = mg.tensor(np.arange(6.0).reshape(2, 3), requires_grad=True)
    values = {
        "x": x,
        "computed": x * 2,
        "complex": mg.tensor([1 + 2j]),
        "bool": mg.tensor([True]),
        "empty": mg.zeros(0, 3),
        "parameter": mg.nn.Parameter(mg.ones(2)),
        "transposed": x.detach().T,
    }
    loaded = through_a_file(values)
    for name, value in values.items():
        assert loaded[name].tolist() == value.tolist()
        assert (loaded[name].dtype, type(loaded[name])) == (value.dtype, type(value))
    assert loaded["x"].requires_grad
    assert loaded["computed"].is_leaf


def test_code_is_refused() -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, ("true",)

    with pytest.raises(pickle.UnpicklingError, match="could run any code"):
        through_a_file([mg.ones(1), Evil()])
    with pytest.raises(pickle.UnpicklingError, match=r"os\.|posix\.|nt\."):
        through_a_file(os.getcwd)
    assert through_a_file(os.getcwd, weights_only=False) is os.getcwd


def test_tensors_come_to_the_device_that_is_asked_for(two: None) -> None:
    pair = [mg.ones(2, device="cuda:0"), mg.zeros(2, device="cuda:1"), mg.ones(1)]

    def devices(map_location: Any) -> list[str]:
        return [str(t.device) for t in through_a_file(pair, map_location=map_location)]

    assert devices(None) == ["cuda:0", "cuda:1", "cpu"]
    assert devices("cpu") == ["cpu"] * 3
    assert devices(mg.device("cuda:1")) == ["cuda:1"] * 3
    assert devices({"cuda:1": "cuda:0"}) == ["cuda:0", "cuda:0", "cpu"]
    assert pickle.loads(pickle.dumps(pair[1])).get_device() == 1


def test_a_gpus_tensors_on_a_machine_without_one(
    gpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pickle.dumps(mg.ones(2, device="cuda"))
    monkeypatch.setenv("MPGRAD_CUDA_DRIVER", NO_GPUS)
    forget_driver()
    CUDA.in_use = False
    with pytest.raises(RuntimeError, match="map_location"):
        mg.load(io.BytesIO(data))
    assert mg.load(io.BytesIO(data), map_location="cpu").tolist() == [1, 1]


@pytest.mark.parametrize("kind", [partial(mg.optim.SGD, momentum=0.9), mg.optim.AdamW])
def test_an_optimizers_state_follows_its_parameters(gpus: str, kind: Any) -> None:
    weight = mg.ones(2, requires_grad=True)
    optimizer = kind([weight], lr=0.1)
    (weight * 2).sum().backward()
    optimizer.step()
    there = weight.detach().cuda().requires_grad_()
    other = kind([there], lr=0.1)
    other.load_state_dict(through_a_file(optimizer.state_dict(), map_location="cpu"))
    for tensor, its_optimizer in ((weight, optimizer), (there, other)):
        its_optimizer.zero_grad()
        (tensor * 2).sum().backward()
        its_optimizer.step()
    assert there.tolist() == weight.tolist()
