"""A coordinator whose memory was overwritten: what it sends wrongly hurts nobody and hangs nobody.

The engine is a real one. Once per case its coordinator replaces one frame of its own by a wrong
one, at the ``Router`` interface, so that this holds for every transport.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.errors import ProtocolError
from tests.process.conftest import ROOT, check_usable

pytestmark = pytest.mark.process

#: Python runs this file at every start. In a coordinator it wraps the Router: the first frame of
#: this kind is replaced, once per file "armed".
HOSTILE = """
import os, sys
if "mpgrad.coordinator" in sys.orig_argv:
    sys.path.insert(0, {root!r})
    from mpgrad.coordinator import coordinator
    from mpgrad.base.handles import Block
    from mpgrad.scheduler import instructions as do
    from mpgrad.wire import schema
    from mpgrad.wire.schema import decode, encode

    class HostileRouter:
        def __init__(self, router):
            self._router = router

        def __getattr__(self, name):
            return getattr(self._router, name)

        def send(self, lane, peer, frame):
            message = decode(frame)
            if os.path.exists({armed!r}):
                kind, _, wrong = open({armed!r}).read().partition(" ")
                if type(message).__name__ == kind and peer[0] == {victim!r}:
                    os.unlink({armed!r})
                    frame = eval(wrong)
                    if not isinstance(frame, bytes):
                        frame = encode(frame)
            self._router.send(lane, peer, frame)

    init = coordinator.Coordinator.__init__
    coordinator.Coordinator.__init__ = lambda self, setup, router, *rest: init(
        self, setup, HostileRouter(router), *rest
    )
"""

Arm = Callable[[str], None]


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Arm]:
    """Engines that are started from now on obey what the result is told: "Kind expression"."""

    def make(victim: str) -> Arm:
        armed = tmp_path / "armed"
        source = HOSTILE.format(root=str(ROOT), armed=str(armed), victim=victim)
        (tmp_path / "sitecustomize.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

        def arm(what: str) -> None:
            unfinished = tmp_path / "unfinished"
            unfinished.write_text(what)
            unfinished.rename(armed)

        return arm

    return make


LARGE = 4000


class OnWorker(mg.Function):
    """Doubles, always on a worker: the client must be sent the hook that runs after it."""

    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * 2


#: What the client is sent instead of what, and a word of the error.
TO_CLIENT = {
    "nothing": ("CompleteGraph b''", "0 bytes"),
    "noise": ("CompleteGraph bytes(range(200, 250))", "kind 200"),
    "half of it": ("CompleteGraph frame[:len(frame) // 2]", "malformed CompleteGraph"),
    "what workers are told": ("CompleteGraph do.ShutDown(peer)", "not expected here"),
    "another graph": ("CompleteGraph message._replace(graph=10**9)", f"graph {10**9} ended twice"),
    "a block of no arena": (
        "CompleteGraph message._replace(captures=(Block(7, 64, 32000, 1),))", "7"),
    "a block beyond the arena": (
        "CompleteGraph message._replace(captures=(Block(1, 10**15, 32000, 1),))", f"{10**15}"),
    "a stale block": (
        "CompleteGraph message._replace(captures=(message.captures[0]._replace(generation=99),))",
        "generation"),
    "too few bytes": ("CompleteGraph message._replace(captures=(b'123',))", "3 bytes"),
    "a task of another graph": (
        "DispatchNodeTask message._replace(owner_number=10**9)", f"graph {10**9}"),
}  # fmt: skip


def test_the_client_ends_it_and_says_why(hostile: Callable[[str], Arm]) -> None:
    arm = hostile("c")
    with mg.Engine("process", cpu_workers=1) as engine:
        for case, (what, word) in TO_CLIENT.items():
            check_usable()
            refused, pid = engine.statistics().protocol_errors, engine.coordinator_pid
            x = mg.ones(LARGE, requires_grad=True)
            y = mg.exp(x)
            if what.startswith("Dispatch"):
                y.register_hook(lambda grad: grad)
            arm(what)
            with pytest.raises(ProtocolError) as caught:
                OnWorker.apply(y).sum().backward()
            told = str(caught.value)
            assert f"coordinator process (pid {pid})" in told, case
            assert word in told, case
            assert "No .grad was changed" in told, case
            assert x.grad is None, case
            assert engine.statistics().protocol_errors == refused + 1, case


#: What a worker is sent instead of a DispatchNodeTask.
TO_WORKER = {
    "nothing": "b''",
    "half of it": "frame[:len(frame) // 2]",
    "what clients are told": "schema.Welcome(peer, 2)",
}


def test_a_worker_ends_with_a_clear_error_and_its_task_is_run_again(
    hostile: Callable[[str], Arm], capfd: pytest.CaptureFixture[str]
) -> None:
    arm = hostile("w")
    with mg.Engine("process", cpu_workers=1) as engine:
        check_usable()
        for number, wrong in enumerate(TO_WORKER.values()):
            x = mg.ones(LARGE, requires_grad=True)
            arm(f"DispatchNodeTask {wrong}")
            (x * 3.0).sum().backward()
            assert x.grad.tolist() == [3.0] * LARGE
            assert engine.statistics().restarts == number + 1
            first, *_, last = capfd.readouterr().err.splitlines()
            assert "met an internal error" in first
            assert last.startswith("mpgrad.errors.ProtocolError: ")


#: What else is wrong with a task that a worker is sent, and a word of the error of the backward.
TO_WORKER_IN_VAIN = {
    "a program beyond the arena": (
        "message._replace(payload=(10**15, 9), program=b'')", "1000000000000000"),
    "a program that is none": (
        "message._replace(payload=(0, 16), program=b'')", "malformed task program"),
    "a message with another program": (
        "message._replace(program=message.program[1:])", "malformed task program"),
    "a block of no arena": ("message._replace(inputs=((Block(7, 64, 32000, 1),),))", "no arena 7"),
    "a block beyond the arena": (
        "message._replace(inputs=((Block(1, 10**15, 32000, 1),),))", "1000000000000000"),
    "too few bytes": ("message._replace(inputs=((b'123',),))", "3 bytes"),
    "no inputs": ("message._replace(inputs=())", "got 0 inputs"),
    "no blocks": ("message._replace(blocks=())", "a task that got 0 blocks"),
    "more inputs than Nodes": (
        "message._replace(inputs=message.inputs * 2)", "got 2 inputs"),
}  # fmt: skip


def test_a_worker_refuses_what_a_task_may_not_name(hostile: Callable[[str], Arm]) -> None:
    arm = hostile("w")
    with mg.Engine("process", cpu_workers=1) as engine:
        for case, (wrong, word) in TO_WORKER_IN_VAIN.items():
            check_usable()
            x = mg.ones(LARGE, requires_grad=True)
            arm(f"DispatchNodeTask {wrong}")
            with pytest.raises(ProtocolError) as caught:
                mg.exp(x).sum().backward()
            assert word in str(caught.value), case
            assert "a bug in mpgrad" in " ".join(caught.value.__notes__), case
            assert x.grad is None, case
        for wrong in ("message.blocks[:1]", "()", "message.blocks * 2"):
            arm(f"DispatchNodeTask message._replace(blocks={wrong})")
            with pytest.raises(ProtocolError, match=r"a task of 1 calls got [014] blocks"):
                mg.parallel_map(mg.exp, [x])
        assert engine.statistics().restarts == 0
