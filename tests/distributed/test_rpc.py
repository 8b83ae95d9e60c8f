"""Remote calls, references and futures, in three processes: the cases of rpc_cases.py."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.distributed.carrier.messages import (
    Call,
    CallEnded,
    Farewell,
    RpcReady,
    decode_head,
    encode_head,
)
from mpgrad.distributed.group_member import GroupMember
from mpgrad.distributed.operation import Operation
from mpgrad.distributed.rpc.call_pickles import packed, unpacked
from mpgrad.distributed.rpc.service import RpcService
from mpgrad.distributed.states.reduction_tree import Send
from mpgrad.distributed.states.remote_values import (
    ConfirmFork,
    DropValue,
    ForkAdded,
    ForkDropped,
    HolderGone,
    RemoteValues,
)
from tests.distributed.ranks import Ran, run_ranks
from tests.leftovers import wait_until

SOURCE = Path(__file__).with_name("rpc_cases.py").read_text()
CASES = [
    node.name
    for node in ast.parse(SOURCE).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
]

LOST = """
import os, signal, threading
import mpgrad as mg
import mpgrad.distributed.rpc as rpc

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def add(a, b):
    return a + b

begun, done = threading.Event(), threading.Event()

def begin():
    begun.set()

def end():
    done.set()

rank = int(os.environ["RANK"])
rpc.init_rpc(f"worker{rank}")
if rank != 1:
    rpc.rpc_sync(2 - rank, begin)
    begun.wait()
    for function in (die, die):
        try:
            rpc.rpc_sync("worker1", function)
        except mg.errors.HostLost as error:
            print(error.rank, "rpc of die: rank 1 is lost" in str(error))
    print(rpc.rpc_sync(2 - rank, add, (1, 2)))
    rpc.rpc_sync(2 - rank, end)
    done.wait()
    try:
        rpc.shutdown()
    except mg.errors.HostLost as error:
        print(error.rank)
else:
    rpc.shutdown()
"""

NEVER_READY = """
import os
import mpgrad as mg
import mpgrad.distributed as dist
import mpgrad.distributed.rpc as rpc

dist.init_process_group()
if dist.get_rank() == 1:
    for other in (0, 2):  # they are in the group, too
        dist.recv(mg.ones(1), other)
    os._exit(0)
dist.send(mg.ones(1), 1)
try:
    rpc.init_rpc(f"worker{dist.get_rank()}")
except mg.errors.HostLost as error:
    print(error.rank, str(error).startswith("init_rpc: rank 1 is lost"))
"""

IN_A_GROUP = """
import mpgrad.distributed as dist
dist.init_process_group()
"""

AGAIN = """
import os
import mpgrad.distributed.rpc as rpc

def value(number):
    return number

rank = int(os.environ["RANK"])
for number in range(12):
    rpc.init_rpc(f"worker{rank}")
    reference = rpc.remote(f"worker{(rank + 1) % 3}", value, (number,))
    assert rpc.rpc_sync(f"worker{(rank + 2) % 3}", value, (number,)) == number
    assert reference.to_here() == number
    rpc.shutdown()
    try:
        reference.to_here()
    except RuntimeError as error:
        assert "RPC has been shut down" in str(error), error
print("done")
"""

TWICE = """
import mpgrad.distributed.rpc as rpc
try:
    rpc.init_rpc("one name")
except RuntimeError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_ranks(tmp_path_factory.mktemp("rpc"), SOURCE, 3)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_case(ran: Ran, name: str) -> None:
    assert ran.code == 0, ran.errors
    said = [line for rank in range(3) for line in ran.lines[rank] if line.split()[0] == name]
    assert said == [f"{name} passed"] * 3


@pytest.mark.process
@pytest.mark.slow
def test_calls_of_a_dead_process_fail_and_others_go_on(tmp_path: Path) -> None:
    ran = run_ranks(tmp_path, LOST, 3)
    assert ran.lines == {rank: ["1 True", "1 True", "3", "1"] for rank in (0, 2)}, ran.errors


@pytest.mark.process
@pytest.mark.slow
def test_a_process_that_dies_before_it_is_ready_is_named(tmp_path: Path) -> None:
    ran = run_ranks(tmp_path, NEVER_READY, 3)
    assert ran.code == 0, ran.errors
    assert ran.lines == {rank: ["1 True"] for rank in (0, 2)}


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("group", ["", IN_A_GROUP], ids=["alone", "in a group"])
def test_init_rpc_again_and_again(tmp_path: Path, group: str) -> None:
    ran = run_ranks(tmp_path, group + AGAIN, 3)
    assert ran.code == 0, ran.errors
    assert ran.lines == {rank: ["done"] for rank in range(3)}


@pytest.mark.process
@pytest.mark.slow
def test_duplicate_name(tmp_path: Path) -> None:
    ran = run_ranks(tmp_path, TWICE, 2)
    assert ran.code == 0, ran.errors
    for rank in range(2):
        assert ran.lines[rank][0].startswith("RPC worker name one name is not unique")


# ---------------------------------------------------------------------------- in one process


def test_bytes_that_are_missing_are_an_error() -> None:
    frames = packed(b"x" * 100, "it", same_main=True, reduce=lambda _: None)
    views = [memoryview(frame) for frame in frames]
    assert unpacked(views) == b"x" * 100
    with pytest.raises(ValueError, match="bytes were announced, and 0 came"):
        unpacked(views[:1])


class _Thread:
    """Of a group whose messages go nowhere."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Any]] = []
        self.member = GroupMember(0, 3, self._send)

    def _send(self, to: int, frames: list[Any]) -> None:
        self.sent.append((to, decode_head(frames[0])))

    def ask(self, request: Callable[[], None]) -> None:
        request()

    do = ask

    def wait_until(self, is_there: Callable[[], bool], timeout_s: float | None) -> bool:
        return is_there()


def test_a_call_that_comes_early_waits_until_all_others_are_known() -> None:
    thread: Any = _Thread()
    service = RpcService(thread, "a", lambda obj, to: None)
    service.begin()

    class ComesWhenAwaited(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            service.handle(2, RpcReady(b"c", ""), [])
            return super().wait(timeout)

    service.all_ready = ComesWhenAwaited()
    service.handle(1, RpcReady(b"b", ""), [])
    _services[:] = [service]
    frames = packed((calls_on, (), {}), "it", same_main=True, reduce=lambda _: None)
    unpickled = [memoryview(frame) for frame in frames]
    service.handle(1, Call(7), unpickled)
    assert wait_until(lambda: any(isinstance(told, CallEnded) for _, told in thread.sent))
    assert (1, CallEnded(7, False)) in [(to, _bare(told)) for to, told in thread.sent]


def test_what_is_packed_does_not_change_with_its_tensor() -> None:
    values = mg.zeros(1000)
    frames = packed(values, "it", same_main=True, reduce=lambda _: None)
    values.fill_(1.0)
    assert unpacked([memoryview(frame) for frame in frames]).max() == 0.0


def test_what_a_collective_sends_does_not_change_with_its_array() -> None:
    values = np.zeros(8)
    [frame] = Operation("it", [], values, values).outgoing(Send(1, 0, 0, 1))
    values[:] = 1.0
    assert np.frombuffer(frame).max() == 0.0


def test_who_leaves_because_of_a_death_says_so() -> None:
    thread = _Thread()
    gone: list[tuple[int, str]] = []
    calls: Any = SimpleNamespace(gone=lambda rank, cause: gone.append((rank, cause)))
    thread.member.attach(calls)
    thread.member.handle(2, [encode_head(Farewell(1, "it died"))])
    assert gone == [(2, "it has left the group after rank 1 was lost")]


_services: list[RpcService] = []


def calls_on() -> None:
    _services[0].calls.make(2, len, ((),), {}, 0)


def _bare(message: Any) -> Any:
    return CallEnded(message.number, message.is_error) if hasattr(message, "is_error") else message


VALUE = (0, 5)


def test_a_value_lives_as_long_as_a_reference() -> None:
    book = RemoteValues()
    assert book.handle_event(ForkAdded(VALUE, (1, 0), 1, -1)) == []
    assert book.handle_event(ForkAdded(VALUE, (1, 1), 2, 1)) == [ConfirmFork(1, (1, 1))]
    assert book.handle_event(ForkDropped(VALUE, (1, 0))) == []
    assert book.is_held(VALUE)
    assert book.handle_event(ForkDropped(VALUE, (1, 1))) == [DropValue(VALUE)]
    assert book.count == 0


def test_a_reference_that_was_dropped_before_it_was_known_holds_nothing() -> None:
    book = RemoteValues()
    book.handle_event(ForkAdded(VALUE, (1, 0), 1, -1))
    assert book.handle_event(ForkDropped(VALUE, (1, 1))) == []
    assert book.handle_event(ForkAdded(VALUE, (1, 1), 2, 1)) == [ConfirmFork(1, (1, 1))]
    assert book.handle_event(ForkDropped(VALUE, (1, 0))) == [DropValue(VALUE)]
    book.handle_event(ForkDropped(VALUE, (1, 2)))
    assert book.handle_event(ForkAdded(VALUE, (1, 2), 1, -1)) == [DropValue(VALUE)]


def test_a_dead_host_holds_nothing() -> None:
    book = RemoteValues()
    book.handle_event(ForkAdded(VALUE, (1, 0), 1, -1))
    book.handle_event(ForkAdded(VALUE, (1, 1), 2, 1))
    assert book.handle_event(HolderGone(2)) == []
    assert book.handle_event(HolderGone(1)) == [DropValue(VALUE)]
