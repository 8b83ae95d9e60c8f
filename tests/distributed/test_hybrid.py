"""DistributedDataParallel and RemoteModule in graphs over hosts: hybrid_cases.py, two worlds."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mpgrad.distributed.launch.group_setup import reserved_port
from tests.distributed.ranks import Ran, run_ranks

pytestmark = [pytest.mark.process, pytest.mark.slow]

SOURCE = Path(__file__).with_name("hybrid_cases.py").read_text()
CASES = [
    node.name
    for node in ast.parse(SOURCE).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
]


@pytest.fixture(scope="module", params=["local", "process"])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    directory = tmp_path_factory.mktemp("hybrid")
    with reserved_port("127.0.0.1") as port:
        return run_ranks(
            directory, SOURCE, 3, script_arguments=[str(port)],
            MPGRAD_ENGINE=request.param, MPGRAD_CPU_WORKERS="1",
        )  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_hybrid(ran: Ran, case: str) -> None:
    said = [line for rank in range(3) for line in ran.lines[rank] if line.split()[0] == case]
    assert said == [f"{case} passed"] * 3, ran.errors


WAITS = """
import os, threading
import mpgrad.distributed as dist
import mpgrad.distributed.rpc as rpc

def has_returned():
    return not joins.is_alive()

rank = os.environ["RANK"]
joins = threading.Thread(target=dist.init_process_group)
rpc.init_rpc(f"worker{rank}")
if rank == "0":
    joins.start()
while rank == "1" and not rpc.rpc_sync("worker0", dist.is_initialized):
    pass
if rank == "1":
    print(any(rpc.rpc_sync("worker0", has_returned) for _ in range(300)))
if rank != "0":
    joins.start()
joins.join()
print([rpc.rpc_sync(f"worker{rank}", dist.get_rank) for rank in range(3)])
rpc.shutdown()
dist.destroy_process_group()
"""


def test_a_group_is_there_once_all_have_called_for_it(tmp_path: Path) -> None:
    ran = run_ranks(tmp_path, WAITS, 3)
    assert ran.code == 0, ran.errors
    assert ran.lines[1][0] == "False"
    assert [ran.lines[rank][-1] for rank in range(3)] == ["[0, 1, 2]"] * 3
