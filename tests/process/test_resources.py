"""An engine's memory, descriptors and time: nothing grows, nothing is held, nothing spins."""

from __future__ import annotations

import gc
import os
import select
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import mpgrad as mg
from mpgrad.engine.session import Session
from mpgrad.scheduler import tuning
from mpgrad.scheduler.client_state import ClientState
from mpgrad.scheduler.events import GraphCancelled
from tests.leftovers import Leftovers, is_alive, left_since, wait_until

pytestmark = pytest.mark.process


@pytest.fixture
def own_engine() -> Iterator[mg.Engine]:
    with mg.Engine("process", cpu_workers=2) as engine:
        yield engine


class Squares(mg.Function):
    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        ctx.save_for_backward(x)
        return x.numpy() ** 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grad.numpy() * 2 * x.numpy()


def live_blocks(engine: mg.Engine) -> int:
    arena = engine.statistics().engine_arena
    assert arena is not None
    return arena.live_blocks


def train_step(x: mg.Tensor, weights: list[mg.Tensor]) -> None:
    hidden = x.double()
    for weight in weights:
        hidden = mg.tanh(hidden @ weight)
    (Squares.apply(hidden).mean() + hidden.sum() * 0.001).backward()


def make_weights() -> list[mg.Tensor]:
    rng = np.random.default_rng(3)
    return [mg.tensor(rng.normal(size=(128, 128)) / 11, requires_grad=True) for _ in range(4)]


def test_gradients_let_go_go_back_in_front_of_the_next_graph(
    own_engine: mg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In what is sent with it: a message of its own would wake the coordinator once more."""
    weights = make_weights()
    sent: list[list[str]] = []
    send = Session._send

    def note(self: Session, *messages: Any) -> None:
        sent.append([type(message).__name__ for message in messages])
        send(self, *messages)

    monkeypatch.setattr(Session, "_send", note)
    for _ in range(2):
        train_step(mg.ones(16, 128), weights)
        for weight in weights:
            weight.grad = None
    assert [names for names in sent if "BlocksReleased" in names] == [
        ["BlocksReleased", "GraphSubmitted"]
    ]


def test_blocks_come_back(own_engine: mg.Engine) -> None:
    x, weights = mg.ones(128, 128), make_weights()
    train_step(x, weights)
    assert live_blocks(own_engine) == len(weights)
    kept = weights[0].grad.detach()[:1]
    for weight in weights:
        weight.grad = None
    # A view keeps its block, and only that.
    assert live_blocks(own_engine) == 1
    del kept
    assert live_blocks(own_engine) == 0


def test_accumulating_needs_no_new_blocks(own_engine: mg.Engine) -> None:
    x, weights = mg.ones(128, 128), make_weights()
    for _ in range(3):
        train_step(x, weights)
    assert live_blocks(own_engine) == len(weights)


def test_a_failed_backward_gives_its_blocks_back(own_engine: mg.Engine) -> None:
    x = mg.ones(128, 128, requires_grad=True)

    def refuse(_: mg.Tensor) -> None:
        raise ValueError("no")

    for _ in range(3):
        y = x * 2
        y.register_hook(refuse)
        with pytest.raises(ValueError, match="no"):
            (mg.exp(y) + mg.sin(x)).sum().backward()
    assert live_blocks(own_engine) == 0


@pytest.mark.slow
def test_a_long_run_does_not_grow(own_engine: mg.Engine) -> None:
    """Neither descriptors, nor memory of the processes' own, nor blocks that they share: a page of
    an arena counts in each process that has seen it, so it is looked at apart."""
    x, weights = mg.ones(128, 128), make_weights()

    def run(steps: int) -> tuple[int, int, int, int, int]:
        for _ in range(steps):
            train_step(x, weights)
            for weight in weights:
                weight.grad = None
        pids = [os.getpid(), own_engine.coordinator_pid, *own_engine.worker_pids()]
        processes = [psutil.Process(pid) for pid in pids]
        memory = [process.memory_info() for process in processes]
        statistics = own_engine.statistics()
        return (
            sum(process.num_fds() for process in processes),
            statistics.engine_arena.live_blocks,
            sum(info.rss - info.shared for info in memory),
            statistics.engine_arena.peak_bytes,
            statistics.client_arena.peak_bytes,
        )

    before = run(40)
    after = run(200)
    assert after[:2] == before[:2]
    assert after[2] < before[2] + 4_000_000
    assert after[3:] == pytest.approx(before[3:], rel=0.5)


@pytest.mark.slow
def test_an_idle_engine_uses_no_cpu(own_engine: mg.Engine) -> None:
    train_step(mg.ones(128, 128), make_weights())
    pids = [own_engine.coordinator_pid, *own_engine.worker_pids()]

    def ticks() -> int:
        used = 0.0
        for pid in pids:
            times = psutil.Process(pid).cpu_times()
            used += times.user + times.system
        return round(used * os.sysconf("SC_CLK_TCK"))

    def is_quiet() -> bool:
        before = ticks()
        select.select([], [], [], 0.5)  # nothing to wait for: time itself is what is needed
        return ticks() - before < 2

    assert wait_until(is_quiet)  # what the step has left to do may be done late


def test_many_threads_at_once() -> None:
    weights = make_weights()

    def gradients(scale: float) -> list[bytes]:
        x = mg.ones(64, 128) * scale
        found = []
        for _ in range(3):
            own = [weight.detach().clone().requires_grad_() for weight in weights]
            train_step(x, own)
            found += [weight.grad.numpy().tobytes() for weight in own]
        return found

    scales = [0.1 * number for number in range(1, 9)]
    with mg.Engine("local"):
        expected = [gradients(scale) for scale in scales]
    found: dict[float, Any] = {}

    def work(scale: float) -> None:
        try:
            found[scale] = gradients(scale)
        except BaseException as error:
            found[scale] = error

    with mg.Engine("process", cpu_workers=2) as engine:
        threads = [threading.Thread(target=work, args=(scale,)) for scale in scales]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert engine.statistics().backwards_process == 24
    assert [found[scale] for scale in scales] == expected


def test_figures(own_engine: mg.Engine) -> None:
    x, weights = mg.ones(128, 128), make_weights()
    train_step(x, weights)
    statistics = own_engine.statistics()
    assert (statistics.mode, statistics.backwards_process) == ("process", 1)
    assert (statistics.backwards_local, statistics.failed, statistics.restarts) == (0, 0, 0)
    assert set(statistics.tasks) <= {"client", "worker 0", "worker 1"}
    assert statistics.handed_bytes > 128 * 128 * 4
    assert statistics.engine_arena.used_bytes >= 4 * 128 * 128 * 8
    assert statistics.engine_arena.peak_bytes <= statistics.engine_arena.limit_bytes
    assert statistics.client_arena.live_blocks > 0


def test_arrays_that_lie_elsewhere_are_copied_and_counted(own_engine: mg.Engine) -> None:
    array = np.ones((300, 300), np.float32)
    seed = mg.tensor(array)

    def copied(x: mg.Tensor) -> int:
        before = own_engine.statistics().copied_bytes
        (x * x).backward(seed)  # one Node: whatever the costs are, there is only one plan
        return own_engine.statistics().copied_bytes - before

    shared = copied(mg.tensor(array, requires_grad=True))
    assert copied(mg.from_numpy(array).requires_grad_()) == shared + array.nbytes


def test_processes_are_named_only_while_they_run() -> None:
    engine = mg.Engine("process", cpu_workers=2)
    assert (engine.worker_pids(), engine.coordinator_pid) == ([], None)
    with engine:
        assert len(set(engine.worker_pids())) == 2
        assert engine.coordinator_pid is not None
    assert (engine.worker_pids(), engine.coordinator_pid) == ([], None)
    assert "closed" in repr(engine)


def test_a_gradient_that_is_two_results_is_given_back_whole(
    own_engine: mg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An addition alone in its task passes one block on to both leaves."""
    monkeypatch.setattr(tuning, "WORTH_MESSAGES", 0.01)
    monkeypatch.setattr(tuning, "TASK_MAX_US", 0.0)
    x, y = (mg.ones(200, 200, requires_grad=True) for _ in range(2))
    for _ in range(3):
        mg.exp(x + y).sum().backward()
        assert x.grad is not None
        assert y.grad is not None
        x.grad.zero_()
        assert y.grad.sum().item() > 0.0
        x.grad = y.grad = None
        assert live_blocks(own_engine) == 0


def test_results_that_ctrl_c_overtook_are_given_back(
    own_engine: mg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt arrives, and the graph completes before it can be cancelled."""
    x = mg.ones(200, 200, requires_grad=True)
    mg.exp(x).sum().backward()
    x.grad = None
    step = Session.step

    def interrupted(session: Session) -> None:
        monkeypatch.setattr(Session, "step", step)
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "step", interrupted)
    handle_event = ClientState.handle_event

    def ignore_cancellation(state: ClientState, event: Any) -> list[Any]:
        return [] if isinstance(event, GraphCancelled) else handle_event(state, event)

    monkeypatch.setattr(ClientState, "handle_event", ignore_cancellation)
    with pytest.raises(KeyboardInterrupt):
        mg.exp(x).sum().backward()
    assert x.grad is None
    assert live_blocks(own_engine) == 0


# ---------------------------------------------------------------------- that nobody can reach


@pytest.fixture
def default_again() -> Iterator[None]:
    yield
    mg.set_engine(None)


def used_and_set(use: str) -> tuple[list[int], Any]:
    """The processes of a new engine that is set and was used, and what it has given."""
    engine = mg.Engine("process", cpu_workers=1)
    mg.set_engine(engine)
    given: Any
    if use == "backward":
        x = mg.ones(300, 300, requires_grad=True)
        (x * 2).sum().backward()
        given = x.grad
    elif use == "map":
        (given,) = mg.parallel_map(lambda k: mg.full((300, 300), k), [2.0])
    else:
        given = mg.fork(mg.full, (300, 300), 2.0).result(60)
    coordinator = engine.coordinator_pid
    assert coordinator is not None
    return [coordinator, *engine.worker_pids()], given


@pytest.mark.parametrize("use", ["backward", "map", "fork"])
def test_an_engine_that_another_one_replaces_ends(use: str, default_again: None) -> None:
    """Who runs a cell of a notebook again has set a new engine, and let go of the old one."""
    before = Leftovers.now()
    pids, given = used_and_set(use)
    mg.set_engine(mg.Engine("local"))
    assert wait_until(lambda: gc.collect() >= 0 and not any(map(is_alive, pids)))
    assert given.sum().item() == 2 * 300 * 300
    del given
    assert left_since(before) == ""


def test_the_end_of_an_engine_takes_no_lock_in_the_collector(default_again: None) -> None:
    """This thread may hold it: the collector runs anywhere."""
    before = Leftovers.now()
    used_and_set("map")
    with threading._active_limbo_lock:  # type: ignore[attr-defined]
        mg.set_engine(None)
        gc.collect()
    assert left_since(before) == ""


def test_a_fork_that_runs_keeps_its_engine(tmp_path: Path, default_again: None) -> None:
    path = str(tmp_path / "go")
    os.mkfifo(path)

    def reads() -> str:
        with open(path) as file:
            return file.read()

    before = Leftovers.now()
    mg.set_engine(mg.Engine("process", cpu_workers=1))
    future = mg.fork(reads)
    mg.set_engine(None)
    gc.collect()
    with open(path, "w") as file:
        file.write("go")
    assert future.result(60) == "go"
    assert left_since(before) == ""  # though the Future is there


def test_a_forked_child_ends_nothing_of_its_parent(default_again: None) -> None:
    pids, _ = used_and_set("fork")
    child = os.fork()
    if child == 0:
        try:
            mg.set_engine(None)
            gc.collect()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    mg.ones(2, requires_grad=True).sum().backward()
    engine = mg.current_engine()
    assert [engine.coordinator_pid, *engine.worker_pids()] == pids
    engine.close()


def test_an_engine_ends_as_soon_as_nobody_can_reach_it(default_again: None) -> None:
    """Without the collector, which may not come for long."""
    gc.disable()
    try:
        pids, _ = used_and_set("map")
        mg.set_engine(None)
        assert wait_until(lambda: not any(map(is_alive, pids)))
    finally:
        gc.enable()
