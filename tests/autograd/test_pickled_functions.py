"""Functions that name `mpgrad` go to other processes, as Ray, Dask and joblib send them."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest

import mpgrad as mg
from tests.python_path import path_to

ROOT = Path(__file__).parents[2]

#: What a user's script defines; it is no module that the other process could import.
SCRIPT = """
import mpgrad as mg
from mpgrad import autograd


class Cube(mg.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.numpy() ** 3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x * x


def slope(start):
    x = mg.tensor(start, requires_grad=True)
    (grad,) = autograd.grad(Cube.apply(x).sum(), x)
    return grad.tolist()
"""


def in_a_fresh_interpreter(source: str, sent: bytes) -> bytes:
    return subprocess.run(
        [sys.executable, "-c", source],
        input=sent,
        env={"PYTHONPATH": path_to(ROOT)},
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
    ).stdout


def test_cloudpickle_takes_functions_of_a_script() -> None:
    namespace = {"__name__": "__main__"}
    exec(SCRIPT, namespace)
    sent = cloudpickle.dumps(namespace["slope"])
    source = "import pickle, sys; print(pickle.load(sys.stdin.buffer)([1.0, 2.0]))"
    assert in_a_fresh_interpreter(source, sent) == b"[3.0, 12.0]\n"


@pytest.mark.parametrize("module", [mg, mg.autograd, mg.utils], ids=lambda module: module.__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_lazy_package_travels_by_its_name(module: object, protocol: int) -> None:
    for pickler in (pickle, cloudpickle):
        sent = pickler.dumps(module, protocol)
        assert len(sent) < 100
        assert pickle.loads(sent) is module
    assert copy.deepcopy(module) is module


def test_a_fresh_interpreter_finds_the_package() -> None:
    source = "import pickle, sys; print(pickle.load(sys.stdin.buffer).ones(2).tolist())"
    assert in_a_fresh_interpreter(source, pickle.dumps(mg)) == b"[1.0, 1.0]\n"
