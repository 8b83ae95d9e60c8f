"""Runs one program with one library: ``python -m programs.under LIBRARY STEPS FILE [...]``.

The value that each ``backward()`` began with goes to the file that the environment variable
PROGRAM_LOSSES names, as JSON.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import random
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import mpgrad as mg
from mpgrad.compat import stand_in
from mpgrad.compat.script import run
from programs import same_draws

SEED = 0
#: What the clock of the day shows, in seconds.
START_S = 1.7e9


def main(library: str, steps: int, program: str, arguments: list[str]) -> int:
    """Run ``program`` until it ends or begins its backward number ``steps`` (0: no limit)."""
    if library == "mpgrad":
        stand_in.install()
    torch = importlib.import_module("torch")
    if library == "torch":
        same_draws.install(torch)
        torch.set_num_threads(1)
    random.seed(SEED)
    np.random.seed(SEED)
    mg.manual_seed(SEED)
    time.time = lambda: START_S  # some programs print how long they took
    _record(torch, steps, Path(os.environ["PROGRAM_LOSSES"]))
    return run(program, arguments)


def _record(torch: ModuleType, steps: int, file: Path) -> None:
    losses: list[float] = []
    real = torch.Tensor.backward

    def backward(self: Any, *args: Any, **options: Any) -> None:
        if steps and len(losses) == steps:
            raise SystemExit(0)
        losses.append(float(abs(self.detach()).sum()))
        real(self, *args, **options)

    torch.Tensor.backward = backward
    atexit.register(lambda: file.write_text(json.dumps(losses)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]))
