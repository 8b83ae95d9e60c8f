"""A second process with a CUDA driver, which runs lines of Python one at a time when told.

``peer("x = 1")`` runs a statement there; ``peer("x + 1")`` gives an expression's value. What it
raises is raised here, as its own type where that can be pickled.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cuda.fake_driver import TWO_GPUS
from tests.python_path import path_to

_ROOT = Path(__file__).resolve().parents[2]

_LOOP = """
import pickle, sys
from mpgrad.arrays.cuda.cuda_driver import *
from mpgrad.arrays.cuda.cuda_driver import driver as _driver
import numpy as np
driver = _driver()
names = dict(globals())
while True:
    text = pickle.load(sys.stdin.buffer)
    try:
        try:
            answer = (True, eval(compile(text, "peer", "eval"), names))
        except SyntaxError:
            exec(compile(text, "peer", "exec"), names)
            answer = (True, None)
    except Exception as error:
        answer = (False, error)
    pickle.dump(answer, sys.stdout.buffer)
    sys.stdout.buffer.flush()
"""


class Peer:
    """One such process; ``driver`` is its driver of the kind called ``name``."""

    def __init__(self, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LOOP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONPATH": path_to(_ROOT),
                "MPGRAD_CUDA_DRIVER": TWO_GPUS if name == "fake" else name,
            },
        )

    def __call__(self, text: str, **values: Any) -> Any:
        """Run ``text`` there, with ``values`` as variables."""
        for name, value in values.items():
            self(f"{name} = {value!r}")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump(text, self._process.stdin)
        self._process.stdin.flush()
        worked, value = pickle.load(self._process.stdout)
        if not worked:
            raise value
        return value

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
