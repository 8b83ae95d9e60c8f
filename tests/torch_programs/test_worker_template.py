"""Workers that are forked from a process which has loaded torch; nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import psutil
import pytest

torch = pytest.importorskip("torch")

import mpgrad as mg  # noqa: E402
import mpgrad.torch as mt  # noqa: E402

pytestmark = [pytest.mark.process, pytest.mark.torch]


def coordinator_of(engine: mg.Engine) -> psutil.Process:
    return psutil.Process(engine.worker_pids()[0]).parent()


def template_of(engine: mg.Engine) -> psutil.Process | None:
    pids = engine.worker_pids()
    others = [one for one in coordinator_of(engine).children() if one.pid not in pids]
    return others[0] if others else None


def step() -> None:
    x = torch.ones(3, requires_grad=True)
    outs = mt.parallel_map(lambda k: (x * k).sum(), [1.0, 2.0])
    torch.stack(outs).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 3.0))


def new_pid(engine: mg.Engine, old: int) -> int:
    while True:
        found = [pid for pid in engine.worker_pids() if pid != old]
        if found:
            return found[0]


def has_torch_at_once(pid: int) -> bool:
    return any("libtorch" in one.path for one in psutil.Process(pid).memory_maps())


def test_a_worker_is_forked_and_has_torch() -> None:
    with mg.Engine("process", cpu_workers=1) as engine:
        step()
        template = template_of(engine)
        assert template is not None
        assert template.num_threads() == 1
        (old,) = engine.worker_pids()
        assert psutil.Process(old).memory_full_info().uss < template.memory_info().rss / 2
        os.kill(old, signal.SIGKILL)
        pid = new_pid(engine, old)
        assert has_torch_at_once(pid)
        assert psutil.Process(pid).parent() == coordinator_of(engine)
        step()
        assert template_of(engine) == template
        everybody = [coordinator_of(engine), template, psutil.Process(pid)]
    assert not psutil.wait_procs(everybody, 30)[1]


def test_a_template_that_is_killed_gets_a_successor() -> None:
    with mg.Engine("process", cpu_workers=1) as engine:
        step()
        template = template_of(engine)
        assert template is not None
        template.kill()
        for _ in range(2):  # the first one is started without it
            (old,) = engine.worker_pids()
            os.kill(old, signal.SIGKILL)
            new_pid(engine, old)
            step()
        successor = template_of(engine)
        assert successor not in (None, template)
        everybody = [coordinator_of(engine), successor]
    assert not psutil.wait_procs(everybody, 30)[1]


def test_a_stopped_template_holds_nobody_up_for_long() -> None:
    with mg.Engine("process", cpu_workers=1) as engine:
        step()
        template = template_of(engine)
        assert template is not None
        template.suspend()
        (old,) = engine.worker_pids()
        os.kill(old, signal.SIGKILL)
        step()
        assert template_of(engine) != template


PROGRAM = """
import os, sys, torch, mpgrad as mg, mpgrad.torch as mt
with mg.Engine("process", cpu_workers=2) as engine:
    mt.parallel_map(lambda k: k, [1, 2])
    coordinator = int(open(f"/proc/{engine.worker_pids()[0]}/stat").read().split()[3])
    print(coordinator, *engine.worker_pids(), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("victim", ["client", "coordinator"])
def test_nothing_stays(victim: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as client:
        assert client.stdout is not None
        coordinator, *_ = map(int, client.stdout.readline().split())
        left: list[Any] = psutil.Process(coordinator).children()
        assert len(left) == 3
        os.kill(client.pid if victim == "client" else coordinator, signal.SIGKILL)
        assert not psutil.wait_procs(left, 30)[1]
        client.kill()


def test_engines_of_programs_without_torch_have_no_template() -> None:
    program = """
import mpgrad as mg, psutil, os
with mg.Engine("process", cpu_workers=2) as engine:
    mg.parallel_map(lambda k: k, [1, 2])
    print(len(psutil.Process(engine.worker_pids()[0]).parent().children()))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout == "2\n", found.stderr
