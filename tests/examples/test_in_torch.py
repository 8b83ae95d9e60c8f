"""Programs in PyTorch and JAX, in their original libraries, give what their plain loops give."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.python_path import path_to

ROOT = Path(__file__).parents[2]

#: Program -> the library that it needs beside torch, and a small size.
PROGRAMS = {
    "ode_fleet": ("torchdiffeq", "3"),
    "portfolios": ("qpth", "4"),
    "persistent_homology": ("gudhi", "3", "30"),
    "soft_dtw": ("numba", "3", "20"),
    "trees": ("torch", "4", "8"),
    "maml": ("torch", "3", "2"),
}
#: What stands in the place of mpgrad.torch for the plain program.
PLAIN = """
import pathlib, sys, torch, mpgrad.torch as mt
torch.set_num_threads(1)
mt.parallel_map = lambda fn, *its, shared=(): [fn(*i, *shared) for i in zip(*its, strict=True)]
mt.parallelize = lambda *classes: None
exec(compile(pathlib.Path(sys.argv.pop(1)).read_text(), "<cell>", "exec"))
"""


def printed(*command: str, mode: str) -> str:
    environment = {**os.environ, "PYTHONPATH": path_to(ROOT), "MPGRAD_ENGINE": mode}
    found = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=300
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def numbers(text: str) -> list[float]:
    return [
        float(word.strip(","))
        for word in text.split()
        if word.strip(",-").replace(".", "").isdigit()
    ]


@pytest.mark.process
@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_in_torch(name: str) -> None:
    library, *sizes = PROGRAMS[name]
    pytest.importorskip("torch")
    pytest.importorskip(library)
    path = str(ROOT / "examples" / "in_torch" / f"{name}.py")
    local = printed(path, *sizes, mode="local")
    assert "loss" in local
    assert printed(path, *sizes, mode="process") == local
    plain = printed("-c", PLAIN, path, *sizes, mode="local")
    # A parameter that an item uses twice is summed in another grouping.
    assert numbers(plain) == pytest.approx(numbers(local), rel=1e-4)


@pytest.mark.process
@pytest.mark.slow
def test_a_program_in_jax() -> None:
    pytest.importorskip("jax")
    path = str(ROOT / "examples" / "in_jax" / "callbacks.py")
    local = printed(path, "3", mode="local")
    assert printed(path, "3", mode="process") == local
    assert abs(numbers(local)[-1]) < 1e-4
