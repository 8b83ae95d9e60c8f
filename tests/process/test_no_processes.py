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
except OSError as error:
    print(type(error).__name__, error, x.grad)
"""
#: Processes and threads that there may be. The client has one, and an engine with two workers needs
#: 14 more: the coordinator and two workers, with two threads of ZeroMQ in each and in the client;
#: their template, and for a moment those that help it to fork.
ALLOWED = (1, 2, 4, 8, 14)


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
            timeout=120,
        )
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.startswith("BlockingIOError [Errno 11] Resource temporarily unavailable")
    needed = f"needs 14 more processes and threads, and the system allows {allowed - 1} "
    for words in (needed, "ulimit -u", 'Engine(mode="local")'):
        assert words in done.stdout
    assert done.stdout.endswith(" None\n")
