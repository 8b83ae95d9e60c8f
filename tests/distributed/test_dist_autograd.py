"""Backwards over hosts, in several processes: the cases of dist_autograd_cases.py, bits, deaths."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.distributed.ranks import Ran, run_ranks

SOURCE = Path(__file__).with_name("dist_autograd_cases.py").read_text()
CASES = [
    node.name
    for node in ast.parse(SOURCE).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
]

BITS = """
import hashlib, os
import mpgrad as mg
import mpgrad.distributed.autograd as dist_autograd
import mpgrad.distributed.rpc as rpc
from mpgrad import nn
from mpgrad.distributed.carrier import zeromq_carrier

zeromq_carrier.SILENCE_MS_MAX = 120_000  # on a busy machine a process may starve for seconds
HOSTS = int(os.environ["WORLD_SIZE"])
hooks = []

class Part:
    def __init__(self, number):
        mg.manual_seed(number)
        self.number = number
        self.net = nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 24))
        for index, weight in enumerate(self.net.parameters()):
            weight.register_hook(lambda grad, index=index: hooks.append((number, index)))

    def forward(self, x, others):
        for other in others:
            x = x + other.rpc_sync().forward(self.net(x), others[1:]) * 0.3
        return self.net(x) + x * 0.1

    def bits(self, context_id):
        grads = dist_autograd.get_gradients(context_id)
        digest = hashlib.sha256()
        for weight in self.net.parameters():
            digest.update(grads[weight].numpy().tobytes())
        return digest.hexdigest()

    def hooks(self):
        return [index for number, index in hooks if number == self.number]

rank = int(os.environ["RANK"])
mg.set_engine(mg.Engine(os.environ["MODE"], cpu_workers=1))
rpc.init_rpc(f"worker{rank}")
if rank == 0:
    parts = []
    for number in range(4):
        parts.append(rpc.remote(number % HOSTS, Part, (number,)))
        parts[-1].rpc_sync().hooks()  # one after another: in one process they share random numbers
    mg.manual_seed(9)
    x = mg.randn(16, 24)
    with dist_autograd.context() as context_id:
        loss = parts[0].rpc_sync().forward(x, parts[1:]).square().sum()
        dist_autograd.backward(context_id, [loss])
        for part in parts:
            print(part.rpc_sync().bits(context_id), part.rpc_sync().hooks())
    del parts
rpc.shutdown()
"""

DIES = """
import os, signal, threading
import mpgrad as mg
import mpgrad.distributed.autograd as dist_autograd
import mpgrad.distributed.rpc as rpc
from mpgrad.distributed.carrier import zeromq_carrier

zeromq_carrier.SILENCE_MS_MAX = 120_000  # on a busy machine a process may starve for seconds
weight = mg.ones(3, requires_grad=True)

def die(grad):
    os.kill(os.getpid(), signal.SIGKILL)

def dying(x):
    result = x * weight
    result.register_hook(die)
    return result

def through(x, dies):
    y = x * weight
    return rpc.rpc_sync("worker1", dying, (y,)) + y if dies else y

def gradients(context_id):
    try:
        return len(dist_autograd.get_gradients(context_id))
    except mg.errors.HostLost as error:
        return f"rank {error.rank}"

done = threading.Event()

def end():
    done.set()

rank = int(os.environ["RANK"])
rpc.init_rpc(f"worker{rank}")
if rank == 2:
    done.wait()
if rank == 0:
    x = mg.ones(3, requires_grad=True)
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync("worker2", through, (x, True)).sum()
        try:
            dist_autograd.backward(context_id, [loss])
        except mg.errors.HostLost as error:
            print(error.rank, f"context {context_id}" in str(error), x.grad)
        print(gradients(context_id), rpc.rpc_sync("worker2", gradients, (context_id,)))
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync("worker2", through, (x, False)).sum()
        dist_autograd.backward(context_id, [loss])
        print(gradients(context_id), rpc.rpc_sync("worker2", gradients, (context_id,)))
    rpc.rpc_sync("worker2", end)
try:
    rpc.shutdown()
except mg.errors.HostLost:
    pass
"""


@pytest.fixture(scope="module", params=["local", "process"])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_ranks(tmp_path_factory.mktemp("cases"), SOURCE, 3, CASES_MODE=request.param)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_case(ran: Ran, name: str) -> None:
    assert ran.code == 0, ran.errors
    said = [line for rank in range(3) for line in ran.lines[rank] if line.split()[0] == name]
    assert said == [f"{name} passed"] * 3


@pytest.mark.process
@pytest.mark.slow
def test_bits_and_hooks_are_those_of_one_process(tmp_path: Path) -> None:
    one = run_ranks(tmp_path, BITS, 1, MODE="local")
    assert len(one.lines[0]) == 4, one.errors
    for hosts, mode in ((2, "local"), (4, "process")):
        many = run_ranks(tmp_path, BITS, hosts, MODE=mode)
        assert many.lines[0] == one.lines[0], many.errors


@pytest.mark.process
@pytest.mark.slow
def test_a_host_that_dies_is_named_and_nobody_has_gradients(tmp_path: Path) -> None:
    ran = run_ranks(tmp_path, DIES, 3)
    assert ran.lines[0] == ["1 True None", "rank 1 rank 1", "1 1"], ran.errors
