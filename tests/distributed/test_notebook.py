"""A notebook is rank 0: an interactive Python, whose functions have no file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpgrad.distributed.launch.group_setup import reserved_port
from tests.distributed.ranks import HANGS_S, ROOT, rank_environment
from tests.python_path import path_to

pytestmark = [pytest.mark.process, pytest.mark.hosts, pytest.mark.slow]

SERVES = """
import os
import mpgrad.distributed.rpc as rpc
rpc.init_rpc(f"worker{os.environ['RANK']}")
rpc.shutdown()
print("served")
"""

CELLS = """
import mpgrad as mg
import mpgrad.distributed.rpc as rpc
import mpgrad.distributed.autograd as dist_autograd
rpc.init_rpc("notebook")
def cubes(x, worker):
    return (x * x * x).sum() * worker

x = mg.tensor([1.0, 2.0], requires_grad=True)
with dist_autograd.context() as context_id:
    parts = [rpc.rpc_async(f"worker{w}", cubes, (x, w)) for w in (1, 2)]
    dist_autograd.backward(context_id, [parts[0].wait() + parts[1].wait()])
    print(dist_autograd.get_gradients(context_id)[x].tolist())

rpc.rpc_sync("worker1", cubes, (None, 1))
print("and goes on")
rpc.shutdown()
"""


def test_a_notebook_calls_and_differentiates(tmp_path: Path) -> None:
    (tmp_path / "serves.py").write_text(SERVES)
    (tmp_path / "key").write_bytes(os.urandom(32))
    (tmp_path / "key").chmod(0o600)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": path_to(ROOT),
        "MPGRAD_GROUP_KEY_FILE": str(tmp_path / "key"),
    }
    with reserved_port("127.0.0.1") as port:
        where = ["--nnodes", "3", "--master-addr", "127.0.0.1", "--master-port", str(port)]
        launchers = [
            subprocess.Popen(
                [sys.executable, "-m", "mpgrad", "run", *where, "--node-rank", rank, "serves.py"],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in "12"
        ]
        notebook = subprocess.run(
            [sys.executable, "-i", "-q"],
            input=CELLS,
            env={**environment, **rank_environment(0, 3, port)},
            capture_output=True,
            text=True,
            check=False,
            timeout=HANGS_S,
        )
        served = [launcher.communicate(timeout=HANGS_S)[0] for launcher in launchers]
    assert notebook.stdout.splitlines() == ["[9.0, 36.0]", "and goes on"], notebook.stderr
    assert "unsupported operand type(s) for *: 'NoneType'" in notebook.stderr
    assert served == ["[rank 1] served\n", "[rank 2] served\n"]
    assert [launcher.returncode for launcher in launchers] == [0, 0]
