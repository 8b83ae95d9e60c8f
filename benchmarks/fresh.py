"""call(): runs one function in a new interpreter, for figures that earlier code would change."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]


def call(function: str, *arguments: Any) -> Any:
    """The result of ``function``; it and the arguments must be serialisable as JSON.

    Args:
        function: ``module.function`` in ``benchmarks``.
        arguments: for it.

    Raises:
        subprocess.CalledProcessError: it raised; its traceback is on stderr.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.fresh", function, json.dumps(arguments)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=_ROOT,
    )
    return json.loads(done.stdout)


def _main(function: str, arguments: str) -> None:
    module, _, name = function.rpartition(".")
    found = getattr(importlib.import_module(f"benchmarks.{module}"), name)
    print(json.dumps(found(*json.loads(arguments))))


if __name__ == "__main__":
    _main(*sys.argv[1:])
