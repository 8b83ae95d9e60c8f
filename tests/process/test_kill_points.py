"""The crash matrix: a process dies at every kill point, and no bit of any gradient changes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.autograd.frozen_graphs import costs
from mpgrad.autograd.frozen_graphs.freeze import freeze
from mpgrad.engine.placement import place
from mpgrad.recording.tensors.tensor import gradient_edge
from mpgrad.scheduler import tuning
from tests.leftovers import wait_until
from tests.process.conftest import plans_of_shapes_alone
from tests.process.kill_points import PHASES, dying, kill_at

pytestmark = pytest.mark.process

IN_A_TASK = [phase for phase in PHASES["worker"] if phase != "joining"]
WHICH = ("first", "middle", "last")
WORKERS = (1, 2, 4)


@pytest.fixture(autouse=True)
def leaves_nothing(module_leaves_nothing: None) -> None:
    """Every cell of the matrix replaces a worker of a shared engine: the module is checked."""


@pytest.fixture(scope="module", autouse=True)
def one_node_per_task() -> Iterator[None]:
    """The same NodeTasks in every backward, whatever their costs."""
    with pytest.MonkeyPatch.context() as patch:
        plans_of_shapes_alone(patch)
        patch.setattr(tuning, "WORTH_MESSAGES", 0.01)
        patch.setattr(tuning, "TASK_MAX_US", 0.0)
        yield


def leaf() -> mg.Tensor:
    values = np.random.default_rng(7).normal(size=(60, 60))
    return mg.tensor(values.astype(np.float32), requires_grad=True)


def tree(x: mg.Tensor) -> mg.Tensor:
    """Eight branches with sums at both ends; every gradient is larger than a message may hold."""
    branches = [mg.tanh(mg.sin(x * (0.5 + number))) for number in range(8)]
    while len(branches) > 1:
        branches = [left * right for left, right in zip(branches[::2], branches[1::2], strict=True)]
    return (branches[0] + mg.exp(x)).sum()


def gradient() -> bytes:
    x = leaf()
    tree(x).backward()
    return x.grad.numpy().tobytes()


@pytest.fixture(scope="module")
def undisturbed() -> bytes:
    with mg.Engine("local"):
        return gradient()


def tasks_of_workers(engine: mg.Engine) -> list[int]:
    """Numbers, from 1, of the tree's NodeTasks that workers run."""
    frozen = freeze([gradient_edge(tree(leaf()))], [None], keep_graph=True, cost=costs.estimate)
    planned = engine._execution.preparation.plan_of(place(frozen).frozen).plan
    return [number + 1 for number in range(int(planned.opens_alone), len(planned.tasks))]


def nth_of(tasks: list[int], which: str) -> int:
    return {"first": tasks[0], "middle": tasks[len(tasks) // 2], "last": tasks[-1]}[which]


@pytest.fixture(scope="module", params=WORKERS, ids=lambda workers: f"{workers} workers")
def doomed_engine(request: pytest.FixtureRequest) -> Iterator[mg.Engine]:
    """One worker dies in each of its first backwards, at the next point of the matrix."""
    engine = mg.Engine("process", cpu_workers=request.param)
    tasks = tasks_of_workers(engine)
    assert len(tasks) > 12
    points = [f"worker:{phase}:{nth_of(tasks, which)}" for phase, which in matrix()]
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, ",".join(points))
            stack.enter_context(engine)
        yield engine


def matrix() -> list[tuple[str, str]]:
    return [(phase, which) for phase in IN_A_TASK for which in WHICH]


@pytest.mark.parametrize(("phase", "which"), matrix())
def test_a_worker_dies(
    doomed_engine: mg.Engine, undisturbed: bytes, phase: str, which: str
) -> None:
    at = matrix().index((phase, which))
    while doomed_engine.statistics().backwards_process < at:
        gradient()  # a test run by itself comes to its point in its turn
    assert gradient() == undisturbed
    # The kill has fired, once, and the slot has a new worker.
    assert wait_until(lambda: doomed_engine.statistics().restarts == at + 1)
    assert doomed_engine.statistics().failed == 0


@pytest.mark.parametrize(
    ("deed", "deaths"),
    [("FORK", 0), ("TERM", 0), ("USR1", 0), ("SEGV", len(IN_A_TASK)), ("CLOSE", len(IN_A_TASK))],
)
def test_signals_forks_and_closed_descriptors(
    monkeypatch: pytest.MonkeyPatch, undisturbed: bytes, deed: str, deaths: int
) -> None:
    """In each phase of a task; what does not end a worker changes nothing."""
    points = ", ".join(f"worker:{phase}:2:{deed}" for phase in IN_A_TASK)
    kill_at(monkeypatch, points)
    with mg.Engine("process", cpu_workers=2) as engine:
        for _ in IN_A_TASK:
            assert gradient() == undisturbed
        assert wait_until(lambda: engine.statistics().restarts >= deaths)
        assert engine.statistics().restarts == deaths


@pytest.mark.parametrize("nth", [1, 2])
def test_a_worker_dies_before_it_is_ready(
    monkeypatch: pytest.MonkeyPatch, undisturbed: bytes, nth: int
) -> None:
    kill_at(monkeypatch, f"worker:joining:{nth}")
    with mg.Engine("process", cpu_workers=2) as engine:
        assert gradient() == undisturbed
        assert engine.statistics().restarts == 1


def test_a_kill_by_another_signal_is_a_fault_of_the_task(
    monkeypatch: pytest.MonkeyPatch, undisturbed: bytes
) -> None:
    """One such death is forgiven; that of a first attempt never is the second."""
    kill_at(monkeypatch, "worker:ran:4:SEGV,-,worker:ran:5:SEGV")
    with mg.Engine("process", cpu_workers=2) as engine:
        assert [gradient() for _ in range(3)] == [undisturbed] * 3
        assert wait_until(lambda: engine.statistics().restarts == 2)


@pytest.mark.parametrize(
    ("points", "allowed"),
    [
        ("wroker:ran:3", "worker, coordinator, client"),
        ("worker:ran:3, worker:run:3", "received, summed, ran"),
        ("worker:ran:0", "at least 1"),
        ("worker:ran:1:HUGS", "SIGHUGS is no signal"),
    ],
)
def test_a_bad_point_is_named_with_what_is_allowed(points: str, allowed: str) -> None:
    with pytest.raises(ValueError, match=allowed):
        dying(points)
