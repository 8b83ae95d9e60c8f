"""Programs in interpreters of their own: one that ends or hangs costs only its own result."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

#: Seconds after which an interpreter is taken for stuck.
STUCK_S = 900


def results_of(
    words: Callable[[int, int], Sequence[str]], first: int, number: int, environment: dict[str, str]
) -> dict[int, Any]:
    """By program what came of it; one that kills its interpreter has no result.

    Args:
        words: the arguments of Python for the first program and how many there are. It prints the
            number of each program before it begins, and a line of JSON with its ``number`` after.
        first, number: of the programs.
        environment: of the interpreters.
    """
    results: dict[int, Any] = {}
    end = first + number
    while first < end:
        lines = _lines([sys.executable, *words(first, end - first)], environment)
        for line in lines:
            if line.startswith("{"):
                result = json.loads(line)
                results[result["number"]] = result
        begun = [int(line) for line in lines if line.isdecimal()]
        first = max([first, *begun]) + 1
    return results


def _lines(command: list[str], environment: dict[str, str]) -> list[str]:
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=None if "FUZZ_VERBOSE" in environment else subprocess.DEVNULL,
            text=True,
            check=False,
            timeout=STUCK_S,
            env=environment,
        )
    except subprocess.TimeoutExpired as stuck:
        output: Any = stuck.stdout or b""
        return str(output.decode() if isinstance(output, bytes) else output).splitlines()
    return done.stdout.splitlines()
