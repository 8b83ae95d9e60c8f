"""A planned graph as messages, without any process."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.autograd.frozen_graphs import costs
from mpgrad.autograd.frozen_graphs.freeze import freeze
from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
from mpgrad.engine.client_worker import ClientWorker
from mpgrad.engine.compiled import Compiled
from mpgrad.engine.graph_submission import GraphSubmission
from mpgrad.engine.local import COMPILED_FROM_USE
from mpgrad.engine.placement import place
from mpgrad.engine.preparation import PreparedGraph
from mpgrad.recording.tensors.tensor import gradient_edge
from mpgrad.scheduler import chunks
from mpgrad.scheduler.chunks import SMALL_GRAPH, TASKS_PER_MESSAGE
from mpgrad.scheduler.events import GraphExtended, GraphSubmitted
from mpgrad.scheduler.graph_spec import GraphSpec
from mpgrad.scheduler.plan import plan
from mpgrad.scheduler.plan_tables import Plan
from mpgrad.shm.arena import client_arena


def sent(
    frozen: FrozenGraph, planned: Plan, workers: int = 2
) -> tuple[GraphSubmitted, list[GraphExtended]]:
    """All messages of one submission."""
    graph = PreparedGraph(frozen.spec, planned)
    submission = GraphSubmission(frozen, graph, {})
    arena = client_arena()
    client = ClientWorker(place(frozen), graph, submission, arena, nullcontext, 1)  # type: ignore[arg-type]
    ahead = client.run_ahead()
    first, *rest = submission.messages("c1.1", 7, 0, workers, ahead)
    return first, rest  # type: ignore[return-value]


def frozen_of(root: mg.Tensor) -> FrozenGraph:
    seed = np.ones((), np.float32)
    return freeze([gradient_edge(root)], [seed], keep_graph=True, cost=costs.estimate)


def branches(count: int, size: int = 2000) -> tuple[FrozenGraph, Plan]:
    """So many chains of expensive Nodes behind one sum."""
    leaves = [mg.ones(size, requires_grad=True) for _ in range(count)]
    frozen = frozen_of(mg.stack([(leaf * 2.0).exp().sum() for leaf in leaves]).sum())
    expensive = tuple(
        node._replace(cost_us=500.0) if node.name == "ExpBackward0" else node._replace(cost_us=1.0)
        for node in frozen.spec.nodes
    )
    spec: GraphSpec = frozen.spec._replace(nodes=expensive)
    return frozen._replace(spec=spec), plan(spec, workers=64)


@pytest.mark.parametrize("count", [1, SMALL_GRAPH, SMALL_GRAPH + 1, 77])
def test_the_tables_are_cut_without_gap_or_overlap(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "TASKS_PER_MESSAGE", 20)
    frozen, planned = branches(count)
    first, rest = sent(frozen, planned)
    pieces = [first.tasks, *(message.tasks for message in rest)]
    tables = [task.with_program((0, 0), b"") for tasks in pieces for task in tasks]
    assert tables == list(planned.tasks)
    assert max(len(tasks) for tasks in pieces) <= 20 < TASKS_PER_MESSAGE
    assert [first.is_whole, *(message.is_whole for message in rest)] == [
        *(False for _ in rest),
        True,
    ]


def test_the_task_that_all_wait_for_is_run_before_the_rest_is_sent() -> None:
    frozen, planned = branches(30)
    assert planned.opens_alone
    first, rest = sent(frozen, planned)
    assert first.done == 1
    assert len(first.tasks) == 1 + 2  # and one for each worker
    assert [len(message.tasks) for message in rest][:2] == [4, 8]
    # What it gave flows on as seeds, in the places that its table says.
    wheres = [(output.task, output.slot, output.place) for output in planned.tasks[0].outputs]
    assert [(task, slot, place) for task, slot, place, _ in first.seeds] == wheres
    assert {ref for *_, ref in first.seeds} == {np.float32(1.0).tobytes()}


def weighed(dim: int) -> FrozenGraph:
    """Two branches, each gets other gradients from a product and a sum along ``dim``."""
    weights = mg.tensor(np.arange(1, 19, dtype=np.float32).reshape(3, 3, 2) / 7)
    leaves = [mg.ones(3, 3, requires_grad=True) for _ in range(2)]
    stacked = mg.stack([leaf.exp() for leaf in leaves], dim=2)
    return frozen_of(((stacked * weights).sum(dim) * mg.tensor(weights.numpy()[0])).sum())


def test_what_runs_ahead_becomes_source_that_keeps_saved_tensors_and_the_bits() -> None:
    frozen = weighed(0)
    spec = frozen.spec._replace(
        nodes=tuple(
            node._replace(cost_us=10_000.0 if node.name == "ExpBackward0" else 1.0)
            for node in frozen.spec.nodes
        )
    )
    graph = PreparedGraph(spec, plan(spec, workers=2))
    ahead = graph.ahead(frozen)
    assert ahead is not None
    assert graph.ahead(frozen) is ahead
    assert [spec.nodes[at].name for at in ahead.nodes][-1] == "StackBackward0"
    assert len(ahead.nodes) == 5
    runs = [ahead.gradients(frozen, None) for _ in range(COMPILED_FROM_USE + 2)]
    assert isinstance(ahead.program, Compiled)
    assert len({tuple([array.tobytes() for array in run]) for run in runs}) == 1
    assert np.unique(runs[0][0]).size > 2  # the two differ, and so do their elements
    # The same tables with another attribute, for which the source was not made.
    other = weighed(1)
    expected = PreparedGraph(spec, graph.plan).ahead(other)
    assert expected is not None
    pairs = zip(ahead.gradients(other, None), expected.gradients(other, None), strict=True)
    assert all(a.tobytes() == b.tobytes() for a, b in pairs)
    assert ahead.gradients(other, None)[0].tobytes() != runs[0][0].tobytes()


def test_a_chain_is_left_to_the_workers_whole() -> None:
    """Nothing could begin earlier if its head ran here."""
    frozen = frozen_of((mg.ones(2000, requires_grad=True) * 2.0).exp().sum())
    planned = plan(frozen.spec)
    assert not planned.opens_alone
    first, rest = sent(frozen, planned)
    assert (first.done, first.is_whole, rest) == (0, True, [])
    assert first.seeds == ((0, 0, 0, np.float32(1.0).tobytes()),)
