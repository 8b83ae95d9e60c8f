"""Ten programs of different trades give what their plain loops give, wherever their calls run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import nn
from tests.python_path import path_to

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "examples" / "both_passes"

#: Program -> a small size.
SIZES = {
    "black_box": "200",
    "heat_solver": "500",
    "hmc": "4",
    "kalman_bank": "8",
    "molecules": "12",
    "monte_carlo": "50",
    "neural_ode": "5",
    "portfolio": "10",
    "render_scene": "16",
    "soft_dtw": "10",
}
#: The gradients of a parameter that a call uses many times are added call by call.
NOT_IN_BITS = {"neural_ode"}
#: Its calls draw random numbers of their own.
NOT_AS_THE_LOOP = {"monte_carlo"}

#: These end with the times of a step on the reader's machine.
TIMED = {"hmc", "portfolio", "soft_dtw"}

#: Runs a program with each engine, as a cell of a notebook runs (no file, no module that could be
#: imported), and then with a loop in the place of ``parallel_map``.
RUNS = """
import pathlib, sys, warnings
import mpgrad as mg

def loop(fn, *iterables, shared=(), out="list"):
    args, kwargs = ((), shared) if isinstance(shared, dict) else (shared, {})
    found = [fn(*item, *args, **kwargs) for item in zip(*iterables, strict=True)]
    return found if out == "list" else sum(found[1:], found[0])

code = compile(pathlib.Path(sys.argv.pop(1)).read_text(), "<cell>", "exec")
for mode in ("local", "process", "auto", "loop"):
    with mg.Engine("local" if mode == "loop" else mode, cpu_workers=2):
        if mode == "loop":
            mg.parallel_map = loop
            # A program that times itself in workers is told that its loop is a slow one.
            warnings.simplefilter("ignore", mg.errors.PerformanceWarning)
        exec(code, {"__name__": "__main__"})
    print("--")
"""


def printed(folder: Path, *arguments: str, mode: str = "local") -> str:
    """What a Python prints that runs in another folder, and writes nothing on stderr."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments], cwd=folder,
        env={**os.environ, "PYTHONPATH": path_to(ROOT), "MPGRAD_ENGINE": mode},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def without_times(text: str) -> str:
    return "".join(line for line in text.splitlines(True) if not line.endswith(" ms\n"))


def test_each_program_is_tried() -> None:
    assert {path.stem for path in PROGRAMS.glob("*.py")} == {*SIZES}


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_a_program(name: str, tmp_path: Path) -> None:
    if name == "heat_solver":
        pytest.importorskip("scipy")
    arguments = str(PROGRAMS / f"{name}.py"), SIZES[name]
    local, process, auto, loop, _ = printed(tmp_path, "-c", RUNS, *arguments).split("--\n")
    assert local
    assert [text.count(" ms\n") for text in (local, process, auto)] == [2 * (name in TIMED)] * 3
    local, process, auto, loop = map(without_times, (local, process, auto, loop))
    assert local == process == auto
    if name in NOT_IN_BITS:
        number = re.compile(r"-?\d+\.\d+")
        found, expected = (list(map(float, number.findall(text))) for text in (local, loop))
        assert np.allclose(found, expected, rtol=1e-5)
    elif name not in NOT_AS_THE_LOOP:
        assert local == loop


#: A program whose classes and functions lie in modules of its own, beside it and in a package.
MAIN = """
import models.losses as losses
from models import Model, Refused, scale
import settings

def run(model, x):
    settings_used = settings.FACTOR
    return losses.loss(model(x * settings_used * scale()))

def refuses(k):
    raise Refused(k)

import mpgrad as mg
mg.manual_seed(0)
model = Model()
outs = mg.parallel_map(lambda x: run(model, x), [mg.ones(2), mg.ones(2) * 2])
mg.stack(outs).sum().backward()
print(outs[0].item(), model.inner.weight.grad.tolist())
settings.FACTOR = 5.0
print(mg.parallel_map(lambda x: run(model, x), [mg.ones(2)])[0].item())
print(type(mg.parallel_map(lambda k: Model(), [0])[0]) is Model)
try:
    mg.parallel_map(refuses, [1])
except Refused as error:
    print("refused", error)
"""
MODULES = {
    "settings.py": "FACTOR = 3.0\n",
    "models/__init__.py": """
from mpgrad import nn
from .errors import Refused

def scale():
    import settings
    return 1.0 / settings.FACTOR * settings.FACTOR

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x):
        from . import losses
        return self.inner(x) * losses.SIGN
""",
    "models/errors.py": "class Refused(Exception):\n    pass\n",
    "models/losses.py": "SIGN = -1.0\n\ndef loss(y):\n    return y.square().sum()\n",
}


@pytest.mark.process
@pytest.mark.slow
def test_modules_of_the_users_own(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / "models").mkdir(parents=True)
    for name, text in MODULES.items():
        (folder / name).write_text(text)
    (folder / "main.py").write_text(MAIN)
    runs = [
        printed(elsewhere, str(folder / "main.py"), mode=mode)
        for mode in ("local", "process", "auto")
    ]
    assert runs[0] == runs[1] == runs[2]
    assert "True\nrefused 1\n" in runs[0]


def test_the_numbers_of_batch_norm_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "both-passes.md").read_text()
    for parts in (1, 8):
        mg.manual_seed(0)
        model = nn.DataParallel(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), parts=parts)
        with mg.Engine("local"):
            out = model(mg.arange(48, dtype=mg.float32).reshape(16, 3) ** 2 / 100)
        row = [out[0], *model.buffers()][:3]
        shown = [", ".join(f"{number:.4f}" for number in one.tolist()) for one in row]
        assert f"| {parts} | {' | '.join(shown)} |" in page


def test_the_law_of_the_page_runs() -> None:
    (code,) = re.findall(
        r"```python\n(from mpgrad.profiler.*?)```",
        (ROOT / "docs" / "both-passes.md").read_text(),
        re.DOTALL,
    )
    k = mg.ones(2, requires_grad=True)

    def misfit(rod: mg.Tensor, measured: mg.Tensor, k: mg.Tensor) -> mg.Tensor:
        return (rod * k - measured).square().sum()

    names = {"mg": mg, "misfit": misfit, "rods": mg.ones(3, 2), "data": mg.ones(3, 2), "k": k}
    exec(code, names)
    assert 0.0 < names["p"] < 1.0
