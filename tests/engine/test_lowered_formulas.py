"""Formulas of compiled graphs as calls of NumPy: what is written out, and what has to hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.engine import local
from mpgrad.nn import functional as F


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(local, "COMPILED_FROM_USE", 1)
    with mg.Engine("local"):
        yield


def _leaf(*shape: int, seed: int = 0) -> mg.Tensor:
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return mg.tensor(values, requires_grad=True)


def _grads(loss: mg.Tensor, *leaves: mg.Tensor) -> list[bytes]:
    loss.backward()
    return [leaf.grad.numpy().tobytes() for leaf in leaves]


def _source(loss: mg.Tensor) -> str:
    return str(mg.current_engine().explain(loss, source=True))


def test_a_small_formula_is_written_out_a_large_one_is_called() -> None:
    assert "tanh_input(" not in _source(_leaf(5).tanh().sum())
    assert "tanh_input" in _source(_leaf(50_000).tanh().sum())


def test_products_and_sums_of_broadcast_operands_are_decided_beforehand() -> None:
    source = _source((_leaf(3, 4) * _leaf(4)).sum())
    assert "add_reduce(" in source
    assert "sum_to" not in source


#: Pairs of steps whose graphs have the same tables, and formulas that get something else.
STEPS: list[tuple[Any, Any]] = [
    (lambda x: x.sum(0, keepdim=True), lambda x: x.sum(1, keepdim=True).t()),
    (lambda x: F.softmax(x, 0), lambda x: F.softmax(x, 1)),
    (lambda x: x * 2.0, lambda x: x * 3),
    (lambda x: x * 2.0, lambda x: x * mg.tensor(3.0)),
    (lambda x: x * mg.ones(4), lambda x: x * mg.arange(4).float().reshape(1, 4)),
    (lambda x: x * mg.ones(4, 4).t(), lambda x: x * mg.ones(4, 4)),
    (lambda x: x**2.0, lambda x: x**3.0),
    (lambda x: x.clamp(-1, 1), lambda x: x.clamp(-0.1, 0.1)),
    (lambda x: x.reshape(2, 8)[:, ::2], lambda x: x.reshape(2, 8)[:, 1::2]),
    (lambda x: F.leaky_relu(x, 0.1), lambda x: F.leaky_relu(x, 0.5)),
    (
        lambda x: F.cross_entropy(x, mg.tensor([0, 1, 2, 3]), reduction="sum"),
        lambda x: F.cross_entropy(x, mg.tensor([3, -100, 1, 0])),
    ),
]


@pytest.mark.parametrize("pair", STEPS)
def test_a_step_that_differs_in_what_the_tables_do_not_say(pair: tuple[Any, Any]) -> None:
    def run() -> list[bytes]:
        found = []
        for step in [*[pair[0]] * 3, pair[1], pair[0], pair[1]]:
            x = _leaf(4, 4)
            found += _grads((step(x) * 1.5).sum(), x)
        return found

    found = run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "_run_compiled", lambda *_: None)
        assert found == run()


def test_a_formula_that_asks_what_its_operand_is_stays_a_call() -> None:
    source = _source((_leaf(3).abs() ** 2.5).sum())
    assert "pow_a(" in source or "pow_input(" in source
