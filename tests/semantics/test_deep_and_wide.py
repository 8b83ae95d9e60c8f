"""Group B: graphs of any depth and width: run, freed and destroyed without recursion."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest

import mpgrad as mg
from tests.semantics.paired import leaf, row

DEEP = 150_000
WIDE = 100_000

MODES = [pytest.param("local"), pytest.param("process", marks=pytest.mark.process)]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Any:
    if request.param == "process":
        request.getfixturevalue("process_engine")
        yield "process"
    else:
        with mg.Engine("local"):
            yield "local"


def chain(x: mg.Tensor, depth: int = DEEP) -> mg.Tensor:
    for _ in range(depth):
        x = x + 1.0
    return x


@row("B14")
@pytest.mark.long
@pytest.mark.slow
def test_a_leaf_that_is_used_a_hundred_thousand_times(mode: str) -> None:
    x = mg.tensor(2.0, requires_grad=True)
    terms = [x * 1.0 for _ in range(WIDE)]
    mg.stack(terms).sum().backward()
    assert x.grad.item() == WIDE


@row("B14")
def test_a_deep_chain_with_hooks(mode: str) -> None:
    calls: list[float] = []
    x = mg.tensor(1.0, requires_grad=True)
    y = x
    for at in range(30_000):
        y = y + 1.0
        if at % 100 == 0:
            y.register_hook(lambda grad: calls.append(grad.item()))
    y.backward()
    assert calls == [1.0] * 300
    assert x.grad.item() == 1.0


@row("B14")
@pytest.mark.slow
def test_a_deep_chain_is_kept_and_run_again(mode: str) -> None:
    x = mg.tensor(1.0, requires_grad=True)
    y = chain(x, 50_000)
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.item() == 2.0


@row("B14")
@pytest.mark.slow
def test_a_diamond_of_diamonds(mode: str) -> None:
    """Every Node is reached on 2**n ways; each runs once."""
    x = mg.tensor(1.0, dtype=mg.float64, requires_grad=True)
    y = x
    for _ in range(20_000):
        y = (y + y) * 0.5
    y.backward()
    assert x.grad.item() == 1.0


@row("B14")
@pytest.mark.long
@pytest.mark.slow
def test_the_root_may_die_on_another_thread() -> None:
    root = [chain(mg.tensor(1.0, requires_grad=True))]
    first = weakref.ref(root[0].grad_fn)
    thread = threading.Thread(target=root.clear)
    thread.start()
    thread.join()
    gc.collect()
    assert first() is None


@row("B14")
def test_chains_of_functions_and_views_die_without_recursion() -> None:
    class Passes(mg.Function):
        @staticmethod
        def forward(ctx: Any, x: mg.Tensor) -> Any:
            return x.numpy() * 1.0

        @staticmethod
        def backward(ctx: Any, grad: mg.Tensor) -> Any:
            return grad

    x = leaf(mg, 2)
    y = x
    for _ in range(20_000):
        y = Passes.apply(y)
    z = x
    for _ in range(20_000):
        z = z.reshape(2)
    references = [weakref.ref(y.grad_fn), weakref.ref(z.grad_fn)]
    del y, z
    gc.collect()
    assert [reference() for reference in references] == [None, None]


@row("B14")
@pytest.mark.long
@pytest.mark.slow
def test_a_deep_graph_in_the_middle_of_which_somebody_holds_on() -> None:
    x = mg.tensor(1.0, requires_grad=True)
    middle = chain(x, 60_000)
    end = chain(middle, 60_000)
    del end
    gc.collect()
    middle.backward()
    assert x.grad.item() == 1.0
