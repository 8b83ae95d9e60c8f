"""A large graph runs by the rules of its Nodes' forms, with the bits of the plain loop."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.engine import compiled, local, node_rules
from tests.random_programs import random_program

freeze_module = importlib.import_module("mpgrad.autograd.frozen_graphs.freeze")


@pytest.fixture(autouse=True, params=[1, 9], ids=["kept", "once"])
def ran(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Every graph is large, and comes again or not; True for each call of a rule, False where a
    Node did not fit."""
    freeze_module._begin_anew_in_child()  # forgets all graphs
    monkeypatch.setattr(compiled, "NODES_MAX", 0)
    monkeypatch.setattr(node_rules, "NODES_MIN", 1)
    monkeypatch.setattr(node_rules, "NODES_MIN_ONCE", 1)
    monkeypatch.setattr(local, "COMPILED_FROM_USE", request.param)
    monkeypatch.setattr(node_rules, "_shared", {})
    found: list[bool] = []
    rule_of = node_rules._NodeSource.rule

    def noted(source: Any, spec: Any) -> Any:
        rule = rule_of(source, spec)

        def run(*args: Any) -> Any:
            found.append(True)
            return rule.run(*args)

        def fits(nodes: Any) -> bool:
            if not rule.fits(nodes):
                found.append(False)
                return False
            return True

        return rule._replace(run=run, fits=fits)

    monkeypatch.setattr(node_rules._NodeSource, "rule", noted)
    with mg.Engine("local"):
        yield found
    freeze_module._begin_anew_in_child()


def bits(*tensors: Any) -> list[Any]:
    return [None if tensor is None else tensor.numpy().tobytes() for tensor in tensors]


def test_random_graphs(ran: list[bool]) -> None:
    for seed in range(40):
        results = []
        for _ in range(3):
            program = random_program(seed)
            program.loss.backward()
            results.append(bits(*[leaf.grad for leaf in program.leaves]))
        assert results[1:] == results[:1] * 2, seed
    assert ran.count(True) > 10 * ran.count(False)


def test_another_kind_of_operand_runs_right(ran: list[bool]) -> None:
    tensor, scalar = mg.full((3,), 3.0), mg.tensor(4.0)
    for factor, expected in [(tensor, 3.0)] * 4 + [(2.0, 2.0), (scalar, 4.0), (tensor, 3.0)]:
        x = mg.ones(3, requires_grad=True)
        (x * factor).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [expected] * 3
    assert False in ran


def test_undefined_gradients_and_sums(ran: list[bool]) -> None:
    class Nothing(mg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1.0

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return None

    for _ in range(4):
        x = mg.tensor([1.0, 2.0], requires_grad=True)
        y = x * 2.0
        first, second = (x * 3.0).split(1)
        (Nothing.apply(y.sin()).sum() + y.sum() + (y * y).sum() + first.sum()).backward()
        assert second.requires_grad
        assert x.grad is not None
        assert x.grad.tolist() == [2 + 8 + 3, 2 + 16]
    assert ran


def test_captures_of_nodes_that_run(ran: list[bool]) -> None:
    found = []
    for _ in range(4):
        x = mg.tensor([1.0, 2.0], requires_grad=True)
        y = x * 2.0
        z = (y * y).exp() + y
        found.append(bits(*mg.grad(z.sum(), [z, y, x])))
    assert found[1:] == found[:1] * 3
    assert None not in found[0]
    assert True in ran


def test_an_error_names_its_node() -> None:
    x = mg.ones(3, requires_grad=True)
    for _ in range(3):
        loss = (x * x).sum()
        loss.backward()
    with pytest.raises(RuntimeError, match="second time") as caught:
        loss.backward()
    assert "MulBackward0(float32[3])" in str(caught.value.__notes__)


def test_not_more_forms_are_kept_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_rules, "SIGNATURES_MAX", 4)
    for length in range(2, 12):
        for _ in range(3):
            x = mg.tensor(np.ones(length), requires_grad=True)
            (x.exp() * x).sum().backward()
            assert 0 <= len(node_rules._shared) <= 4
    assert node_rules._shared
