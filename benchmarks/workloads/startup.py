"""startup: the cost of an import, and the time until two workers are ready."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

from benchmarks.peers.process import NOT_INSTALLED, is_installed
from benchmarks.rounds import Case, Contender, Target

ABOUT = """\
Each sample is a new interpreter, which takes the time itself. *import*: until the library is
imported and its first tensor (for NumPy: array) exists. *two workers*: from a running interpreter
that has imported its library until two worker processes have said that they are ready; beside it
two plain processes that import NumPy and say so through a pipe. All files are in the page cache."""

_ROOT = Path(__file__).resolve().parents[2]
#: NumPy is compiled when it is installed; a checkout is compiled by its first import, if possible.
_WITH_BYTECODE = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
MPGRAD = "mpgrad"
NUMPY = "NumPy"

_TIMED = """
import time
{before}
start = time.perf_counter()
{work}
print(time.perf_counter() - start)
{after}
"""
_ENGINE = _TIMED.format(
    before="import mpgrad as mg; mg.tensor([1.0])",
    work="engine = mg.Engine(mode='process', cpu_workers=2).__enter__()",
    after="assert len(engine.worker_pids()) == 2; engine.__exit__()",
)
_PLAIN = _TIMED.format(
    before="import subprocess, sys, numpy",
    work="""
children = [
    subprocess.Popen([sys.executable, "-c", "import numpy; print(1)"], stdout=subprocess.PIPE)
    for _ in range(2)
]
for child in children:
    child.stdout.readline()
""",
    after="for child in children: child.communicate()",
)


def cases(quick: bool) -> Generator[Case, None, None]:
    """Imports, then workers."""
    yield Case(
        "import",
        [
            _importing(MPGRAD, "mpgrad", "tensor"),
            _importing(NUMPY, "numpy", "array"),
            _importing("torch", "torch", "tensor"),
        ],
        (NUMPY,),
        2 if quick else 9,
        targets=(Target(MPGRAD, NUMPY, at_most=1.5),),
    )
    yield Case(
        "two workers",
        [
            Contender("mpgrad process", _interpreter(_ENGINE)),
            Contender("two plain processes with NumPy", _interpreter(_PLAIN)),
        ],
        ("two plain processes with NumPy",),
        2 if quick else 9,
        targets=(Target("mpgrad process", at_most=250.0),),
    )


def _importing(name: str, module: str, constructor: str) -> Contender:
    if not is_installed(module):
        return Contender(name, None, remark=lambda: NOT_INSTALLED)
    work = f"import {module}; {module}.{constructor}([1.0, 2.0])"
    return Contender(name, _interpreter(_TIMED.format(before="", work=work, after="")))


def _interpreter(code: str) -> Callable[[], float]:
    """A sample: the seconds that a new interpreter prints."""

    def sample() -> float:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            cwd=_ROOT,
            env=_WITH_BYTECODE,
        )
        return float(done.stdout)

    return sample
