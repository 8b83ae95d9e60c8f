"""``local`` mode: the serial engine, its results and who owns them."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.autograd.frozen_graphs import freeze as freezing
from mpgrad.engine import local
from mpgrad.engine.local import claim
from mpgrad.recording.tensors import storage
from mpgrad.scheduler.tuning import SAMPLES
from mpgrad.shm.arena import client_arena


@pytest.fixture(autouse=True)
def engine() -> Any:
    with mg.Engine("local") as engine:
        yield engine


def test_nothing_is_started(engine: mg.Engine) -> None:
    x = mg.tensor([2.0], requires_grad=True)
    (x * x).sum().backward()
    assert x.grad.item() == 4.0
    assert (engine.worker_pids(), engine.coordinator_pid) == ([], None)
    statistics = engine.statistics()
    assert (statistics.backwards_local, statistics.backwards_process) == (1, 0)
    assert statistics.engine_arena is None


def test_a_failure_is_counted_and_changes_nothing(engine: mg.Engine) -> None:
    x = mg.tensor([2.0], requires_grad=True)

    def refuse(_: mg.Tensor) -> None:
        raise ValueError("no")

    y = x * 2
    y.register_hook(refuse)
    with pytest.raises(ValueError, match="no"):
        (y + x).sum().backward()
    assert x.grad is None
    assert engine.statistics().failed == 1


def test_two_leaves_never_share_a_gradient() -> None:
    # The gradient of a sum is the same array for both.
    x, y = (mg.ones(3, requires_grad=True) for _ in range(2))
    (x + y).backward(mg.ones(3))
    x.grad.zero_()
    assert y.grad.tolist() == [1.0, 1.0, 1.0]


def test_a_gradient_never_is_the_seed() -> None:
    x, seed = mg.ones(3, requires_grad=True), mg.ones(3)
    (x + 0).backward(seed)
    seed.zero_()
    assert x.grad.tolist() == [1.0, 1.0, 1.0]


def test_what_a_hook_keeps_is_not_changed_later() -> None:
    kept: list[mg.Tensor] = []
    x = mg.ones(3, requires_grad=True)
    x.register_hook(kept.append)
    (x * 2).sum().backward()
    (x * 2).sum().backward()
    assert kept[0].tolist() == [2.0, 2.0, 2.0]
    assert x.grad.tolist() == [4.0, 4.0, 4.0]


def test_a_hook_on_a_leaf_outlives_every_graph() -> None:
    # The leaf's AccumulateGrad does not: each graph has a new one.
    calls: list[float] = []
    x = mg.ones(1, requires_grad=True)
    handle = x.register_hook(lambda grad: calls.append(grad.item()))
    for factor in (2.0, 3.0):
        (x * factor).sum().backward()
    handle.remove()
    (x * 5.0).sum().backward()
    assert calls == [2.0, 3.0]


def test_saved_tensors_go_as_the_backward_proceeds() -> None:
    x = mg.ones(4, requires_grad=True)
    y = x.exp()
    node = y.grad_fn
    y.sum().backward(retain_graph=True)
    assert node.saved
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        node.saved  # noqa: B018


def test_a_very_long_chain() -> None:
    x = mg.tensor([1.0], requires_grad=True)
    y = x
    for _ in range(20_000):
        y = y * 1.0
    y.sum().backward()
    assert x.grad.item() == 1.0


def test_blas_threads_are_limited_while_a_backward_runs() -> None:
    from mpgrad.engine.blas import _libraries

    before = [threads_of() for threads_of, _ in _libraries()]
    seen: list[int] = []

    def look(_: mg.Tensor) -> None:
        seen.extend(threads_of() for threads_of, _ in _libraries())

    x = mg.ones(2, 2, requires_grad=True)
    y = x @ x
    y.register_hook(look)
    y.sum().backward()
    assert set(seen) <= {1}
    assert [threads_of() for threads_of, _ in _libraries()] == before


def test_inner_engines_go_first_and_give_way() -> None:
    outer = mg.current_engine()
    with mg.Engine("local") as inner:
        assert mg.current_engine() is inner
        mg.ones(1, requires_grad=True).sum().backward()
    assert mg.current_engine() is outer
    assert outer.statistics().backwards_local == 0


def test_sums_are_added_in_the_serial_order() -> None:
    # 1e8 + 1 - 1e8 is 0 or 1 in float32, depending on the order.
    def gradient() -> float:
        x = mg.tensor([1.0], requires_grad=True)
        parts = [x * 1e8, x * 1.0, x * -1e8]
        (parts[0] + parts[1] + parts[2]).sum().backward()
        return x.grad.item()

    assert len({gradient() for _ in range(5)}) == 1


def test_gradients_are_c_contiguous_whatever_the_rule_returns() -> None:
    strides: list[bool] = []
    x = mg.tensor(np.arange(6.0).reshape(2, 3), requires_grad=True)
    y = x * 1
    y.register_hook(lambda grad: strides.append(grad.is_contiguous()))
    (y.t() * mg.tensor(np.ones((3, 2)))).sum().backward()
    assert strides == [True]


# ---------------------------------------------------------------------- who holds a result


def test_only_an_array_that_nobody_else_holds_is_claimed() -> None:
    kept = np.ones(3)
    twice = np.ones(3)
    viewed = storage.empty((100, 100), np.float64)
    view = viewed[1:]
    frozen = np.ones(3)
    frozen.flags.writeable = False
    results = [np.ones(3), storage.empty((100, 100), np.float64), kept, twice, twice, viewed, None]
    results.append(frozen)
    del twice, viewed, frozen
    claimed = [exclusive for _, exclusive in claim(results)]
    #                  heap, arena, kept, twice (both), viewed, None, read-only
    assert claimed == [True, True, False, False, False, False, False, False]
    assert results == [None] * 8
    del kept, view


def test_a_large_gradient_becomes_grad_without_a_copy() -> None:
    """The rule's result, born in the arena, is adopted: one block more than before, not two."""
    leaf = mg.ones(300, 300, requires_grad=True)
    with mg.Engine(mode="local"):
        mg.exp(leaf).sum().backward()
        leaf.grad = None
        loss = mg.exp(leaf).sum()
        before = client_arena().statistics()
        loss.backward()
        assert leaf.grad is not None
        assert client_arena().locate(leaf.grad._array) is not None
        assert client_arena().statistics().live_blocks <= before.live_blocks + 1


def test_a_library_that_is_loaded_later_is_limited_too() -> None:
    """SciPy brings a BLAS of its own, perhaps after the first backward."""
    pytest.importorskip("scipy")
    source = (
        "import mpgrad as mg\n"
        "from threadpoolctl import threadpool_info\n"
        "from mpgrad.engine.blas import blas_limit\n"
        "def threads():\n"
        "    return [p['num_threads'] for p in threadpool_info() if p['user_api'] == 'blas']\n"
        "with blas_limit(1):\n"
        "    before = threads()\n"
        "import scipy.linalg\n"
        "with blas_limit(1):\n"
        "    after = threads()\n"
        "print(len(after) > len(before), set(after))\n"
    )
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "True {1}\n"


def test_a_graph_that_comes_again_and_again_teaches_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every backward while it is young, and when it suddenly takes far longer."""
    learned: list[tuple[int, float]] = []
    monkeypatch.setattr(local, "teach", lambda _, measured: learned.extend(measured))
    took_s = [0.0]
    clock = itertools.count()
    monkeypatch.setattr(local, "perf_counter", lambda: next(clock) * took_s[0])

    def backward() -> bool:
        learned.clear()
        mg.relu(mg.ones(3, requires_grad=True)).sum().backward()
        return bool(learned)

    took_s[0] = 1e-6
    with mg.Engine("auto", cpu_workers=1):
        assert all(backward() for _ in range(SAMPLES))
        assert sum(backward() for _ in range(4 * SAMPLES)) == 4
        took_s[0] = 1.0
        assert backward()


def test_an_engine_that_is_always_local_learns_only_from_what_is_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing there depends on costs, but ``explain`` says whether a Function has run."""
    learned: list[int] = []
    monkeypatch.setattr(local, "teach", lambda *_: learned.append(1))
    for kept in ("_memory", "_guards"):  # another test may have run such a graph
        monkeypatch.setattr(freezing, kept, type(getattr(freezing, kept))())
    looked_up: list[int] = []
    monkeypatch.setattr(freezing, "_look_up_costs", lambda *_: looked_up.append(1))

    def backwards() -> tuple[int, int]:
        learned.clear()
        looked_up.clear()
        for _ in range(3 * SAMPLES):
            (mg.ones(7, requires_grad=True) * 3.0).sum().backward()
        return len(learned), len(looked_up)

    with mg.Engine("local"):
        assert backwards() == (2, 0)
    with mg.Engine("auto", cpu_workers=1):
        taught, asked = backwards()
        assert taught > 1
        assert asked > 1


def test_joined_tensors_get_their_gradients_in_linear_time() -> None:
    calls_of_backward(1)  # the first backward of a process loads modules
    few, many = [calls_of_backward(count) for count in (50, 200)]
    assert many < 5 * few


def calls_of_backward(count: int) -> int:
    """How often a function is called or a generator goes on in a backward of ``cat``."""
    loss = mg.cat([mg.ones(2, requires_grad=True) for _ in range(count)]).sum()
    events: list[str] = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    try:
        loss.backward()
    finally:
        sys.setprofile(None)
    return events.count("call")
