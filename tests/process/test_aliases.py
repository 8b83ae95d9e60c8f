"""Promises of calls: what shares memory, what a class holds, which leaves count; wherever calls
run."""

from __future__ import annotations

import http
import os
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.parallel import placing
from tests.process.test_parallel_map import bits, engine, leaves

__all__ = ["engine"]
pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def every_test_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "RUNS", placing.Runs())


# ---------------------------------------------------------------------- results that share memory


def views(x: mg.Tensor, y: mg.Tensor) -> tuple[mg.Tensor, ...]:
    return x.t(), y[0], y.detach(), x.data


def pairs(x: mg.Tensor, y: mg.Tensor) -> tuple[mg.Tensor, ...]:
    z = x * y
    return z, z.t(), z.data[1:]


@pytest.mark.parametrize("fn", [views, pairs])
@pytest.mark.parametrize("size", [2, 300], ids=["small", "in the arena"])
def test_a_result_that_shares_memory_is_not_changed_in_place(
    engine: mg.Engine, fn: Any, size: int
) -> None:
    """In a loop the change would be seen in the argument or the other result, here in none."""
    x, y = (one.detach() for one in leaves(0, (size, size), (size, size)))
    (outs,) = mg.parallel_map(fn, [x], [y])
    assert bits(*outs) == bits(*fn(x, y))
    for out in outs:
        with pytest.raises(RuntimeError, match=r"clone\(\)"):
            out.add_(1)
        with pytest.raises(RuntimeError, match=r"clone\(\)"):
            out[:1].mul_(2)
        assert not out.numpy().flags.writeable
        out.clone().add_(1)
    assert bits(*outs) == bits(*fn(x, y))


def test_such_a_result_is_differentiated(engine: mg.Engine) -> None:
    x, y = leaves(1, (3, 3), (3, 3))
    ((a, b, c),) = mg.parallel_map(pairs, [x], [y])
    (a + b.t() + b).sum().backward()
    assert bits(x.grad) == bits(y * 3)
    assert c.sum().item() == pytest.approx(a[1:].sum().item())


def test_other_results_may_be_changed(engine: mg.Engine) -> None:
    (x,) = leaves(2, (3, 3))
    ((first, second),) = mg.parallel_map(lambda y: (y * 2, (y * 3).t()), [x])
    first.add_(1)
    second.add_(1)
    (first.sum() + second.sum()).backward()
    assert bits(x.grad) == bits(mg.full((3, 3), 5.0))


def test_memory_that_an_array_also_holds_is_copied_at_a_fork(tmp_path: Any) -> None:
    """The caller may write there without a version that would tell."""
    path = str(tmp_path / "go")
    os.mkfifo(path)

    def reads(x: mg.Tensor, y: mg.Tensor, z: Any, k: Any) -> Any:
        with open(path) as file:
            file.read()
        return (x * 1).sum(), (y * 1).sum(), z.sum(), k["a"].sum()

    array, large = np.ones(3, "f4"), np.ones((600, 600), "f4")
    x, y = mg.from_numpy(array), mg.ones(600, 600)
    arena = y.numpy()
    inside = np.ones(5000)
    with mg.Engine("process", cpu_workers=1):
        future = mg.fork(reads, x, y, large, {"a": inside})
        for one in (array, large, arena, inside):
            one[...] = 7
        with open(path, "w") as file:
            file.write("go")
        found = future.result(60)
    assert [float(one) for one in found] == [3, 360_000, 360_000, 5000]


# ---------------------------------------------------------------------- what a class holds


class Config:
    table: dict[str, int] = {"a": 1}  # noqa: RUF012
    weight = mg.ones(3, requires_grad=True)

    def __init__(self, value: Any) -> None:
        self.value = value


def uses_the_class(k: float) -> tuple[mg.Tensor, Config]:
    return (Config.weight * k * Config.table["a"]).sum(), Config(k)


def test_a_class_of_the_client_stays_as_it_is(engine: mg.Engine) -> None:
    """Its tensors are inputs; neither the call nor its result replaces what it holds."""
    table, weight = Config.table, Config.weight
    weight.grad = None
    found = mg.parallel_map(uses_the_class, [1.0, 2.0])
    assert all(type(config) is Config for _, config in found)
    assert Config.table is table
    assert Config.weight is weight
    mg.stack([out for out, _ in found]).sum().backward()
    assert bits(weight.grad) == bits(mg.full((3,), 3.0))


def test_a_class_that_has_changed_is_another_in_the_next_call(engine: mg.Engine) -> None:
    for value in (1, 5):
        Config.table["a"] = value
        outs = mg.parallel_map(uses_the_class, [1.0])
        assert outs[0][0].item() == 3.0 * value
    Config.table["a"] = 1


def test_a_class_that_a_call_has_made_comes_back(engine: mg.Engine) -> None:
    def makes(k: int) -> Any:
        class Made:
            number = k

        return Made, Made()

    for cls, one in mg.parallel_map(makes, [1, 2]):
        assert type(one) is cls
    assert [cls.number for cls, _ in mg.parallel_map(makes, [1, 2])] == [1, 2]


# ---------------------------------------------------------------------- leaves that are no inputs


def test_a_leaf_that_does_not_travel_is_an_error(
    engine: mg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed module holds it; where it exists, it is older than the call."""
    http.leaf = mg.ones(3, requires_grad=True)  # type: ignore[attr-defined]
    try:
        if workers := set(engine.worker_pids()):

            def makes(_: int) -> int:
                import mpgrad

                http.leaf = mpgrad.ones(3, requires_grad=True)  # type: ignore[attr-defined]
                return os.getpid()

            with monkeypatch.context() as patch:
                patch.setattr(placing, "mode", lambda: "process")  # in auto they would run here
                have: set[int] = set()
                while not have >= workers:  # one that gets no processor gets no call
                    have |= set(mg.parallel_map(makes, range(16)))
        (x,) = leaves(3, (3,))
        with pytest.raises(RuntimeError, match=r"gradient would be lost.*shared"):
            mg.parallel_map(lambda y: (y * http.leaf).sum(), [x] * 16)
        out = mg.parallel_map(lambda y: (y * http.leaf.detach()).sum(), [x])[0]
        out.backward()
        assert bits(x.grad) == bits(mg.ones(3))
    finally:
        del http.leaf  # type: ignore[attr-defined]


def test_a_leaf_that_the_call_makes_is_none(engine: mg.Engine) -> None:
    (x,) = leaves(4, (3,))

    def trains(y: mg.Tensor) -> mg.Tensor:
        w = mg.nn.Linear(3, 1)
        late = mg.ones(1).requires_grad_()
        return (w(y) * late).sum()

    mg.manual_seed(0)
    (out,) = mg.parallel_map(trains, [x])
    out.backward()
    assert x.grad is not None
