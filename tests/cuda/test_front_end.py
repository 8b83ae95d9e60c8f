"""The front end's own tests, run once more with their tensors on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mpgrad as mg

ROOT = Path(__file__).resolve().parents[2]

#: Where devices matter most: histories, in-place changes, second derivatives, hooks, Functions.
FILES = (
    "create_graph function function_outputs function_twice functional gradcheck hooks in_place "
    "overwriting saved_tensors saved_tensor_hooks validation view_histories views checkpoint"
)


@pytest.mark.slow
def test_the_front_end_holds_on_a_gpu(gpus: str) -> None:
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "tests.cuda.everything_on_gpu"),
            *("-p", "no:cacheprovider", "-m", "not process and not gpu and not slow"),
            *(f"tests/semantics/test_{name}.py" for name in FILES.split()),
        ],
        cwd=ROOT,
        env={**os.environ, "MPGRAD_CUDA_DRIVER": gpus, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-4000:]


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
