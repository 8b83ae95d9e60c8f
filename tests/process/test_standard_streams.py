"""Where a client lacks some standard streams (`<&- >&- 2>&-`), nothing takes their place."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.process.conftest import script_command, script_environment

SOURCE = """
import ctypes, json, os, sys
import numpy as np
import mpgrad as mg
from tests.leftovers import descendants


class Loud(mg.autograd.Function):
    run_on = "worker"

    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        print("from Python", flush=True)
        print("from Python", file=sys.stderr, flush=True)
        libc = ctypes.CDLL(None)
        for _ in range(2000):
            libc.puts(b"from C, into descriptor 1, which must not be memory of a tensor")
        libc.fflush(None)
        return grad


with mg.Engine({mode!r}, cpu_workers=1):
    x = mg.tensor(np.arange(4096.0), requires_grad=True)
    Loud.apply(x * x).sum().backward()
    found = {{
        "streams": [stream is None for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "x": bool((x.detach().numpy() == np.arange(4096.0)).all()),
        "grad": bool((x.grad.numpy() == 2 * np.arange(4096.0)).all()),
        "first three": [
            os.readlink(f"/proc/{{pid}}/fd/{{number}}")
            for pid in [os.getpid(), *descendants(os.getpid())]
            for number in range(3)
        ],
    }}
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
"""


def run_without(streams: str, tmp_path: Path, mode: str) -> dict[str, Any]:
    found = tmp_path / "found.json"
    subprocess.run(
        [
            "sh",
            "-c",
            f'exec "$@" {streams}',
            "sh",
            *script_command(tmp_path, SOURCE.format(mode=mode)),
            str(found),
        ],
        env=script_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=120,
        check=True,
    )
    result: dict[str, Any] = json.loads(found.read_text())
    return result


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("mode", ["local", "process"])
@pytest.mark.parametrize(
    ("streams", "closed"),
    [("<&-", [0]), (">&-", [1]), ("2>&-", [2]), ("<&- >&- 2>&-", [0, 1, 2])],
    ids=["stdin", "stdout", "stderr", "all"],
)
def test_no_descriptor_of_ours_is_a_standard_stream(
    tmp_path: Path, mode: str, streams: str, closed: list[int]
) -> None:
    found = run_without(streams, tmp_path, mode)
    assert found["streams"] == [number in closed for number in range(3)]
    assert set(found["first three"]) == {"/dev/null"}
    assert len(found["first three"]) == 3 * (4 if mode == "process" else 1)
    assert found["x"]
    assert found["grad"]
