"""Limits of the process (`ulimit`) that are below what an engine would like: it takes less."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

import mpgrad as mg

pytestmark = pytest.mark.process

RunScript: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]

GRADIENT = """
import resource, sys
import numpy as np
{limit}
import mpgrad as mg

if __name__ == "__main__":
    with mg.Engine({mode!r}, cpu_workers=2):
        x = mg.tensor(np.full((320, 320), 3.0), requires_grad=True)
        mg.tanh(x * x).sum().backward()
        y = x.detach().requires_grad_()
        mg.tanh(y * y).sum().backward()
        print((x.grad == y.grad).all().item(), x.grad.dtype)
"""
LIMITS = {
    "address space": "resource.setrlimit(resource.RLIMIT_AS, (5 << 30, 5 << 30))",
    "file size": "resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))",
}


@pytest.mark.parametrize("mode", ["local", "process"])
@pytest.mark.parametrize("limit", LIMITS)
def test_a_low_limit(run_script: RunScript, limit: str, mode: str) -> None:
    ended = run_script(GRADIENT.format(limit=LIMITS[limit], mode=mode))
    assert (ended.stdout, ended.stderr) == ("True mpgrad.float64\n", "")


def test_a_client_that_may_map_little_makes_its_arrays_on_the_heap(run_script: RunScript) -> None:
    script = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
import mpgrad as mg
held = [mg.ones(320, 320) * 2 for _ in range(20)]
print(sum(one.sum().item() for one in held))
"""
    assert run_script(script).stdout == f"{20 * 2 * 320 * 320}.0\n"


def test_no_room_for_shared_memory(run_script: RunScript) -> None:
    script = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
import mpgrad as mg
if __name__ == "__main__":
    x = mg.ones(320, 320, requires_grad=True)
    with mg.Engine("local"):
        (x * 2).sum().backward()
    print(x.grad[0, 0].item())
    try:
        mg.Engine("process").__enter__()
    except OSError as error:
        print(error)
"""
    gradient, message = run_script(script).stdout.splitlines()
    assert gradient == "2.0"
    assert message.startswith("[Errno 27] File too large: this process may not have 4,096 bytes")
    assert '`ulimit -f` say how much. Raise them, or use Engine(mode="local")' in message


def test_an_interpreter_that_this_user_cannot_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text("not executable")
    monkeypatch.setattr(sys, "executable", str(interpreter))
    with pytest.raises(PermissionError, match=rf"user {os.geteuid()} cannot run {interpreter}; En"):
        mg.Engine("process").__enter__()


def test_workers_that_may_map_little_say_so(run_script: RunScript) -> None:
    script = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
import mpgrad as mg
if __name__ == "__main__":
    with mg.Engine("process", cpu_workers=1):
        x = mg.ones(1024, 1024, requires_grad=True)
        try:
            mg.tanh(x).sum().backward()
        except mg.errors.SharedMemoryExhausted as error:
            print("`ulimit -f`" in str(error), "Raise that limit" in str(error), x.grad)
"""
    assert run_script(script).stdout == "True True None\n"


def test_an_engine_where_the_last_addresses_are_free(run_script: RunScript) -> None:
    script = """
import mpgrad as mg
from mpgrad.engine.coordinator_start import ENGINE_ARENA_BYTES
from mpgrad.shm.segment import Segment
if __name__ == "__main__":
    x = mg.ones(320, 320, requires_grad=True)
    held = []
    try:
        while True:
            held.append(Segment.create(ENGINE_ARENA_BYTES, "arena"))
    except OSError:
        held.pop().close()
    with mg.Engine("process", cpu_workers=1):
        (x * x).sum().backward()
        print(x.grad[0, 0].item())
"""
    assert run_script(script).stdout == "2.0\n"


def test_more_arenas_than_addresses(run_script: RunScript) -> None:
    script = """
from mpgrad.shm.segment import Segment
held = [Segment.create_sparse(1 << 40, "arena") for _ in range(140)]
print(len(held), min(one.nbytes for one in held) < 1 << 40)
"""
    assert run_script(script).stdout == "140 True\n"
