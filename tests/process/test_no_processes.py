"""A system that allows no more processes: the error says so, and what to do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stress.limited_group import entering, limited_group
from tests.process.conftest import script_command, script_environment

pytestmark = pytest.mark.process

TRIES = """
import mpgrad as mg

x = mg.ones(3, requires_grad=True)
try:
    (x * 2).sum().backward()
except (OSError, mg.errors.EngineClosed) as error:
    print(type(error).__name__, error, x.grad)
"""
#: Processes that may be there, and what the error says: the client is one of them.
ALLOWED = {
    1: ("BlockingIOError", "the coordinator process cannot be started", 'Engine(mode="local")'),
    2: ("EngineClosed", "a process for worker 0 cannot be started", "Engine(cpu_workers=...)"),
    3: ("EngineClosed", "a process for worker 1 cannot be started", "ulimit -u"),
}


@pytest.mark.parametrize("allowed", ALLOWED)
def test_too_few_processes(tmp_path: Path, allowed: int) -> None:
    with limited_group("processes", allowed) as group:
        if group is None:
            pytest.skip("no cgroup with a limit of processes can be made here")
        done = subprocess.run(
            entering(group, script_command(tmp_path, TRIES)),
            env={**script_environment(), "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    assert (done.stderr, done.returncode) == ("", 0)
    for words in (*ALLOWED[allowed], "Resource temporarily unavailable"):
        assert words in done.stdout
    assert done.stdout.endswith(" None\n")
