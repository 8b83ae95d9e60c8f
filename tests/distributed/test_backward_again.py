"""Processes die in a graph over hosts; what they did in it is done again, with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpgrad.distributed.launch.group_setup import reserved_port
from tests.distributed.ranks import run_ranks
from tests.distributed.test_rejoin import BOTH, HEAD
from tests.leftovers import Leftovers, left_since

pytestmark = [pytest.mark.process, pytest.mark.slow]

PARTS = (
    HEAD
    + """
import threading

WHERE, DIED = sys.argv[2], []
CALLS = {"repeat": True}

def die_at(where):
    if WHERE == where and not AGAIN and RANK == DOOMED:
        die()  # in a hook, too, this is the rank, and no worker

mg.manual_seed(7)
FACTOR = mg.randn(16, 16)

def part(x):
    die_at("forward")
    result = (x @ FACTOR).sin()
    result.register_hook(lambda grad: die_at("backward"))
    return result * 0.7

def random_part(x):
    return x * float(os.getpid())

def passed_on(x):
    return rpc.rpc_sync(f"worker{OTHER}", part, (x,), repeat=True)

def step(weight, mode="smart", first=part, **more):
    with dist_autograd.context() as context_id:
        hidden = rpc.rpc_sync(f"worker{OTHER}", part, (weight.sin(),), **CALLS)
        ahead = rpc.rpc_async(TO, first, (hidden,), **CALLS)
        loss = (rpc.rpc_sync(TO, part, (weight,), **CALLS) * ahead.wait() * weight).sum()
        if WHERE == "between" and not DIED:
            DIED.append(TO)
            with mg.no_grad():
                in_no_context(lambda: rpc.rpc_async(TO, die).wait())
        dist_autograd.backward(context_id, [loss], mode=mode, **more)
        if WHERE == "after" and not DIED:
            DIED.append(TO)
            in_no_context(lambda: rpc.rpc_async(TO, die).wait())
        return dist_autograd.get_gradients(context_id)[weight]

def in_no_context(call):
    thread = threading.Thread(target=error_of, args=(call,))
    thread.start()
    thread.join()

def digest(gradient):
    return gradient.numpy().tobytes().hex()

rpc.init_rpc(f"worker{RANK}")
"""
)

SAVED = (
    PARTS
    + """
if RANK == CALLER:
    weight = mg.randn(8, 16).requires_grad_()
    found = step(weight, sys.argv[3])
    WHERE = ""
    print(digest(found) == digest(step(weight, sys.argv[3])))
    print(rpc.rpc_sync(TO, dist_autograd._get_debug_info))
    print(dist_autograd._get_debug_info())
rpc.shutdown()
"""
)

#: Each rank dies in the backward, the one after the other.
TWICE = SAVED.replace("not AGAIN and", 'os.environ["TORCHELASTIC_RESTART_COUNT"] in "01" and')

OVER = (
    PARTS
    + """
if RANK == CALLER:
    weight = mg.randn(8, 16).requires_grad_()
    why = sys.argv[3]
    if why == "called without repeat=True":
        CALLS = {}
    first = {"another result": random_part, "it had called rank": passed_on}.get(why, part)
    error = error_of(lambda: step(weight, first=first))
    print(error.rank, why in str(error) or str(error))
    WHERE = ""
    rpc.rpc_sync(TO, process, repeat=True)
    print(step(weight).tolist() != [], dist_autograd._get_debug_info())
rpc.shutdown()
"""
)

#: Ranks 0 and 1 train one model, and the last one dies once their gradients are averaged.
AVERAGED = (
    HEAD
    + """
import pathlib
import mpgrad.distributed as dist
from mpgrad.nn.parallel import DistributedDataParallel

averaged = pathlib.Path(sys.argv[2])
own = mg.ones(1, requires_grad=True)

def die_later(grad):
    while not AGAIN and not averaged.exists():
        pass
    if not AGAIN:
        die()

def part(x):
    scale = own * 2.0
    scale.register_hook(die_later)  # runs after the gradient of x has left
    return x * scale

if RANK < 2:
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{sys.argv[3]}", rank=RANK, world_size=2)
rpc.init_rpc(f"worker{RANK}")
if RANK < 2:
    model = DistributedDataParallel(mg.nn.Linear(4, 3))
    with dist_autograd.context() as context_id:
        result = model(mg.ones(2, 4))
        if RANK == 0:
            result = rpc.rpc_sync(TO, part, (result,), repeat=True)
            error = error_of(lambda: dist_autograd.backward(context_id, [result.sum()]))
            print(error.rank, "DistributedDataParallel had averaged" in str(error))
        else:
            dist_autograd.backward(context_id, [result.sum()])
            averaged.touch()
rpc.shutdown()
"""
)

NOTHING = "{'num_current_backward_passes': 0, 'num_autograd_contexts': 0}"


def said_by_the_caller(
    directory: Path, source: str, doomed: int, *arguments: str, deaths: int = 1, **more: str
) -> list[str]:
    """In a run that ends well and leaves nothing."""
    before = Leftovers.now()
    given = [str(doomed), *arguments]
    ran = run_ranks(directory, source, 3, "--max-restarts", "2", script_arguments=given, **more)
    assert ran.code == 0, ran.errors
    assert f"({deaths} of 2 restarts)" in ran.errors
    assert not left_since(before)
    return ran.lines[(doomed + 1) % 3]


@BOTH
@pytest.mark.parametrize(
    ("where", "mode", "engine"),
    [
        ("forward", "smart", "local"),
        ("between", "smart", "local"),
        ("backward", "smart", "local"),
        ("backward", "fast", "local"),
        ("backward", "smart", "process"),
    ],
)
def test_the_gradients_are_those_of_a_run_without_a_death(
    tmp_path: Path, doomed: int, where: str, mode: str, engine: str
) -> None:
    workers = {"MPGRAD_ENGINE": engine, "MPGRAD_CPU_WORKERS": "1"}
    said = said_by_the_caller(tmp_path, SAVED, doomed, where, mode, **workers)
    assert said == ["True", NOTHING, NOTHING]


def test_the_next_process_may_die_too(tmp_path: Path) -> None:
    said = said_by_the_caller(tmp_path, TWICE, 1, "backward", "smart", deaths=2)
    assert said == ["True", NOTHING, NOTHING]


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("backward", "called without repeat=True"),
        ("backward", "another result"),
        ("backward", "it had called rank"),
        ("after", "a backward had ended before"),
    ],
)
def test_what_cannot_be_done_again_ends_the_context(tmp_path: Path, where: str, why: str) -> None:
    said = said_by_the_caller(tmp_path, OVER, 1, where, why)
    assert said == ["1 True", f"True {NOTHING}"]


def test_a_model_does_not_average_twice(tmp_path: Path) -> None:
    with reserved_port("127.0.0.1") as port:
        said = said_by_the_caller(tmp_path, AVERAGED, 2, str(tmp_path / "averaged"), str(port))
    assert said == ["2 True"]
