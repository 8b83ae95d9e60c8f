"""The crash matrix of both passes: a process dies at every kill point of calls and backwards.

As in ``test_kill_points``; no bit of any gradient changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.autograd.frozen_graphs import costs
from mpgrad.autograd.frozen_graphs.freeze import freeze
from mpgrad.engine.placement import place
from mpgrad.parallel import placing
from mpgrad.recording.tensors.tensor import gradient_edge
from tests.leftovers import wait_until
from tests.process.kill_points import PHASES, SPARED, kill_at
from tests.process.test_kill_points import IN_A_TASK, nth_of, one_node_per_task

__all__ = ["one_node_per_task"]

pytestmark = pytest.mark.process

CALLS = 6
PASSES = ("forward", "backward")
LONG = (pytest.mark.long, pytest.mark.slow)
WORKERS = (pytest.param(1, marks=LONG), 2, pytest.param(4, marks=LONG))
#: The others take as long as the start of an engine each.
PHASES_OF_COORDINATOR = [
    pytest.param(phase, marks=() if phase == "answered" else LONG)
    for phase in PHASES["coordinator"]
]
#: In a matrix of both passes the first and the last task: the middle is like the first.
WHICH = ("first", "last")


@pytest.fixture(autouse=True, scope="module")
def one_call_per_task() -> Iterator[None]:
    """The number of tasks, as the kill points count them, does not depend on how fast they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placing.CUTS, "tasks", lambda name, chunks: chunks)
        yield


@pytest.fixture(autouse=True)
def leaves_nothing(module_leaves_nothing: None) -> None:
    """Every cell of the matrix replaces a worker of a shared engine: the module is checked."""


def leaves() -> list[mg.Tensor]:
    values = np.random.default_rng(7).normal(size=(CALLS + 1, 50, 50)).astype(np.float32)
    return [mg.tensor(value, requires_grad=True) for value in values]


def branch(x: mg.Tensor, k: float, w: mg.Tensor) -> mg.Tensor:
    """What it gives and all gradients are larger than a message may hold."""
    return mg.tanh(mg.sin(x * k) @ w) + mg.nn.functional.dropout(x, 0.3)


def loss(ones: list[mg.Tensor]) -> mg.Tensor:
    *xs, w = ones
    mg.manual_seed(3)
    outs = mg.parallel_map(branch, xs, [0.5 + k for k in range(CALLS)], shared=(w,))
    total = outs[0]
    for out in outs[1:]:
        total = total * out
    return total.sum()


def gradient() -> bytes:
    ones = leaves()
    loss(ones).backward()
    return b"".join(one.grad.numpy().tobytes() for one in ones)


@pytest.fixture(scope="module")
def undisturbed() -> bytes:
    with mg.Engine("local"):
        return gradient()


def matrix() -> list[tuple[str, str, str]]:
    return [(which_pass, phase, at) for which_pass in PASSES for phase in IN_A_TASK for at in WHICH]


def tasks_of_backward() -> list[int]:
    """Numbers, from 1, of the NodeTasks of a backward that differentiate a branch."""
    with mg.Engine("process", cpu_workers=2) as engine:
        out = loss(leaves())
        frozen = freeze([gradient_edge(out)], [None], keep_graph=True, cost=costs.estimate)
        planned = engine._execution.preparation.plan_of(place(frozen).frozen).plan
        names = [node.name for node in frozen.spec.nodes]
        found = [planned.task_of[at] for at, name in enumerate(names) if "Fork" in name]
    assert len(set(found)) == CALLS
    return [task + 1 for task in sorted(found)]


@pytest.fixture(scope="module", params=WORKERS, ids=lambda workers: f"{workers} workers")
def doomed_engine(request: pytest.FixtureRequest) -> Iterator[mg.Engine]:
    """One worker dies in each of its first steps, at the next point of the matrix."""
    numbers = {"forward": list(range(1, CALLS + 1)), "backward": tasks_of_backward()}
    points = []
    for which_pass, phase, at in matrix():
        point = f"worker:{phase}:{nth_of(numbers[which_pass], at)}"
        points += [point, SPARED] if which_pass == "forward" else [SPARED, point]
    engine = mg.Engine("process", cpu_workers=request.param)
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, ", ".join(points))
            stack.enter_context(engine)
        yield engine


@pytest.mark.parametrize(("which_pass", "phase", "at"), matrix())
def test_a_worker_dies(
    doomed_engine: mg.Engine, undisturbed: bytes, which_pass: str, phase: str, at: str
) -> None:
    number = matrix().index((which_pass, phase, at))
    while doomed_engine.statistics().backwards_process < number:
        gradient()  # a test run by itself comes to its point in its turn
    assert gradient() == undisturbed
    # The kill has fired, once, and the slot has a new worker.
    assert wait_until(lambda: doomed_engine.statistics().restarts == number + 1)
    assert doomed_engine.statistics().failed == 0


@pytest.mark.parametrize("which_pass", PASSES)
@pytest.mark.parametrize("phase", PHASES_OF_COORDINATOR)
def test_the_coordinator_dies(undisturbed: bytes, which_pass: str, phase: str) -> None:
    """It has completed the calls when it passes a phase for the last time that they have."""
    once = phase in ("submitted", "completing", "completed")
    nth = 1 if which_pass == "forward" else 2 if once else CALLS + 2
    engine = mg.Engine("process", cpu_workers=2, recover="all")
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, f"coordinator:{phase}:{nth}")
            stack.enter_context(engine)
        first = engine.coordinator_pid
        assert gradient() == undisturbed
        assert gradient() == undisturbed
        assert wait_until(lambda: engine.coordinator_pid != first)
        assert engine.statistics().failed == 0
