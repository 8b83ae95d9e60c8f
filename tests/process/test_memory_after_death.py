"""kill -9 of the client, of the coordinator, of everything: all memory back."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import mpgrad as mg
from tests.leftovers import descendants, is_alive, wait_until
from tests.memory_holders import arena_bytes, arenas_of, holders_of

pytestmark = pytest.mark.process

StartScript = Callable[..., "subprocess.Popen[bytes]"]

MIB = 1 << 20
#: A tensor and its gradient: as much in the client's arena as in the engine's.
EACH_BYTES = 128 * MIB

FILLS_BOTH_ARENAS = f"""
import sys
import mpgrad as mg

x = mg.ones({EACH_BYTES // 4}, requires_grad=True)
(x * 2).sum().backward()
print(mg.current_engine().coordinator_pid, *mg.current_engine().worker_pids(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def next_engine_works() -> Iterator[None]:
    """It also removes the socket directory, for which nobody was left."""
    yield
    with mg.Engine("process", cpu_workers=1):
        x = mg.tensor([3.0], requires_grad=True)
        (x * x).sum().backward()
        assert x.grad.tolist() == [6.0]


@pytest.mark.parametrize("victims", ["the client", "everything"])
def test_memory_is_back(start_script: StartScript, next_engine_works: None, victims: str) -> None:
    client = start_script(FILLS_BOTH_ARENAS)
    assert client.stdout is not None
    children = {int(word) for word in client.stdout.readline().split()}
    family = {client.pid, *descendants(client.pid)}
    assert len(family - children) == 2  # itself, and the template of the workers
    arenas = {inode: name for pid in family for inode, name in arenas_of(pid).items()}
    assert set(arenas.values()) == {"client arena", "engine-arena", "board", "stack"}
    assert holders_of(set(arenas)) == family
    assert arena_bytes(client.pid) > 2 * EACH_BYTES

    for pid in family if victims == "everything" else {client.pid}:
        os.kill(pid, signal.SIGKILL)
    client.wait()

    assert wait_until(lambda: not any(map(is_alive, family)))
    assert wait_until(lambda: not holders_of(set(arenas)))


def test_only_what_the_client_keeps_outlives_the_coordinator() -> None:
    x = mg.tensor(np.arange(1 << 20, dtype=np.float32), requires_grad=True)
    with mg.Engine("process", cpu_workers=2) as engine:
        (x * x).sum().backward()
        gradient = x.grad.numpy().tobytes()
        coordinator = engine.coordinator_pid
        assert coordinator is not None
        arena = next(at for at, name in arenas_of(coordinator).items() if name == "engine-arena")
        others = {coordinator, *descendants(coordinator)}
        assert others > set(engine.worker_pids())
        assert holders_of({arena}) == {os.getpid(), *others}
        os.kill(coordinator, signal.SIGKILL)
        assert wait_until(lambda: holders_of({arena}) <= {os.getpid()})
        assert wait_until(lambda: not any(map(is_alive, others)))
        assert x.grad.numpy().tobytes() == gradient
        x.grad = None
        (x * x).sum().backward()
        assert x.grad.numpy().tobytes() == gradient
        assert wait_until(lambda: not holders_of({arena}))
