"""A crash with core dumps on: the kernel writes down what the process has, not sparse arenas."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

#: What a core may have at most here. One that has as much was cut off: it would have gone on.
CORE_BYTES_MAX = 256 << 20

SOURCE = """
import os, signal
import numpy as np
import mpgrad as mg
from mpgrad.errors import WorkerLost


class Crashes(mg.Function):
    run_on = "worker"

    @staticmethod
    def forward(ctx, x):
        return x.numpy() * 2

    @staticmethod
    def backward(ctx, grad):
        os.kill(os.getpid(), signal.SIGSEGV)
        return grad * 2


with mg.Engine({mode!r}, cpu_workers=1):
    try:
        Crashes.apply(mg.tensor(np.ones(4096), requires_grad=True)).sum().backward()
    except WorkerLost as error:
        print(error)
"""


def are_cores_here() -> bool:
    """Whether the kernel may write cores of that size, and into the working directory."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    is_allowed = hard == resource.RLIM_INFINITY or hard >= CORE_BYTES_MAX
    return is_allowed and pattern.startswith("core")


def allow_cores() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (CORE_BYTES_MAX, hard))


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.skipif(not are_cores_here(), reason="no core dumps, or not in the working directory")
@pytest.mark.parametrize(
    ("mode", "status", "says"), [("local", -11, ""), ("process", 0, "SIGSEGV")]
)
def test_a_core_is_no_larger_than_what_the_process_holds(
    tmp_path: Path,
    run_script: Callable[..., subprocess.CompletedProcess[str]],
    mode: str,
    status: int,
    says: str,
) -> None:
    done = run_script(SOURCE.format(mode=mode), cwd=tmp_path, preexec_fn=allow_cores)
    assert done.returncode == status, done.stderr
    assert says in done.stdout
    cores = [path.stat().st_size for path in tmp_path.glob("core*")]
    assert cores
    assert max(cores) < CORE_BYTES_MAX
