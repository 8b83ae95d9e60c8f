"""Where the user's program stands must not matter to the processes that mpgrad starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from threadpoolctl import ThreadpoolController

from mpgrad.engine.blas import reads_again
from tests.process.conftest import script_environment

pytestmark = pytest.mark.process

PROGRAM = """
import mpgrad as mg

x = mg.tensor([1.0, 2.0], requires_grad=True)
(x * x).sum().backward()
print(x.grad.tolist(), mg.current_engine().statistics().backwards_process)
"""


def test_files_in_the_working_directory_shadow_nothing(
    run_script: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """A script does not import from its working directory, and neither may its workers."""
    directory = tmp_path / "data"
    directory.mkdir()
    for name in ("mpgrad", "zmq", "numpy", "struct"):
        (directory / f"{name}.py").write_text('raise SystemExit("imported by mistake")')
    done = run_script(PROGRAM, cwd=directory)
    assert done.stdout == "[2.0, 4.0] 1\n", done.stderr


IDLE_THREADS = """
import os
import threading
import time

os.environ.pop("OPENBLAS_THREAD_TIMEOUT", None)  # set by the mpgrad of the tests
{imports}
from threadpoolctl import ThreadpoolController

[blas] = ThreadpoolController().select(internal_api="openblas").lib_controllers[:1]
a = np.ones((300, 300), np.float32)
expected = a @ a
stop, has_begun, go_on = threading.Event(), [], [True]

def multiply():
    while go_on:
        a @ a  # and no call of Python's, in which it would seem to wait
        has_begun.append(True)

other = threading.Thread(target={other})
other.start()
while {other} is multiply and not has_begun:
    time.sleep(0.001)
with mg.Engine("process", cpu_workers=1):
    print(blas.dynlib.openblas_thread_timeout(), bool((a @ a == expected).all()))
stop.set()
go_on.clear()
"""


@pytest.mark.parametrize(
    ("imports", "other", "timeout"),
    [
        ("import numpy as np, mpgrad as mg", "stop.wait", 18),
        ("import mpgrad as mg, numpy as np", "stop.wait", 18),
        (
            "os.environ['OPENBLAS_THREAD_TIMEOUT'] = '9'\nimport numpy as np, mpgrad as mg",
            "stop.wait",
            9,
        ),
        ("import numpy as np, mpgrad as mg", "multiply", 0),
    ],
    ids=["numpy first", "mpgrad first", "the user decides", "another thread may be in BLAS"],
)
def test_idle_blas_threads_sleep(
    run_script: Callable[..., subprocess.CompletedProcess[str]],
    imports: str,
    other: str,
    timeout: int,
) -> None:
    """Spinning threads would take the cores from the workers; OpenBLAS is told so in time."""
    controllers = ThreadpoolController().select(internal_api="openblas").lib_controllers
    if not controllers or not all(reads_again(one.dynlib) for one in controllers):
        pytest.skip("BLAS here reads its environment only when it is loaded")
    done = run_script(IDLE_THREADS.format(imports=imports, other=other))
    assert done.stdout == f"{timeout} True\n", done.stderr


HASHES = """
import os
import mpgrad as mg

class Ordered(mg.Function):
    run_on = "worker"

    @staticmethod
    def forward(ctx, x):
        return x.numpy() * 2

    @staticmethod
    def backward(ctx, grad):
        print("seed", os.environ.get("PYTHONHASHSEED"))
        return grad * float(hash("a") % 1_000_000)

leaves = [mg.ones(2000, requires_grad=True) for _ in range(4)]
with mg.Engine("process", cpu_workers=2) as engine:
    for _ in range(4):
        for x in leaves:
            x.grad = None
        mg.stack([Ordered.apply(x).sum() for x in leaves]).sum().backward()
        values = {x.grad[0].item() for x in leaves}
        assert len(values) == 1, values
    assert len(engine.worker_pids()) == 2
print(values == {float(hash("a") % 1_000_000)})
"""


@pytest.mark.parametrize("seed", [None, "0", "7"])
def test_workers_hash_alike_and_as_the_client_if_its_seed_is_known(
    run_script: Callable[..., subprocess.CompletedProcess[str]],
    seed: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if seed is None:
        monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    else:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    done = run_script(HASHES)
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    assert {line.split("] ")[-1] for line in lines} == {f"seed {seed}"}
    assert last == str(seed is not None)


FLAGS = """
import subprocess
import sys
import mpgrad as mg

class Flags(mg.Function):
    run_on = "worker"

    @staticmethod
    def forward(ctx, x):
        return x.numpy() * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * float(10 * sys.flags.optimize + sys.flags.utf8_mode)

if "again" not in sys.argv:
    sys.exit(subprocess.run([sys.executable, "-OO", "-X", "utf8", __file__, "again"]).returncode)
x = mg.ones(1, requires_grad=True)
Flags.apply(x).sum().backward()
print(x.grad.item())
"""


def test_workers_have_the_interpreters_flags(
    run_script: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """They decide what ``assert`` and ``__debug__`` in installed code mean."""
    done = run_script(FLAGS)
    assert done.stdout == "21.0\n", done.stderr


ARGUMENTS = """
import argparse
import sys
import mpgrad as mg

def item(k):
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float)
    return k * parser.parse_args().rate, sys.argv[0]

class Scales(mg.Function):
    run_on = "worker"

    @staticmethod
    def forward(ctx, x):
        return x.numpy() * 1

    @staticmethod
    def backward(ctx, grad):
        return grad * item(3)[0]

if __name__ == "__main__":
    assert mg.parallel_map(item, [1, 2]) == [(0.5, sys.argv[0]), (1.0, sys.argv[0])]
    x = mg.ones(1, requires_grad=True)
    Scales.apply(x).sum().backward()
    print(x.grad.item())
"""


@pytest.mark.parametrize("how", ["script", "-c", "-m", "-"])
def test_workers_have_the_arguments_of_the_program(tmp_path: Path, how: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(ARGUMENTS)
    start = {"script": [str(program)], "-c": ["-c", ARGUMENTS], "-m": ["-m", "program"], "-": ["-"]}
    done = subprocess.run(
        [sys.executable, *start[how], "--rate", "0.5"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=tmp_path,
        env=script_environment(),
        input=ARGUMENTS,
    )
    assert done.stdout == "1.5\n", done.stderr
