"""Where freeze puts Nodes that call hooks, and what these cost where there are none."""

from __future__ import annotations

from typing import Any

import pytest

import mpgrad as mg
from mpgrad.autograd.frozen_graphs.freeze import freeze
from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph, LeafSink, RetainSink
from mpgrad.autograd.running import hook_nodes
from mpgrad.autograd.running.hook_nodes import AccumulateNow, ClientNode, HooksAfter, HooksBefore
from mpgrad.recording.tensors.accumulate_grad import AccumulateGrad
from mpgrad.recording.tensors.tensor import gradient_edge


def frozen(root: mg.Tensor, *inputs: mg.Tensor) -> FrozenGraph:
    wanted = [(gradient_edge(tensor), None) for tensor in inputs] or None
    return freeze([gradient_edge(root)], [None], wanted=wanted, keep_graph=True, cost=lambda _: 1.0)


def client_nodes_of(graph: FrozenGraph) -> list[str]:
    """Class and Node of each client Node, in the order in which they run."""
    nodes = [graph.nodes[index] for index in graph.spec.order]
    return [
        f"{type(node).__name__} {node.subject.label}"
        for node in nodes
        if isinstance(node, ClientNode)
    ]


def chain() -> tuple[mg.Tensor, mg.Tensor, mg.Tensor]:
    x = mg.ones(3, requires_grad=True)
    y = x * 2
    return x, y, mg.exp(y)


def ignore(*_: Any) -> None:
    """A hook."""


def test_a_graph_without_hooks_has_no_client_nodes() -> None:
    _, y, z = chain()
    z.register_hook(ignore).remove()
    y.grad_fn.register_prehook(ignore).remove()  # type: ignore[union-attr]
    assert client_nodes_of(frozen(z.sum())) == []


def test_retained_gradients_alone_are_captured() -> None:
    _, y, z = chain()
    y.retain_grad()
    graph = frozen(z.sum())
    assert client_nodes_of(graph) == []
    assert {type(sink) for sink in graph.sinks} == {LeafSink, RetainSink}


def test_retained_gradients_among_hooks_are_kept_in_their_turn() -> None:
    x, y, z = chain()
    y.retain_grad()
    x.register_hook(ignore)
    graph = frozen(z.sum())
    assert client_nodes_of(graph) == ["HooksBefore MulBackward0", "HooksBefore AccumulateGrad"]
    assert [type(sink) for sink in graph.sinks] == [LeafSink]


def test_node_hooks_stand_on_both_sides() -> None:
    x, y, z = chain()
    y.grad_fn.register_hook(ignore)  # type: ignore[union-attr]
    graph = frozen(z.sum())
    assert client_nodes_of(graph) == ["HooksBefore MulBackward0", "HooksAfter MulBackward0"]
    before, after = (
        next(at for at, node in enumerate(graph.nodes) if isinstance(node, kind))
        for kind in (HooksBefore, HooksAfter)
    )
    rule = graph.nodes.index(y.grad_fn)  # type: ignore[arg-type]
    # After the rule comes what it gave (two gradients), then what it got (one).
    assert graph.spec.nodes[before].edges == ((rule, 0), (after, 2))
    assert graph.spec.nodes[rule].edges == ((after, 0), None)
    accumulator = graph.nodes.index(gradient_edge(x)[0])
    assert graph.spec.nodes[after].edges == ((accumulator, 0), None)


def test_a_node_that_is_only_captured_has_no_hooks_after_it() -> None:
    x, y, z = chain()
    y.register_hook(ignore)
    y.grad_fn.register_hook(ignore)  # type: ignore[union-attr]
    x.register_post_accumulate_grad_hook(ignore)
    assert client_nodes_of(frozen(z.sum(), y)) == [
        "HooksBefore MulBackward0",
        "HooksAfter MulBackward0",
    ]
    assert client_nodes_of(frozen(z.sum())) == [
        "HooksBefore MulBackward0",
        "HooksAfter MulBackward0",
        "AccumulateNow AccumulateGrad",
    ]
    assert AccumulateNow.takes_undefined


def test_a_hooked_gradient_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[Any] = []
    adopt = hook_nodes.adopt
    monkeypatch.setattr(
        hook_nodes, "adopt", lambda array: (copied.append(array.shape), adopt(array))[1]
    )
    x, y, z = chain()
    y.register_hook(ignore)
    with mg.Engine("local"):
        (z * 2).sum().backward()
    assert copied == []
    newer = x * 1
    newer.register_hook(ignore)
    with mg.Engine("local"):
        (newer + y).sum().backward()  # both get the very same gradient
    assert len(copied) == 1


@pytest.mark.parametrize("hook", ["none", "ignores", "keeps"])
def test_grad_adopts_what_nobody_else_holds(hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[mg.Tensor] = []
    given: list[bool] = []
    accumulate = AccumulateGrad.accumulate

    def noting(self: AccumulateGrad, grad: Any, *, exclusive: bool) -> None:
        given.append(exclusive)
        accumulate(self, grad, exclusive=exclusive)

    monkeypatch.setattr(AccumulateGrad, "accumulate", noting)
    x = mg.ones(3, requires_grad=True)
    x.register_post_accumulate_grad_hook(ignore)
    if hook != "none":
        x.register_hook(ignore if hook == "ignores" else kept.append)
    with mg.Engine("local"):
        (x * 2).sum().backward()
    assert given == [hook != "keeps"]
