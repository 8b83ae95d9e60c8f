"""Processes that take remote calls die, are started again, and are called again at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.ranks import run_ranks
from tests.leftovers import Leftovers, left_since

HEAD = """
import os, signal, sys
import mpgrad as mg
import mpgrad.distributed.autograd as dist_autograd
import mpgrad.distributed.rpc as rpc
from mpgrad.errors import HostLost

RANK, DOOMED = int(os.environ["RANK"]), int(sys.argv[1])
CALLER, OTHER = (DOOMED + 1) % 3, (DOOMED + 2) % 3
TO, AGAIN = f"worker{DOOMED}", os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def die_first(value):
    if not AGAIN:
        die()
    return value * 3

def process():
    return os.getpid()

def value_of(reference):
    return reference.to_here()

def error_of(call):
    try:
        call()
    except HostLost as error:
        return error
    raise AssertionError("no HostLost")
"""

CALLS = (
    HEAD
    + """
def kept(value):
    return [value]

rpc.init_rpc(f"worker{RANK}")
if RANK == CALLER:
    before, lost = rpc.rpc_sync(TO, process), rpc.remote(TO, kept, (4,))
    print(lost.to_here())
    try:  # during a call
        rpc.rpc_sync(TO, die)
    except HostLost as error:
        print(error.rank, "rpc of die" in str(error))
    # Made again, and waits for the new process.
    print(rpc.rpc_sync(TO, process, repeat=True) != before)
    # From here on it is called as ever, and by others.
    print(rpc.rpc_sync(TO, kept, (5,)), rpc.rpc_sync(f"worker{OTHER}", process) > 0)
    own = rpc.remote(TO, kept, (6,))
    print(rpc.rpc_sync(f"worker{OTHER}", value_of, (own,)))
    for call in (lost.to_here, lambda: rpc.rpc_sync(TO, value_of, (lost,))):
        print(error_of(call).rank, "to_here of RRef (" in str(error_of(call)))
    print(rpc.get_worker_info(TO).id, rpc.RRef(3).to_here())
    del own, lost
rpc.shutdown()
"""
)

REPEATED = (
    HEAD
    + """
rpc.init_rpc(f"worker{RANK}")
if RANK == CALLER:
    tensor = mg.arange(4.0)
    print(rpc.rpc_sync(TO, die_first, (tensor,), repeat=True).tolist())
    print(rpc.remote(TO, die_first, (2,), repeat=True).to_here())
rpc.shutdown()
"""
)

IN_TIME = (
    HEAD
    + """
if AGAIN:
    import pathlib
    while not pathlib.Path(sys.argv[2]).exists():
        pass  # until the call has given up
rpc.init_rpc(f"worker{RANK}")
if RANK == CALLER:
    error = error_of(lambda: rpc.rpc_sync(TO, die_first, (1,), timeout=0.2, repeat=True))
    print(error.rank)
    open(sys.argv[2], "w").close()
    print(rpc.rpc_sync(TO, die_first, (1,), repeat=True))
rpc.shutdown()
"""
)

BACKWARD = (
    HEAD
    + """
class Dies(mg.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2.0

    @staticmethod
    def backward(ctx, grad):
        if not AGAIN:
            die()
        return grad * 2.0

def scaled(x):
    return Dies.apply(x)

def gradient(weight):
    with dist_autograd.context() as context_id:
        loss = (rpc.rpc_sync(TO, scaled, (weight,)) * weight).sum()
        dist_autograd.backward(context_id, [loss])
        return dist_autograd.get_gradients(context_id)[weight].tolist()

rpc.init_rpc(f"worker{RANK}")
if RANK == CALLER:
    weight = mg.arange(3.0).requires_grad_()
    error = error_of(lambda: gradient(weight))
    print(error.rank, "autograd context" in str(error) or "backward" in str(error))
    rpc.rpc_sync(TO, process, repeat=True)
    print(gradient(weight))
    print(dist_autograd._get_debug_info())
rpc.shutdown()
"""
)

TWO = (
    HEAD
    + """
rpc.init_rpc(f"worker{RANK}")
if RANK == CALLER:
    both = [rpc.rpc_async(f"worker{rank}", die) for rank in (DOOMED, OTHER)]
    print(*(error_of(future.wait).rank for future in both))
    print(*(rpc.rpc_sync(f"worker{k}", die_first, (k,), repeat=True) for k in (DOOMED, OTHER)))
rpc.shutdown()
"""
)

#: The rank that dies: rank 0 is where all meet.
BOTH = pytest.mark.parametrize("doomed", [1, 0])


def lines(tmp_path: Path, source: str, doomed: int, *arguments: str, deaths: int = 1) -> list[str]:
    """What the caller says, in a run that ends well and leaves nothing."""
    before = Leftovers.now()
    given = [str(doomed), *arguments]
    ran = run_ranks(tmp_path, source, 3, "--max-restarts", "2", script_arguments=given)
    assert ran.code == 0, ran.errors
    assert f"({deaths} of 2 restarts)" in ran.errors
    assert not left_since(before)
    return ran.lines[(doomed + 1) % 3]


@pytest.mark.process
@pytest.mark.slow
@BOTH
def test_a_process_that_is_started_again_is_called_as_before(tmp_path: Path, doomed: int) -> None:
    said = lines(tmp_path, CALLS, doomed)
    assert said == [
        "[4]", f"{doomed} True", "True", "[5] True", "[6]", f"{doomed} True", f"{doomed} True",
        f"{doomed} 3",
    ]  # fmt: skip


@pytest.mark.process
@pytest.mark.slow
@BOTH
def test_a_call_that_may_be_repeated_is_made_again(tmp_path: Path, doomed: int) -> None:
    assert lines(tmp_path, REPEATED, doomed) == ["[0.0, 3.0, 6.0, 9.0]", "6"]


@pytest.mark.process
@pytest.mark.slow
def test_a_call_waits_no_longer_than_its_timeout(tmp_path: Path) -> None:
    assert lines(tmp_path, IN_TIME, 1, str(tmp_path / "given-up")) == ["1", "3"]


@pytest.mark.process
@pytest.mark.slow
@BOTH
def test_a_death_in_a_backward_ends_its_context_and_the_next_one_works(
    tmp_path: Path, doomed: int
) -> None:
    assert lines(tmp_path, BACKWARD, doomed) == [
        f"{doomed} True",
        "[0.0, 4.0, 8.0]",
        "{'num_current_backward_passes': 0, 'num_autograd_contexts': 0}",
    ]


@pytest.mark.process
@pytest.mark.slow
@BOTH
def test_two_processes_die_at_once(tmp_path: Path, doomed: int) -> None:
    other = (doomed + 2) % 3
    assert lines(tmp_path, TWO, doomed, deaths=2) == [
        f"{doomed} {other}",
        f"{doomed * 3} {other * 3}",
    ]
