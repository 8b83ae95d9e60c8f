"""``mg.cuda``, and modules, optimizers and batches on GPUs."""

from __future__ import annotations

import itertools
import threading
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.arrays.cpu.matmul_precision import DEFAULT_MATH, TF32_MATH, matmul
from mpgrad.arrays.cuda import cuda_driver, device_arrays
from mpgrad.nn import parallel
from mpgrad.recording.tensors.tensor import Tensor
from tests.cuda.fake_driver import TWO_GPUS

# ---------------------------------------------------------------------- mg.cuda


def test_what_is_there(gpus: str) -> None:
    assert mg.cuda.is_available()
    assert mg.cuda.device_count() == cuda_driver.device_count()
    assert mg.cuda.current_device() == 0
    assert mg.cuda.get_device_name()
    assert mg.cuda.get_device_capability() >= (3, 0)
    free, total = mg.cuda.mem_get_info()
    assert 0 < free <= total
    mg.cuda.synchronize()


def test_without_a_gpu() -> None:
    # What MPGRAD_CUDA_DRIVER says by default: on a machine with GPUs there are some.
    assert mg.cuda.is_available() == (mg.cuda.device_count() > 0)
    assert mg.cuda.empty_cache() is None


def test_cuda_stands_for_the_current_device(two: None) -> None:
    with mg.cuda.device(1):
        assert mg.cuda.current_device() == 1
        assert mg.ones(1, device="cuda").device == mg.device("cuda:1")
        with mg.cuda.device("cuda:0"):
            assert mg.ones(1).cuda().get_device() == 0
    assert mg.cuda.current_device() == 0
    mg.cuda.set_device(1)
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(mg.cuda.current_device()))
    thread.start()
    thread.join()
    assert (mg.cuda.current_device(), seen) == (1, [0])
    mg.cuda.set_device(0)
    with pytest.raises(ValueError, match="Expected a cuda device"):
        mg.cuda.set_device("cpu")


def test_memory_is_counted(gpus: str) -> None:
    before = mg.cuda.memory_allocated()
    x = mg.ones(1 << 18, device="cuda")
    assert mg.cuda.memory_allocated() - before >= x.nbytes
    assert mg.cuda.memory_reserved() >= mg.cuda.memory_allocated()
    del x
    assert mg.cuda.memory_allocated() == before


def test_the_precision_of_products(gpus: str) -> None:
    assert mg.backends.cuda.matmul is matmul
    mg.ones(1, device="cuda") * 2  # the backend exists
    chosen = device_arrays.cuda_namespace().arrays
    try:
        mg.backends.cuda.matmul.allow_tf32 = True
        assert mg.get_float32_matmul_precision() == "high"
        mg.set_float32_matmul_precision("medium")
        assert mg.backends.cuda.matmul.allow_tf32
        if gpus == TWO_GPUS:
            assert set(chosen.compute_types.values()) == {"TF32"}
        x = mg.rand(64, 64, device="cuda")
        np.testing.assert_allclose((x @ x).tolist(), (x.cpu() @ x.cpu()).tolist(), rtol=0.05)
        if gpus == TWO_GPUS:
            assert chosen.cuda.cublas.math_modes == {threading.get_ident(): TF32_MATH}
    finally:
        mg.set_float32_matmul_precision("highest")
    x @ x
    if gpus == TWO_GPUS:
        assert set(chosen.compute_types.values()) == {"default"}
        assert chosen.cuda.cublas.math_modes == {threading.get_ident(): DEFAULT_MATH}
    with pytest.raises(RuntimeError, match="not one of 'highest'"):
        mg.set_float32_matmul_precision("low")


# ---------------------------------------------------------------------- modules and optimizers


def small_network() -> mg.nn.Module:
    mg.manual_seed(1)
    return mg.nn.Sequential(
        mg.nn.Conv2d(1, 4, 3, padding=1),
        mg.nn.BatchNorm2d(4),
        mg.nn.ReLU(),
        mg.nn.MaxPool2d(2),
        mg.nn.Flatten(),
        mg.nn.Dropout(0.3),
        mg.nn.Linear(64, 5),
    )


def trained(device: str, make_optimizer: Any) -> tuple[list[float], mg.nn.Module]:
    """The losses of a few steps, and the network."""
    network = small_network().to(device)
    optimizer = make_optimizer(network.parameters())
    images, labels = mg.randn(6, 1, 8, 8).to(device), mg.randint(5, (6,)).to(device)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = mg.nn.functional.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, network


@pytest.mark.parametrize(
    "make_optimizer",
    [
        partial(mg.optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-3),
        partial(mg.optim.Adam, lr=0.01, weight_decay=1e-3, amsgrad=True),
        partial(mg.optim.RMSprop, lr=0.01, momentum=0.9, centered=True, eps=1e-2),
        partial(mg.optim.Adagrad, lr=0.01, maximize=True),
        mg.optim.Adadelta,
        mg.optim.Adamax,
        partial(mg.optim.NAdam, weight_decay=1e-3, decoupled_weight_decay=True),
        partial(mg.optim.RAdam, betas=(0.5, 0.7)),
        partial(mg.optim.ASGD, lr=0.1, t0=2),
        mg.optim.Rprop,
    ],
)
def test_training_on_a_gpu_is_training(gpus: str, make_optimizer: Any) -> None:
    (there, on_gpu), (here, on_cpu) = (trained(at, make_optimizer) for at in ("cuda", "cpu"))
    np.testing.assert_allclose(there, here, rtol=1e-5 if gpus == TWO_GPUS else 1e-3)
    assert {tensor.device for tensor in on_gpu.parameters()} == {mg.device("cuda", 0)}
    assert on_gpu.state_dict()["1.running_mean"].device == mg.device("cuda", 0)
    on_cpu.load_state_dict(on_gpu.state_dict())
    assert next(on_cpu.parameters()).device == mg.device("cpu")
    assert next(on_gpu.cpu().parameters()).device == mg.device("cpu")
    assert next(on_gpu.cuda().parameters()).grad.device == mg.device("cuda", 0)


def test_the_memory_of_lbfgs_follows_its_parameters(gpus: str) -> None:
    def optimizer_at(device: str) -> mg.optim.LBFGS:
        weight = mg.tensor([-1.2, 1.0], dtype=mg.float64).to(device).requires_grad_()
        optimizer = mg.optim.LBFGS([weight], max_iter=5, line_search_fn="strong_wolfe")

        def closure() -> mg.Tensor:
            optimizer.zero_grad()
            loss = 100 * (weight[1] - weight[0] ** 2) ** 2 + (1 - weight[0]) ** 2
            loss.backward()
            return loss

        optimizer.step(closure)
        return optimizer

    here, there = optimizer_at("cpu"), optimizer_at("cuda")
    (on_cpu,), (on_gpu,) = (each.param_groups[0]["params"] for each in (here, there))
    np.testing.assert_allclose(on_gpu.tolist(), on_cpu.tolist(), rtol=1e-6)
    here.load_state_dict(there.state_dict())
    assert here.state[on_cpu]["old_stps"][0].device == mg.device("cpu")


def test_a_module_that_moves_forgets_the_old_place_of_its_gradients(gpus: str) -> None:
    layer = mg.nn.Linear(2, 1)
    layer(mg.ones(1, 2)).sum().backward()
    layer.cuda()
    layer(mg.ones(1, 2, device="cuda")).sum().backward()
    assert layer.weight.grad.tolist() == [[2, 2]]


@pytest.mark.row("N7")
def test_a_model_over_two_devices(two: None) -> None:
    first, second = mg.nn.Linear(3, 4).to("cuda:0"), mg.nn.Linear(4, 2).to("cuda:1")
    x = mg.ones(5, 3, requires_grad=True)
    second(first(x.to("cuda:0")).tanh().to("cuda:1")).sum().to("cpu").backward()
    assert [p.grad.device.index for p in (*first.parameters(), *second.parameters())] == [
        0, 0, 1, 1,
    ]  # fmt: skip
    assert x.grad.device == x.device


# ---------------------------------------------------------------------- scatter and gather


class Pair(NamedTuple):
    left: Any
    right: Any


@pytest.mark.row("N7")
def test_scatter_and_gather_are_one_node_each(two: None) -> None:
    x = mg.arange(10.0).reshape(5, 2).requires_grad_()
    parts = parallel.scatter(x, [0, 1])
    assert [(p.shape, p.get_device()) for p in parts] == [((3, 2), 0), ((2, 2), 1)]
    assert {p.grad_fn.name() for p in parts} == {"Scatter"}
    joined = parallel.gather([part * (at + 2) for at, part in enumerate(parts)], 1)
    assert joined.grad_fn.name() == "Gather"
    assert joined.get_device() == 1
    joined.sum().backward()
    assert x.grad.tolist() == [[2, 2]] * 3 + [[3, 3]] * 2
    assert x.grad.device == x.device


def test_a_piece_that_nobody_used_has_a_gradient_of_zeros(two: None) -> None:
    x = mg.ones(4, requires_grad=True)
    first, _ = parallel.scatter(x, ["cuda:0", "cuda:1"])
    first.sum().backward()
    assert x.grad.tolist() == [1, 1, 0, 0]


def test_second_derivatives_through_scatter_and_gather(two: None) -> None:
    x = mg.tensor([1.0, 2.0, 3.0], device="cuda:1", requires_grad=True)
    y = parallel.gather([p**3 for p in parallel.scatter(x, [0, 1])], "cpu")
    (first,) = mg.grad(y.sum(), x, create_graph=True)
    (second,) = mg.grad(first.sum(), x)
    assert first.tolist() == [3, 12, 27]
    assert second.tolist() == [6, 12, 18]
    assert second.device == x.device


def test_structures_are_scattered_part_by_part(two: None) -> None:
    batch = {"x": mg.arange(4), "pair": Pair(mg.ones(4, 2), [mg.zeros(4)]), "name": "all"}
    first, second = parallel.scatter(batch, [0, 1])
    assert first["x"].tolist() == [0, 1]
    assert second["pair"].right[0].get_device() == 1
    assert (first["name"], type(second["pair"])) == ("all", Pair)
    outputs = [{"x": part["x"], "pair": part["pair"]} for part in (first, second)]
    joined = parallel.gather(outputs, "cpu")
    assert joined["x"].tolist() == [0, 1, 2, 3]
    assert joined["pair"].right[0].shape == (4,)
    with pytest.raises(ValueError, match="same number of keys"):
        parallel.gather([{"a": batch["x"]}, {"b": batch["x"]}], "cpu")


def test_scalars_are_gathered_to_a_vector(two: None) -> None:
    with pytest.warns(UserWarning, match="unsqueeze and return a vector"):
        joined = parallel.gather([mg.tensor(float(d), device=f"cuda:{d}") for d in (0, 1)], 0)
    assert joined.tolist() == [0, 1]


def test_fewer_rows_than_devices(two: None) -> None:
    assert len(parallel.scatter(mg.ones(1, 3), [0, 1])) == 1


def test_data_parallel_gradients_are_those_of_the_whole_batch(two: None) -> None:
    mg.manual_seed(0)
    weight = mg.randn(3, 2, dtype=mg.float64, requires_grad=True)
    batch = mg.randn(6, 3, dtype=mg.float64)
    pieces = parallel.scatter(batch, [0, 1])
    outputs: list[Tensor] = [piece @ weight.to(piece.device) for piece in pieces]
    parallel.gather(outputs, "cpu").pow(2).sum().backward()
    whole = weight.detach().clone().requires_grad_()
    (batch @ whole).pow(2).sum().backward()
    np.testing.assert_allclose(weight.grad.tolist(), whole.grad.tolist(), rtol=1e-12)
    assert list(itertools.chain(*[p.shape for p in pieces])) == [3, 3, 3, 3]
