"""The calling thread runs a part of the branches while the workers run theirs (``auto``)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.engine import preparation
from mpgrad.engine.client_worker import ClientWorker
from mpgrad.engine.local_tasks import LocalTask
from mpgrad.errors import CoordinatorLost
from mpgrad.scheduler.graph_spec import GraphSpec
from mpgrad.scheduler.plan import plan
from mpgrad.scheduler.plan_tables import Plan
from tests.process.conftest import check_usable, plans_of_shapes_alone
from tests.process.test_bits import PROGRAMS, differing, fingerprints

pytestmark = pytest.mark.process

HERE = os.getpid()


@pytest.fixture(scope="module", autouse=True)
def same_plan_every_time() -> Iterator[None]:
    """What is measured on a busy machine may leave the calling thread without a part."""
    with pytest.MonkeyPatch.context() as patch:
        plans_of_shapes_alone(patch)
        yield


def plan_with_any_part(spec: GraphSpec, **options: Any) -> Plan:
    """A plan in which the calling thread gets a task whenever that is possible."""
    planned = plan(spec, **options)
    first = int(planned.opens_alone)
    if first == len(planned.tasks) or planned.joins[first]:
        return planned
    task, members = planned.tasks[first], planned.groups[first]
    is_whole = not any(member.is_half or member.piece_of is not None for member in members)
    at_hand = sum(seed[0] == first for seed in planned.seeds)
    at_hand += sum(out.task == first for out in planned.tasks[0].outputs if first)
    if task.is_for_cpu and is_whole and task.dependencies == at_hand:
        return planned._replace(local_share=first)
    return planned


@pytest.fixture(scope="module")
def process_engine() -> Iterator[mg.Engine]:
    """Runs all graphs in two workers and, as far as possible, in the calling thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "plan", plan_with_any_part)
        with mg.Engine("process", cpu_workers=2) as engine:
            yield engine


class Branch(mg.Function):
    """Doubles. It costs a few milliseconds, so that branches are shared out; it may fail, too.

    Attributes:
        fails: "": it does not; the kind of failure, where that happens: in the client or in a
            worker.
    """

    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, fails: str = "", number: int = 0) -> Any:
        ctx.fails, ctx.number = fails, number
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        sum(range(100_000))
        where = "client" if os.getpid() == HERE else "worker"
        if ctx.fails in ("anywhere", where):
            raise ValueError(f"branch {ctx.number}")
        if ctx.fails == f"interrupts {where}":
            signal.raise_signal(signal.SIGINT)
        if ctx.fails == f"nests {where}":
            inner = mg.ones(3, requires_grad=True)
            with mg.enable_grad():
                (inner * 3).sum().backward()
            return grad * 2 * inner.grad.mean() / 3, None, None
        return grad * (3 if ctx.fails == "says where" and where == "client" else 2), None, None


def run(
    leaves: list[mg.Tensor], fails: dict[int, str] | str = "", repeat: int = 4
) -> list[mg.Tensor]:
    """The gradients of branches behind a sum, in a graph whose costs are known."""
    for _ in range(repeat):
        grads = mg.grad(mg.stack([Branch.apply(x).sum() for x in leaves]).sum(), leaves)
    failing = fails if isinstance(fails, dict) else dict.fromkeys(range(len(leaves)), fails)
    branches = [
        Branch.apply(x, failing.get(number, ""), number).sum() for number, x in enumerate(leaves)
    ]
    grads = mg.grad(mg.stack(branches).sum(), leaves)
    return list(grads)


def leaves_of(count: int = 8, size: int = 4) -> list[mg.Tensor]:
    return [mg.ones(size, requires_grad=True) for _ in range(count)]


def test_it_runs_some_branches_here_and_the_others_in_workers(engine: mg.Engine) -> None:
    grads = run(leaves_of(), "says where")
    scales = [grad[0].item() for grad in grads]
    assert set(scales) == {2.0, 3.0}


def test_large_gradients_are_results_too(engine: mg.Engine) -> None:
    grads = run(leaves_of(size=100_000), "says where")
    scales = {grad[0].item() for grad in grads}
    assert scales == {2.0, 3.0}
    assert all((grad == grad[0]).all() for grad in grads)


def test_a_leaf_that_all_branches_share(engine: mg.Engine) -> None:
    """What the calling thread computes flows into a sum that a worker takes."""
    x = mg.ones(4, requires_grad=True)
    for _ in range(4):
        loss = mg.stack([Branch.apply(x * k).sum() for k in range(1, 9)]).sum()
        (grad,) = mg.grad(loss, x)
    assert grad.tolist() == [72.0] * 4


@pytest.mark.slow
@pytest.mark.parametrize("fuse", [True, False])
def test_random_programs_have_the_bits_of_local(
    fuse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mg.Engine("local"):
        serial = [fingerprints(seed) for seed in range(PROGRAMS)]
    monkeypatch.setattr(preparation, "plan", partial(plan_with_any_part, fuse=fuse))
    with mg.Engine("process", cpu_workers=2) as engine:
        assert differing(range(0, PROGRAMS, 2), serial) == []
        assert engine.statistics().tasks["client"] > PROGRAMS // 4


@pytest.mark.parametrize("where", ["client", "worker", "anywhere"])
def test_the_first_error_of_the_serial_order_is_raised(engine: mg.Engine, where: str) -> None:
    leaves = leaves_of()
    numbers = [
        number for number, grad in enumerate(run(leaves, "says where"))
        if where == "anywhere" or (grad[0].item() == 3.0) == (where == "client")
    ]  # fmt: skip
    with mg.Engine("local"), pytest.raises(ValueError, match="branch") as first:
        run(leaves, dict.fromkeys(numbers, "anywhere"), repeat=0)
    with pytest.raises(ValueError, match=str(first.value)):
        run(leaves, dict.fromkeys(numbers, "anywhere"))
    check_usable()


def test_an_error_here_where_others_wait_for_the_gradient(engine: mg.Engine) -> None:
    x = mg.ones(4, requires_grad=True)
    for _ in range(4):
        mg.grad(mg.stack([Branch.apply(x * k).sum() for k in range(1, 9)]).sum(), x)
    loss = mg.stack([Branch.apply(x * k, "client", k).sum() for k in range(1, 9)]).sum()
    with pytest.raises(ValueError, match="branch"):
        loss.backward()
    assert x.grad is None


def test_ctrl_c_in_its_part(engine: mg.Engine) -> None:
    leaves = leaves_of()
    with pytest.raises(KeyboardInterrupt):
        run(leaves, "interrupts client")
    assert all(x.grad is None for x in leaves)


def test_a_backward_inside_its_part(engine: mg.Engine) -> None:
    assert [grad.tolist() for grad in run(leaves_of(), "nests client")] == [[2.0] * 4] * 8


def test_a_worker_dies_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "plan", plan_with_any_part)
    with mg.Engine("process", cpu_workers=2) as engine:
        leaves = leaves_of()
        run(leaves)
        for pid in engine.worker_pids():
            os.kill(pid, signal.SIGKILL)
        assert [grad.tolist() for grad in run(leaves, repeat=0)] == [[2.0] * 4] * 8


@pytest.mark.parametrize("recover", ["worker", "all"])
def test_the_coordinator_dies_meanwhile(monkeypatch: pytest.MonkeyPatch, recover: str) -> None:
    """Its part is no hook: it may run again."""
    monkeypatch.setattr(preparation, "plan", plan_with_any_part)
    with mg.Engine("process", cpu_workers=2, recover=recover) as engine:
        leaves = leaves_of()
        run(leaves)
        run_own, doomed = ClientWorker._run_own, [engine.coordinator_pid]

        def kills(self: ClientWorker, own: LocalTask) -> Any:
            if doomed:
                os.kill(doomed.pop(), signal.SIGKILL)  # type: ignore[arg-type]
            return run_own(self, own)

        monkeypatch.setattr(ClientWorker, "_run_own", kills)
        # It must not send the results of the workers before it dies: they would count.
        os.kill(doomed[0], signal.SIGSTOP)  # type: ignore[arg-type]
        if recover == "all":
            assert [grad.tolist() for grad in run(leaves, repeat=0)] == [[2.0] * 4] * 8
        else:
            with pytest.raises(CoordinatorLost):
                run(leaves, repeat=0)
        assert not doomed


SEEN: list[int] = []


class SometimesAppends(mg.Function):
    """Changes what it reads when forward says so."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, appends: bool) -> Any:
        ctx.appends = appends
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        seen = SEEN
        sum(range(30_000))  # so that workers have a part
        if ctx.appends:
            seen += [1]
        return grad * (2.0 + len(seen)), None


def test_what_it_changes_is_never_changed_twice(engine: mg.Engine) -> None:
    """A Function that has changed nothing so far does so, here and on workers at once."""
    leaves = leaves_of()

    def gradients(appends: bool) -> list[float]:
        outputs = [SometimesAppends.apply(x, appends).sum() for x in leaves]
        return [grad[0].item() for grad in mg.grad(mg.stack(outputs).sum(), leaves)]

    SEEN.clear()
    for _ in range(5):
        assert gradients(appends=False) == [2.0] * 8
    try:
        found = gradients(appends=True)
    except RuntimeError as error:
        assert "changes" in str(error)  # noqa: PT017
        SEEN.clear()
        found = gradients(appends=True)
    assert (sorted(found), len(SEEN)) == ([3.0 + k for k in range(8)], 8)
