"""A sandbox or a service's filter that refuses a system call: `local` works, `process` names it."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable
from typing import TypeAlias

import pytest

from tests.process.refused_calls import NUMBERS, on_x86_64, refusing

pytestmark = [pytest.mark.process, on_x86_64]

RunScript: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]

ERRORS = {"EPERM": errno.EPERM, "ENOSYS": errno.ENOSYS}
GRADIENT = """
import mpgrad as mg

if __name__ == "__main__":
    x = mg.ones(100, 1000, requires_grad=True)
    with mg.Engine({mode!r}, cpu_workers={workers}) as engine:
        (x * 3).sum().backward()
        engine.statistics()
    print(x.grad.sum().item())
"""
#: Heavy enough for workers.
BRANCHES = """
import numpy as np
import mpgrad as mg

class Heavy(mg.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2.0

    @staticmethod
    def backward(ctx, grad):
        square = np.ones((500, 500))
        square @ square
        return grad * 2.0

if __name__ == "__main__":
    x = mg.ones(100, 1000, requires_grad=True)
    with mg.Engine("auto", cpu_workers=2):
        for _ in range(15):
            x.grad = None
            mg.stack([Heavy.apply(x).sum() for _ in range(4)]).sum().backward()
    print(x.grad.sum().item())
"""
RIGHT, RIGHT_OF_BRANCHES = "300000.0\n", "800000.0\n"
STAYS = "mpgrad: backwards run in this process, because no workers can be started: "
#: Those without which the workers are only slower, or tell less.
SPARED = {
    "prlimit64", "sysinfo", "sched_getaffinity", "sched_setaffinity", "mbind", "madvise",
    "getrandom", "sigaltstack", "chdir",
}  # fmt: skip


def run_gradient(
    run_script: RunScript, call: str, error: int, mode: str, workers: int | None = None
) -> subprocess.CompletedProcess[str]:
    return run_script(refusing(call, error) + GRADIENT.format(mode=mode, workers=workers))


@pytest.mark.slow
@pytest.mark.parametrize("call", ["memfd_create", "fallocate", "sysinfo"])
def test_local_needs_no_shared_memory(run_script: RunScript, call: str) -> None:
    ended = run_gradient(run_script, call, errno.EPERM, "local")
    assert (ended.stdout, ended.stderr) == (RIGHT, "")


@pytest.mark.slow
@pytest.mark.parametrize("call", ["fallocate", "sched_setscheduler", "connect"])
def test_process_names_the_call(run_script: RunScript, call: str) -> None:
    ended = run_gradient(run_script, call, errno.EPERM, "process")
    last = ended.stderr.splitlines()[-1]
    assert f"cannot be used here: {call}: Operation not permitted" in last
    assert last.endswith('Engine(mode="local") needs none')
    assert ended.returncode == 1


@pytest.mark.slow
def test_process_needs_no_affinity_and_no_limits(run_script: RunScript) -> None:
    both = refusing("prlimit64", errno.EPERM) + refusing("sched_getaffinity", errno.EPERM)
    ended = run_script(both + GRADIENT.format(mode="process", workers=None))
    assert (ended.stdout, ended.stderr) == (RIGHT, "")


@pytest.mark.slow
def test_a_filter_that_comes_later(run_script: RunScript) -> None:
    script = f"""
import mpgrad as mg
before = mg.ones(100, 1000, requires_grad=True)
{refusing("fallocate", errno.EPERM)}
with mg.Engine("local"):
    after = mg.ones(3000, 1000, requires_grad=True)
    ((before * 2).sum() + (after * 2).sum()).backward()
print(before.grad.sum().item(), after.grad.sum().item())
"""
    ended = run_script(script)
    assert (ended.stdout, ended.stderr) == ("200000.0 6000000.0\n", "")


@pytest.mark.slow
def test_a_loader_needs_no_shared_memory(run_script: RunScript) -> None:
    script = f"""{refusing("memfd_create", errno.EPERM)}
import numpy as np
import mpgrad as mg

class Numbers:
    def __len__(self):
        return 6

    def __getitem__(self, number):
        return np.full(20_000, number, np.float32)

if __name__ == "__main__":
    loader = mg.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2)
    print([batch.sum().item() for batch in loader])
"""
    ended = run_script(script)
    assert (ended.stdout, ended.stderr) == ("[20000.0, 100000.0, 180000.0]\n", "")


@pytest.mark.long
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("call", NUMBERS)
def test_each_call(run_script: RunScript, call: str, error: str) -> None:
    local = run_gradient(run_script, call, ERRORS[error], "local")
    assert (local.stdout, local.stderr) == (RIGHT, "")
    process = run_gradient(run_script, call, ERRORS[error], "process", workers=2)
    auto = run_script(refusing(call, ERRORS[error]) + BRANCHES)
    assert auto.stdout == RIGHT_OF_BRANCHES
    if call in SPARED:
        assert (process.stdout, process.stderr, auto.stderr) == (RIGHT, "", "")
        return
    *_, last = process.stderr.splitlines()
    assert process.returncode == 1
    assert call in last
    assert 'Engine(mode="local")' in last
    said = auto.stderr.splitlines()
    assert len(said) <= 1  # it may have had no reason to start workers
    assert all(line.startswith(STAYS) and call in line for line in said)
