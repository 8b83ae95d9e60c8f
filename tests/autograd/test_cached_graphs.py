"""A graph like an earlier one gets its tables; one that differs in anything never does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.autograd.frozen_graphs import cached_graphs, costs
from mpgrad.autograd.frozen_graphs import freeze as freezing
from mpgrad.autograd.frozen_graphs.cached_graphs import NODES_MAX, VARIANTS_MAX, Memory
from mpgrad.autograd.frozen_graphs.freeze import freeze
from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph, LeafSink
from mpgrad.autograd.roots import wanted_grads, wanted_results
from mpgrad.recording.graph.node import Node
from mpgrad.recording.tensors.tensor import gradient_edge
from mpgrad.scheduler.cost_model import CostModel
from mpgrad.scheduler.split import split_above_us
from mpgrad.scheduler.tuning import MESSAGE_US, SAMPLES
from tests.random_programs import random_program


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    fresh = Memory()
    monkeypatch.setattr(freezing, "_memory", fresh)
    return fresh


def one(_: Node) -> float:
    return 1.0


def frozen(*roots: mg.Tensor, wanted: Any = None, cost: Any = one) -> FrozenGraph:
    edges = [gradient_edge(root) for root in roots]
    seeds = [f"seed {number}" for number in range(len(roots))]
    return freeze(edges, seeds, wanted=wanted, keep_graph=True, cost=cost)


def frozen_anew(*roots: mg.Tensor, wanted: Any = None) -> FrozenGraph:
    """As freeze() would if it had no memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(freezing, "_memory", Memory())
        return frozen(*roots, wanted=wanted)


class Twice(mg.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> mg.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> mg.Tensor:
        return grad * 2


class Thrice(Twice):
    pass


def leaf(*shape: int, dtype: Any = mg.float32, requires_grad: bool = True) -> mg.Tensor:
    return mg.ones(*(shape or (2, 2)), dtype=dtype, requires_grad=requires_grad)


Step = Callable[[], FrozenGraph]


def _simple() -> FrozenGraph:
    a, b = leaf(), leaf()
    return frozen((mg.relu(a @ b) + a).sum())


def _other_operator() -> FrozenGraph:
    a, b = leaf(), leaf()
    return frozen((mg.tanh(a @ b) + a).sum())


def _other_shape() -> FrozenGraph:
    a, b = leaf(3, 3), leaf(3, 3)
    return frozen((mg.relu(a @ b) + a).sum())


def _other_dtype() -> FrozenGraph:
    a, b = leaf(dtype=mg.float64), leaf(dtype=mg.float64)
    return frozen((mg.relu(a @ b) + a).sum())


def _less_requires_grad() -> FrozenGraph:
    a, b = leaf(), leaf(requires_grad=False)
    return frozen((mg.relu(a @ b) + a).sum())


def _another_leaf() -> FrozenGraph:
    a, b = leaf(), leaf()
    return frozen((mg.relu(a @ b) + b).sum())


def _own_leaf() -> FrozenGraph:
    a, b = leaf(), leaf()
    return frozen((mg.relu(a @ b) + leaf()).sum())


def _two_roots(swap: bool = False) -> FrozenGraph:
    a = leaf()
    b = mg.relu(a)
    roots = (a.sum(), b.sum())
    return frozen(*(roots[::-1] if swap else roots))


def _one_root() -> FrozenGraph:
    a = leaf()
    b = mg.relu(a)
    a.sum()
    return frozen(b.sum())


def _branches(late_first: bool) -> FrozenGraph:
    a, b = leaf(), leaf()
    if late_first:
        right, left = mg.relu(b), mg.relu(a)
    else:
        left, right = mg.relu(a), mg.relu(b)
    return frozen((left + right).sum())


def _branches_of_two_threads() -> FrozenGraph:
    """Both branches have the same sequence number: each thread counts by itself."""
    found: list[mg.Tensor] = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: found.append(mg.relu(leaf())))
        thread.start()
        thread.join()
    return frozen((found[0] + found[1]).sum())


def _function(kind: type[mg.autograd.Function]) -> FrozenGraph:
    return frozen(kind.apply(leaf()).sum())


def _wanted(what: str) -> FrozenGraph:
    a, b = leaf(), leaf()
    middle = a @ b
    loss = (mg.relu(middle) + a).sum()
    wanted = {
        "a": lambda: wanted_results([a]),
        "b": lambda: wanted_results([b]),
        "b a": lambda: wanted_results([b, a]),
        "a b": lambda: wanted_results([a, b]),
        "middle": lambda: wanted_results([middle]),
        "other": lambda: wanted_results([leaf()]),
        "grad of a": lambda: wanted_grads([a]),
        "grad of b": lambda: wanted_grads([b]),
    }[what]()
    return frozen(loss, wanted=wanted)


def _hooked(where: str) -> FrozenGraph:
    a, b = leaf(), leaf()
    product = a @ b
    loss = (mg.relu(product) + a).sum()
    if where == "tensor":
        product.register_hook(lambda grad: grad)
    elif where == "leaf":
        a.register_hook(lambda grad: grad)
    elif where == "node":
        product.grad_fn.register_hook(lambda *_: None)
    elif where == "post accumulate":
        a.register_post_accumulate_grad_hook(lambda _: None)
    elif where == "retained":
        product.retain_grad()
    return frozen(loss)


def _packed() -> FrozenGraph:
    a, b = leaf(), leaf()
    with mg.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        product = a @ b
    return frozen((mg.relu(product) + a).sum())


def _unlike_in_one_edge(second: bool) -> FrozenGraph:
    parts = mg.split(leaf(4, 2), 2)
    return frozen(mg.relu(parts[int(second)]).sum())


def _part_as_root(number: int) -> FrozenGraph:
    return frozen(mg.split(leaf(4, 2), 2)[number])


def _part_wanted(number: int) -> FrozenGraph:
    parts = mg.split(leaf(4, 2), 2)
    return frozen((parts[0] * parts[1]).sum(), wanted=wanted_results([parts[number]]))


STEPS: dict[str, Step] = {
    "simple": _simple,
    "operator": _other_operator,
    "shape": _other_shape,
    "dtype": _other_dtype,
    "requires_grad": _less_requires_grad,
    "leaf": _another_leaf,
    "own leaf": _own_leaf,
    "two roots": _two_roots,
    "two roots swapped": lambda: _two_roots(swap=True),
    "one root": _one_root,
    "left first": lambda: _branches(late_first=False),
    "right first": lambda: _branches(late_first=True),
    "two threads": _branches_of_two_threads,
    "function": lambda: _function(Twice),
    "other function": lambda: _function(Thrice),
    "first part": lambda: _unlike_in_one_edge(False),
    "second part": lambda: _unlike_in_one_edge(True),
    "first part as root": lambda: _part_as_root(0),
    "second part as root": lambda: _part_as_root(1),
    "wants first part": lambda: _part_wanted(0),
    "wants second part": lambda: _part_wanted(1),
    "packed": _packed,
    **{
        f"wants {what}": (lambda what=what: _wanted(what))
        for what in ("a", "b", "a b", "b a", "middle", "other", "grad of a", "grad of b")
    },
    **{
        f"{where} hook": (lambda where=where: _hooked(where))
        for where in ("tensor", "leaf", "node", "post accumulate", "retained")
    },
}


def tables(graph: FrozenGraph) -> tuple[Any, ...]:
    """All that decides what is done with a graph: Nodes by what they are, numbers by order."""
    numbers = sorted({spec.sequence_nr for spec in graph.spec.nodes})
    specs = [
        spec._replace(sequence_nr=numbers.index(spec.sequence_nr)) for spec in graph.spec.nodes
    ]
    sinks = [
        ("leaf", graph.nodes.index(sink.accumulator))
        if isinstance(sink, LeafSink) and sink.accumulator in graph.nodes
        else type(sink)
        if isinstance(sink, LeafSink)
        else sink
        if not hasattr(sink, "tensor")
        else "retained"
        for sink in graph.sinks
    ]
    nodes = [(type(node), node.name(), node.input_metadata) for node in graph.nodes]
    return nodes, graph.runs, specs, graph.spec[1:], graph.seeds, sinks


def step_anew(step: Step) -> FrozenGraph:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(freezing, "_memory", Memory())
        return step()


@pytest.mark.parametrize("name", STEPS)
def test_no_step_gets_the_tables_of_one_that_differs(name: str) -> None:
    for other in STEPS.values():
        other()
    assert tables(STEPS[name]()) == tables(step_anew(STEPS[name]))


@pytest.mark.parametrize(
    "name", [name for name in STEPS if "hook" not in name and name != "packed"]
)
def test_the_same_step_gets_the_same_tables(name: str) -> None:
    first, second = STEPS[name](), STEPS[name]()
    assert second.spec is first.spec
    assert second.runs is first.runs
    assert all(new is not old for new, old in zip(second.nodes, first.nodes, strict=True))
    assert tables(second) == tables(step_anew(STEPS[name]))


def test_steps_between_which_other_nodes_are_recorded_are_alike() -> None:
    first = _simple()
    for _ in range(100):
        leaf().sum()
    assert _simple().spec is first.spec


def test_a_hook_that_was_removed_is_no_difference() -> None:
    first = _simple()
    a, b = leaf(), leaf()
    handle = a.register_post_accumulate_grad_hook(lambda _: None)
    loss = (mg.relu(a @ b) + a).sum()
    assert frozen(loss).spec is not first.spec
    handle.remove()
    assert frozen(loss).spec is first.spec


def test_the_tables_of_a_graph_with_hooks_are_not_kept() -> None:
    _hooked("post accumulate")
    assert tables(_simple()) == tables(step_anew(_simple))


def test_a_logger_that_listens_is_a_difference(caplog: pytest.LogCaptureFixture) -> None:
    first = _simple()
    with caplog.at_level("DEBUG", logger=freezing.LOGGER.name):
        assert len(_simple().nodes) > len(first.nodes)
    assert _simple().spec is first.spec


@pytest.mark.slow
def test_random_programs_get_their_own_tables() -> None:
    for seed in [*range(60), *range(60)]:
        program = random_program(seed)
        wanted = wanted_results([program.inner, *program.leaves]) if seed % 3 == 0 else None
        now = frozen(program.loss, wanted=wanted)
        assert tables(now) == tables(frozen_anew(program.loss, wanted=wanted))


def test_costs_are_looked_up_while_a_graph_is_young_and_now_and_then() -> None:
    figures = [10.0]
    seen = []

    def cost(_: Node) -> float:
        return figures[0]

    for number in range(3 * SAMPLES):
        if number >= SAMPLES:
            figures[0] = 50.0
        a = leaf()
        graph = frozen(mg.relu(a).sum(), cost=cost)
        seen.append(max(spec.cost_us for spec in graph.spec.nodes))
    assert seen[0] == 10.0
    assert seen[-1] == 50.0
    assert seen.index(50.0) <= SAMPLES + SAMPLES


def test_small_changes_of_cost_keep_the_tables() -> None:
    figure = [100.0]
    specs = []

    def cost(_: Node) -> float:
        return figure[0]

    for _ in range(2 * SAMPLES):
        specs.append(frozen(mg.relu(leaf()).sum(), cost=cost).spec)
        figure[0] *= 1.001
    assert all(spec is specs[0] for spec in specs)


def test_another_share_of_a_half_is_a_change_of_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "model", CostModel())
    above_us = split_above_us(MESSAGE_US)

    def cost(_: Node) -> float:
        return 2.0 * above_us

    def product() -> FrozenGraph:
        x = leaf(7, 3) * 2.0
        return frozen((x @ leaf(3, 5)).sum(), cost=cost)

    def share(graph: FrozenGraph) -> float:
        (at,) = [at for at, node in enumerate(graph.nodes) if node.name() == "MmBackward0"]
        return graph.spec.nodes[at].second_half_share

    first = product()
    (node,) = [node for node in first.nodes if node.name() == "MmBackward0"]
    costs.observe_halves(node, 1.8 * above_us, 0.2 * above_us)
    assert share(first) == 0.5
    assert share(product()) == pytest.approx(0.1)


def test_the_memory_is_bounded(memory: Memory) -> None:
    for size in range(1, 3 * VARIANTS_MAX):
        frozen(leaf(size).sum())
    assert memory.count() == VARIANTS_MAX


def test_the_graphs_used_last_are_kept(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_graphs, "NODES_MAX", 20)
    first = _simple()
    for steps in range(1, 8):
        x = leaf()
        for _ in range(steps):
            x = mg.relu(x)
        frozen(x.sum())
        assert _simple().spec is first.spec
    assert memory.count() == 2
    long = leaf()
    for _ in range(30):
        long = mg.relu(long)
    frozen(long.sum())
    assert memory.count() == 2, f"larger graphs than {NODES_MAX} Nodes are not remembered"
