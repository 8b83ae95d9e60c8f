"""The simulation of many workers: no schedule beats its bound, and the same costs give the same."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.scaling.clock import Cores, inline_bytes
from benchmarks.scaling.costs import ClientCosts, Costs, MessageCosts, WorkerCosts
from benchmarks.scaling.experiments import branches
from benchmarks.scaling.simulation import BACKWARDS, Outcome, simulate
from benchmarks.scaling.task_times import Work, bound
from mpgrad.base.handles import Block
from mpgrad.coordinator.coordinator import Coordinator
from mpgrad.engine.session import Session
from mpgrad.scheduler.events import NodeTaskDone
from mpgrad.scheduler.graph_spec import GraphSpec, NodeSpec, serial_order
from mpgrad.scheduler.plan import plan
from mpgrad.wire.schema import encode
from mpgrad.workers.worker import Worker
from simulation.random_graphs import random_graph

FREE = Costs(MessageCosts(*[0.0] * 9), WorkerCosts(*[0.0] * 5), {}, 0.0)
USUAL = Costs(
    MessageCosts(8.0, 0.2, 30.0, 3.0, 5.0, 3.0, 0.3, 3.5, 0.1),
    WorkerCosts(14.0, 3.0, 4.0, 170.0, 800.0),
    {"NodeTaskDone": 15.0},
    25.0,
)


def chain(*costs: float, nbytes: int = 1 << 20) -> tuple[GraphSpec, Work]:
    """Layers, each with a weight gradient that may be computed apart."""
    layers = len(costs)
    nodes = [
        NodeSpec(
            "layer",
            layers - at,
            ((at + 1, 0) if at + 1 < layers else None, (layers + at, 0)),
            (nbytes,),
            cost,
            is_splittable=True,
        )
        for at, cost in enumerate(costs)
    ]
    nodes += [NodeSpec("leaf", 0, (), (nbytes,), 0.0, is_sink=True) for _ in costs]
    captures = tuple((layers + at, 0) for at in range(layers))
    spec = GraphSpec(tuple(nodes), ((0, 0),), captures, serial_order(nodes, ((0, 0),)))
    return spec, Work(tuple(node.cost_us for node in nodes), 0.0)


def run(graph: tuple[GraphSpec, Work], workers: int, costs: Costs = USUAL) -> Outcome:
    return simulate(*graph, costs, workers, client=ClientCosts(3.0, 2.0, 0.0))


@pytest.mark.parametrize("workers", [1, 2, 5, 16])
def test_no_schedule_beats_the_bound(workers: int) -> None:
    rng = Random(workers)
    for _ in range(12):
        spec = random_graph(rng, client_share=0.0).spec
        # The planner's costs are wrong by up to half.
        took = tuple(
            0.0 if node.is_sink else node.cost_us * rng.uniform(0.5, 1.5) for node in spec.nodes
        )
        for costs in (FREE, USUAL):
            outcome = run((spec, Work(took, costs.add_us_per_mb)), workers, costs)
            assert 0.0 < outcome.share_of_bound <= 1.0 + 1e-9
            assert outcome.first_us >= outcome.makespan_us * 0.9
            assert outcome.worker_load <= 1.0 + 1e-9


def test_the_same_costs_give_the_same_history() -> None:
    graph = branches(300, 700.0, nbytes=1 << 16)
    first, second = run(graph, 7), run(graph, 7)
    assert first._replace(core_us={}) == second._replace(core_us={})


def test_the_processes_are_the_engines_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is changed in them shows here: nothing repeats what they do."""
    seen: list[type] = []

    def noted(owner: type, name: str) -> None:
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda self, *a: seen.append(owner) or real(self, *a))

    for owner, name in ((Coordinator, "turn"), (Worker, "turn"), (Session, "run")):
        noted(owner, name)
    run(branches(64, 1000.0), 2)
    assert set(seen) == {Coordinator, Worker, Session}
    assert seen.count(Session) == BACKWARDS


def test_with_free_messages_equal_branches_reach_the_bound() -> None:
    outcome = run(branches(64, 5000.0), 16, FREE)
    assert outcome.share_of_bound > 0.99


def test_messages_cost_something() -> None:
    graph = branches(64, 1000.0)
    assert run(graph, 16).makespan_us > run(graph, 16, FREE).makespan_us


def test_a_chain_is_bounded_by_half_its_rules() -> None:
    spec, work = chain(*[4000.0] * 8)
    found = bound(spec, work)
    assert (found.work_us, found.critical_path_us) == (32_000.0, 7 * 2000.0 + 4000.0)


def test_weight_gradients_run_beside_the_chain() -> None:
    outcome = run(chain(*[4000.0] * 8), 2)
    assert outcome.speed_up > 1.5
    assert outcome.share_of_bound > 0.85


def test_gradients_inside_a_message_are_copied_and_not_parsed() -> None:
    gradients = (bytes(2000), bytes(48))
    message = NodeTaskDone("w0.1", 1, 1, 1, (gradients[0], Block(1, 64, 4096, 1), gradients[1]))
    assert inline_bytes(encode(message)) == 2048
    costs = USUAL.messages
    assert costs.coded_us(3072, 2048) == pytest.approx(0.3 + 3.5 + 2 * 0.1)


def test_no_message_overtakes_another() -> None:
    """A short one may follow a long one closely: the last table of a graph comes last."""
    slow = USUAL._replace(messages=USUAL.messages._replace(wire_us_per_kb=1000.0))
    spec, work = branches(64, 200.0)
    outcome = simulate(
        spec, work, slow, 4, client=ClientCosts(0.0, 0.0, 0.0), planned=plan(spec, fuse=False)
    )
    assert outcome.tasks == len(plan(spec, fuse=False).tasks)


def test_who_needs_a_core_takes_it_from_a_computing_process() -> None:
    first, second = "w0.1", "w1.1"
    cores = Cores(2)
    cores.begin(first)
    cores.take(10.0)  # one core is free
    assert cores.end(first) == 0.0
    cores.begin(first)
    cores.begin(second)
    for microseconds in (10.0, 30.0, 5.0):
        cores.take(microseconds)
    assert (cores.end(first), cores.end(second)) == (15.0, 30.0)
    cores.take(4.0)  # while both compute what they could not
    assert (cores.end(first), cores.end(second)) == (4.0, 0.0)
    own = Cores(None)
    own.begin(first)
    own.take(10.0)
    assert own.end(first) == 0.0


def test_enough_cores_are_like_own_ones() -> None:
    spec, work = branches(64, 1000.0)
    client = ClientCosts(3.0, 2.0, 0.0)
    own, enough, shared = (
        simulate(spec, work, USUAL, 4, client=client, cores=cores) for cores in (None, 64, 4)
    )
    assert enough._replace(core_us={}) == own._replace(core_us={})
    assert shared.makespan_us != own.makespan_us
