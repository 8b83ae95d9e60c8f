"""The front end's own tests, run once more with their tensors on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mpgrad as mg
from tests.python_path import path_to

ROOT = Path(__file__).resolve().parents[2]

#: Where devices matter most: histories, in-place changes, second derivatives, hooks, Functions.
FILES = "create_graph function function_twice functional hooks in_place validation views"


def run_on_gpu(gpus: str, files: str, marks: str, **environment: str) -> None:
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "tests.cuda.everything_on_gpu"),
            *("-p", "no:cacheprovider", "-m", f"{marks} and not gpu and not slow"),
            *(f"tests/semantics/test_{name}.py" for name in files.split()),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "MPGRAD_CUDA_DRIVER": gpus,
            "PYTHONPATH": path_to(ROOT),
            **environment,
        },
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-4000:]


@pytest.mark.slow
def test_the_front_end_holds_on_a_gpu(gpus: str) -> None:
    run_on_gpu(gpus, FILES, "not process")


@pytest.mark.slow
@pytest.mark.process
def test_gpu_workers_give_the_bits_of_the_calling_process(gpus: str) -> None:
    run_on_gpu(gpus, "create_graph validation", "process", MPGRAD_GPUS="all")


@pytest.mark.process
def test_tensors_without_elements_reach_a_worker(gpus: str) -> None:
    with mg.Engine("process", cpu_workers=1, gpus=[0]) as engine:
        x = mg.zeros(0, 3, device="cuda", requires_grad=True)
        (x * x).sum().backward()
        assert x.grad.shape == (0, 3)
        assert engine.statistics().tasks == {"worker 1": 1}


@pytest.mark.process
def test_a_function_finds_its_threads_default_device(gpus: str) -> None:
    class Doubled(mg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * mg.full((3,), 2.0)

    mg.set_default_device("cuda")
    try:
        with mg.Engine("process", cpu_workers=1, gpus=[0]):
            x = mg.ones(3, requires_grad=True)
            Doubled.apply(x).sum().backward()
    finally:
        mg.set_default_device(None)
    assert x.grad.tolist() == [2, 2, 2]


def test_the_default_device(gpus: str) -> None:
    assert mg.get_default_device() == mg.device("cpu")
    mg.set_default_device("cuda")
    try:
        assert mg.ones(2).device == mg.device("cuda", 0)
        assert mg.tensor([1.0]).is_cuda
        assert mg.ones(2, device="cpu").is_cpu
        assert mg.randn(2).is_cuda
    finally:
        mg.set_default_device(None)
    assert mg.ones(2).is_cpu


@pytest.mark.parametrize("fast_mode", [False, True])
def test_gradcheck_on_a_gpu(gpus: str, fast_mode: bool) -> None:
    x = mg.rand(2, 3, dtype=mg.float64, device="cuda", requires_grad=True)
    w = mg.rand(3, dtype=mg.complex128, device="cuda", requires_grad=True)
    options = {"fast_mode": fast_mode, "check_batched_grad": True}
    assert mg.autograd.gradcheck(lambda x, w: (x * w).sum(1).abs(), (x, w), **options)
    assert mg.autograd.gradgradcheck(lambda x: x.sin() @ x.T, (x,), fast_mode=fast_mode)


def test_jacobians_on_a_gpu(gpus: str) -> None:
    x = mg.tensor([1.0, 2.0], device="cuda")
    found = mg.autograd.functional.jacobian(lambda x: x**2, x)
    assert found.tolist() == [[2, 0], [0, 4]]
    assert found.device == x.device
    assert mg.autograd.functional.hessian(lambda x: (x**3).sum(), x).tolist() == [[6, 0], [0, 12]]
