"""The guard of a graph says yes to graphs like it, and to no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.autograd.frozen_graphs.cached_graphs import (
    guard_source,
    kinds_of,
    sequence_of,
    walk,
)
from mpgrad.base.generated_code import compiled
from mpgrad.recording.tensors.tensor import gradient_edge
from tests.random_programs import random_program


def guard_of(tensor: mg.Tensor) -> Callable[..., Any]:
    walked = walk([gradient_edge(tensor)])
    source, known = guard_source(walked, 0, sequence_of(walked)[0])
    return compiled("guard", source, known, "guard")


def recognised(guard: Callable[..., Any], tensor: mg.Tensor) -> bool:
    root = gradient_edge(tensor)
    nodes = guard(*root)
    assert nodes is None or nodes == walk([root]).nodes
    return nodes is not None


def look(tensor: mg.Tensor) -> Any:
    """What the slow way compares."""
    walked = walk([gradient_edge(tensor)])
    metadata = [node.input_metadata for node in walked.nodes]
    return kinds_of(walked.nodes), walked.edges, metadata, sequence_of(walked)[1]


def test_random_graphs() -> None:
    programs = [random_program(seed) for seed in range(30)]
    for seed, program in enumerate(programs):
        guard = guard_of(program.loss)
        assert recognised(guard, random_program(seed).loss)
        for other in programs:
            assert recognised(guard, other.loss) == (look(other.loss) == look(program.loss))


def leaf(*shape: int, dtype: str = "f4") -> mg.Tensor:
    return mg.tensor(np.ones(shape, dtype), requires_grad=True)


def _product(x: mg.Tensor, y: mg.Tensor) -> mg.Tensor:
    return (x.exp() * y.exp()).sum()


def _hooked(x: mg.Tensor, y: mg.Tensor) -> mg.Tensor:
    x.register_hook(lambda grad: None)
    return _product(x, y)


def _accumulates(x: mg.Tensor, y: mg.Tensor) -> mg.Tensor:
    y.register_post_accumulate_grad_hook(lambda tensor: None)
    return _product(x, y)


def _inner_hook(x: mg.Tensor, y: mg.Tensor) -> mg.Tensor:
    z = x.exp()
    z.retain_grad()
    return (z * y.exp()).sum()


def _packed(x: mg.Tensor, y: mg.Tensor) -> mg.Tensor:
    with mg.autograd.graph.save_on_cpu():
        return _product(x, y)


def _other_order(x: mg.Tensor, y: mg.Tensor) -> mg.Tensor:
    second = y.exp()
    return (x.exp() * second).sum()


OTHERS: list[Callable[[mg.Tensor, mg.Tensor], mg.Tensor]] = [
    _hooked,
    _accumulates,
    _inner_hook,
    _packed,
    _other_order,
    lambda x, y: _product(x, x),
    lambda x, y: _product(x, y.detach()),
    lambda x, y: (x.exp() * x.exp()).sum(),
    lambda x, y: (lambda z: (z * z).sum())(x.exp()),
    lambda x, y: (x.exp() * y.sin()).sum(),
    lambda x, y: (x.exp() * y.exp()).mean(),
    lambda x, y: _product(leaf(3, 1), y),
    lambda x, y: _product(leaf(3, dtype="f8"), leaf(3, dtype="f8")),
    lambda x, y: _product(x.exp(), y),
]


@pytest.mark.parametrize("other", OTHERS, ids=range(len(OTHERS)))
def test_another_graph_is_not_recognised(
    other: Callable[[mg.Tensor, mg.Tensor], mg.Tensor],
) -> None:
    guard = guard_of(_product(leaf(3), leaf(3)))
    assert recognised(guard, _product(leaf(3), leaf(3)))
    assert not recognised(guard, other(leaf(3), leaf(3)))


def test_a_loop_that_changes_gets_the_right_gradients() -> None:
    with mg.Engine("local"):
        for step in range(40):
            x, y = leaf(3), leaf(3)
            record = _product if step % 7 < 5 else OTHERS[step % 11]
            record(x, y).backward()
            expected = x.grad
            assert expected is not None
            x.grad = None
            record(x, y).backward(inputs=[x])  # without a guard
            assert x.grad.tolist() == expected.tolist()
