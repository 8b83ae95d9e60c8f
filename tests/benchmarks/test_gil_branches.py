"""The main workload computes what it says, where it says; nothing here is timed."""

from __future__ import annotations

import numpy as np
import psutil
import pytest

import mpgrad as mg
from benchmarks.bare_processes import BareProcesses
from benchmarks.gil_work import branch_input, spin
from benchmarks.loads import ALONE
from benchmarks.rounds import Effort, measure
from benchmarks.runners import ForwardPass, Runner, mpgrad_runners
from benchmarks.workloads import gil_branches
from mpgrad.autograd.frozen_graphs import costs
from mpgrad.autograd.frozen_graphs.freeze import freeze
from mpgrad.autograd.running import engine_slot
from mpgrad.engine.engine import current_engine
from mpgrad.engine.placement import place
from mpgrad.recording.tensors.tensor import gradient_edge
from tests.leftovers import is_alive, wait_until

LOOPS = 50


def test_every_loop_counts() -> None:
    results = {spin(loops) for loops in range(LOOPS)}
    assert len(results) == LOOPS
    assert all(0.0 < result < 1.0 for result in results)


def test_branches_may_run_on_workers() -> None:
    """A Function that has to stay in the client would make ``process`` a serial contender."""
    root = gil_branches.program(mg, LOOPS, elements=4).forward()
    frozen = freeze([gradient_edge(root)], [None], keep_graph=True, cost=costs.estimate)
    placed = place(frozen).frozen
    assert not any(spec.on_client for spec in placed.spec.nodes)


@pytest.mark.slow
def test_the_limit_computes_the_gradients_and_ends() -> None:
    before = psutil.Process().children()  # another test's engine may be there
    with BareProcesses(branches=4, loops=LOOPS, elements=8) as limit:
        started = [child for child in psutil.Process().children() if child not in before]
        assert len(started) == 2
        for _ in range(2):
            limit.run()
        limit.ping()
        limit.renew()
        assert not any(child.is_running() for child in started)
        started = [child for child in psutil.Process().children() if child not in before]
        assert len(started) == 2
        limit.run()
        found = [gradient.copy() for gradient in limit.gradients()]
    expected = [branch_input(branch, 8) * np.float32(spin(LOOPS)) for branch in range(4)]
    assert np.array_equal(found, expected)
    assert not any(child.is_running() for child in started)


@pytest.mark.slow
@pytest.mark.process
def test_all_contenders_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    grain = gil_branches._GRAINS[-1]._replace(repeats=1)
    monkeypatch.setattr(gil_branches, "_GRAINS", (grain,))
    monkeypatch.setattr(gil_branches, "start_auto", lambda *_: None)
    results = [measure(case, Effort(1, 1)) for case in gil_branches.cases(True)]
    one, tasks = (set(result.samples) for result in results)
    assert {"mpgrad process", "mpgrad local", gil_branches.LIMIT, ALONE} <= one
    assert {"mpgrad process", "ProcessPoolExecutor"} <= tasks


@pytest.mark.slow
@pytest.mark.process
def test_a_runner_uses_its_own_engine() -> None:
    """Several engines live side by side; afterwards the default one serves again."""
    with mpgrad_runners("process", "local", workers=1) as (process, local):
        for runner in (process, local):
            x = mg.tensor([1.0], requires_grad=True)
            runner.select()
            (x * 2.0).sum().backward()
        counts = process.engine.statistics(), local.engine.statistics()
    assert [(c.backwards_process, c.backwards_local) for c in counts] == [(1, 0), (0, 1)]
    with mg.Engine(mode="local") as engine:
        mg.tensor([1.0], requires_grad=True).sum().backward()
        assert engine.statistics().backwards_local == 1


@pytest.mark.slow
@pytest.mark.process
def test_a_renewed_runner_has_another_engine_and_the_same_bits():
    def make(library):
        leaf = library.tensor(np.linspace(0.0, 1.0, 100), requires_grad=True)
        return ForwardPass([leaf], lambda: (leaf * leaf).sum())

    with mpgrad_runners("process", "local", workers=1) as runners:
        process, local = (runner.contender(make) for runner in runners)
        assert local.renew is None
        process.sample()
        (first,), found = runners[0].engine.worker_pids(), process.gradients()[0].tobytes()
        process.renew()
        assert wait_until(lambda: not is_alive(first))
        process.sample()
        assert runners[0].engine.worker_pids() != [first]
        assert process.gradients()[0].tobytes() == found
        second = runners[0].engine
    assert second.worker_pids() == []


def test_other_work_comes_before_each_forward_pass():
    log = []

    class Root:
        def backward(self):
            log.append("backward")

    runner = Runner("local", mg, engine=mg.Engine("local"))
    try:
        work = ForwardPass([], lambda: log.append("forward") or Root())
        runner.contender(lambda _: work, repeats=2, after=lambda: log.append("other")).sample()
    finally:
        engine_slot.install(current_engine)
    assert log == ["other", "forward", "backward"] * 3
