"""``auto``: workers only where they are clearly faster; and what explain() says about it."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.autograd.frozen_graphs import costs
from mpgrad.autograd.frozen_graphs.freeze import freeze
from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
from mpgrad.engine import execution, preparation, session_pool
from mpgrad.engine.choice import (
    RECENT,
    Choice,
    Experience,
    Experiences,
    Mode,
    Prediction,
    predict,
    structure_of,
    too_serial,
    too_small,
)
from mpgrad.engine.options import EngineOptions
from mpgrad.engine.placement import place
from mpgrad.engine.preparation import Preparation, Ready
from mpgrad.engine.session import Session
from mpgrad.recording.tensors.tensor import gradient_edge
from mpgrad.scheduler import tuning
from mpgrad.scheduler.cost_model import CostModel
from mpgrad.scheduler.plan import plan
from mpgrad.scheduler.tuning import (
    LOST_SHARE,
    MARGIN,
    MESSAGE_US,
    SAMPLES,
    START_US,
    SURPRISE_MAX,
    TRIAL_SHARE,
    measured_message_us,
)


class Slow(mg.Function):
    """Stands for work; what it costs, the test says."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * 2


def chosen(graph: FrozenGraph, workers: int, message_us: float = MESSAGE_US) -> Choice:
    """What is chosen the first time."""
    planned = plan(graph.spec, workers=workers, message_us=message_us)
    predicted = predict(planned, workers, message_us)
    first = Experience().choose(predicted, has_workers=False)
    return too_small(graph, workers, message_us) or too_serial(graph, message_us) or first


@pytest.fixture(autouse=True)
def nothing_learned_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "model", CostModel())


def branches(count: int) -> mg.Tensor:
    x = mg.ones(4, requires_grad=True)
    return mg.stack([Slow.apply(x).sum() for _ in range(count)]).sum()


def chain(length: int) -> mg.Tensor:
    x = mg.ones(4, requires_grad=True)
    for _ in range(length):
        x = Slow.apply(x)
    return x.sum()


def frozen(loss: mg.Tensor, each_us: float | None = None) -> FrozenGraph:
    """The graph of ``loss``, in which a Slow was measured to take ``each_us``."""

    def make() -> FrozenGraph:
        return freeze([gradient_edge(loss)], [None], keep_graph=True, cost=costs.estimate)

    if each_us is not None:
        for node in make().nodes:
            if node.name() == "SlowBackward":
                costs.observe([(node, each_us)])
    return make()


def test_a_small_graph_stays_here() -> None:
    choice = chosen(frozen(branches(4), 10.0), 8)
    assert choice.mode == "local"
    assert re.fullmatch(r"only .* of work in \d+ Nodes", choice.reason)


def test_wide_heavy_work_goes_to_workers() -> None:
    choice = chosen(frozen(branches(16), 20_000.0), 2)
    assert choice.mode == "process"


def test_many_small_nodes_stay_here() -> None:
    """To send one takes about as long as to run it."""
    x = mg.ones(4, requires_grad=True)

    def chain_of(length: int) -> mg.Tensor:
        y = x
        for _ in range(length):
            y = y + 1.5
        return y.sum()

    graph = frozen(mg.stack([chain_of(500) for _ in range(8)]).sum())
    assert too_small(graph, 8, MESSAGE_US) is not None
    planned = plan(graph.spec, workers=8, message_us=MESSAGE_US)
    predicted = predict(planned, 8, MESSAGE_US)
    assert predicted.process > predicted.local


def test_a_chain_stays_here_however_heavy() -> None:
    choice = chosen(frozen(chain(16), 20_000.0), 8)
    assert choice.mode == "local"
    assert choice.reason.endswith("of work are one chain")


def test_a_chain_is_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of 2,000 Nodes takes longer than their backward."""
    with mg.Engine("auto", cpu_workers=2) as engine:
        preparation = engine._execution.preparation
        monkeypatch.setattr(preparation, "plan_of", lambda _: pytest.fail("planned"))
        chain(20).backward()
        x = mg.ones(1000, requires_grad=True)
        products = x
        for _ in range(500):
            products = products * 1.0001
        products.sum().backward()
        assert engine.statistics().backwards_local == 2
        monkeypatch.undo()
        assert preparation.ready(frozen(branches(20)), has_workers=False).graph is not None


def test_other_shapes_of_a_graph_that_is_faster_here_are_not_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A plan takes longer than the freezing of a graph; shapes that change need one each time."""
    with mg.Engine("auto", cpu_workers=2) as engine:
        preparation = engine._execution.preparation

        def ready() -> Ready:
            graph = frozen(branches(20), 20_000.0)._replace(remembered=None)
            return preparation.ready(graph, has_workers=True)

        first = ready()
        assert first.graph is not None
        experience = first.experience
        assert experience is not None
        assert first.choice.predicted is not None
        for _ in range(SAMPLES):
            for mode, took_us in (("local", 4e5), ("process", 9e5)):
                experience.note(mode, took_us, first.choice)
        monkeypatch.setattr(preparation, "plan_of", lambda _: pytest.fail("planned"))
        again = ready()
        assert (again.choice.mode, again.graph, again.experience) == ("local", None, experience)
        monkeypatch.undo()
        for _ in range(SAMPLES):
            experience.note("process", 2e5, first.choice)
        assert ready().graph is not None


def test_layers_that_can_be_divided_are_no_chain() -> None:
    """The gradients of weights run beside what follows."""
    x = mg.ones(256, 1024)
    for _ in range(8):
        x = x @ mg.ones(1024, 1024, requires_grad=True)
    assert too_serial(frozen(x.sum()), MESSAGE_US) is None


def test_one_worker_is_never_faster() -> None:
    assert chosen(frozen(branches(16), 20_000.0), 1).mode == "local"


def test_a_function_that_never_ran_counts_as_expensive() -> None:
    assert chosen(frozen(branches(16)), 2).mode == "process"


def test_the_prediction_is_between_its_bounds() -> None:
    planned = plan(frozen(branches(16), 20_000.0).spec)
    assert planned.work_us == pytest.approx(16 * 20_000, rel=0.01)
    predicted = predict(planned, 4, MESSAGE_US)
    assert predicted.local == planned.work_us
    assert planned.work_us / 4 < predicted.process < planned.work_us / 4 * MARGIN
    assert predict(planned, 1000, MESSAGE_US).process > planned.critical_path_us


def test_the_margin_decides_close_calls() -> None:
    two_of_unequal_length = chosen(frozen(chain(1) + chain(9), 2000.0), 2)
    assert two_of_unequal_length.mode == "local"


def test_what_a_message_costs_here_decides() -> None:
    graph = frozen(branches(16), 300.0)
    assert chosen(graph, 2).mode == "process"
    assert chosen(graph, 2, 4 * MESSAGE_US).mode == "local"


def test_a_busy_start_does_not_decide_for_ever() -> None:
    assert measured_message_us(1.5 * MESSAGE_US) == 1.5 * MESSAGE_US
    assert measured_message_us(1e6) == SURPRISE_MAX * MESSAGE_US
    assert measured_message_us(0.0) == MESSAGE_US / SURPRISE_MAX


@pytest.mark.process
def test_an_engine_asks_how_long_messages_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planner and chooser get the answer."""
    monkeypatch.setattr(session_pool, "measured_message_us", measured_message_us)
    monkeypatch.setattr(Session, "round_trip_us", lambda session: 2 * MESSAGE_US)
    with mg.Engine("process", cpu_workers=2) as engine:
        preparation = engine._execution.preparation
        assert preparation.message_us == 2 * MESSAGE_US
        graph = frozen(branches(4), 200.0)
        found = preparation.plan_of(graph).plan
        assert found == plan(graph.spec, workers=2, message_us=2 * MESSAGE_US)
        assert found != plan(graph.spec, workers=2)
    monkeypatch.undo()
    with mg.Engine("process", cpu_workers=1) as engine, engine._execution.sessions.session() as own:
        assert own.round_trip_us() > 0.0


def test_an_auto_engine_runs_small_graphs_here() -> None:
    with mg.Engine("auto", cpu_workers=2) as engine:
        x = mg.ones(3, requires_grad=True)
        (x * x).sum().backward()
        statistics = engine.statistics()
        assert (statistics.backwards_local, statistics.backwards_process) == (1, 0)
        assert engine.coordinator_pid is None


# ---------------------------------------------------------------------- explain()


def hooked() -> mg.Tensor:
    x = mg.ones(4, requires_grad=True)
    y = Slow.apply(x)
    y.register_hook(lambda grad: None)
    return (y * x).sum()


def test_explain_names_every_node_and_runs_nothing() -> None:
    engine = mg.Engine("process", cpu_workers=2)
    found = engine.explain(hooked())
    assert found.mode == "process"
    assert 'mode="process"' in found.reason
    where = {node.name: (node.where, node.reason) for node in found.nodes}
    assert where["MulBackward0"] == ("worker", "an operator")
    assert where["HooksBefore(SlowBackward)"] == ("client", "hooks run in the calling process")
    assert where["SlowBackward"][0] == "worker"
    assert where["AccumulateGrad"][0] == "worker"
    assert engine.coordinator_pid is None
    engine.close()


def test_explain_says_why_a_function_stays() -> None:
    factors = iter([2.0])

    class Inner(Slow):
        @staticmethod
        def backward(ctx, grad):
            return grad * next(factors)

    found = mg.Engine("process").explain(Inner.apply(mg.ones(1, requires_grad=True)))
    (reason,) = (node.reason for node in found.nodes if node.name == "InnerBackward")
    assert "reads the closure variable `factors`, a list_iterator" in reason


def test_explain_in_local_mode() -> None:
    found = mg.Engine("local").explain(hooked())
    assert found.mode == "local"
    assert {node.where for node in found.nodes} == {"client"}


def test_explain_reads_well() -> None:
    text = mg.Engine("local").explain(hooked()).table()
    head, mode, *rows = text.splitlines()
    assert "nodes in" in head
    assert "critical path" in head
    assert mode.startswith("mode: local (")
    assert len(rows) == len(mg.Engine("local").explain(hooked()).nodes)
    assert any(re.search(r"SlowBackward .* [0-9.]+ (us|ms) ", row) for row in rows)


def test_explain_counts_in_words() -> None:
    x = mg.ones(4, requires_grad=True)
    assert str(mg.Engine("local").explain(x.sum())).startswith("2 nodes in 1 task, ")
    assert str(mg.Engine("local").explain(x)).startswith("1 node in 1 task, ")


def test_explain_wants_a_graph() -> None:
    with pytest.raises(RuntimeError, match="does not require grad"):
        mg.Engine("local").explain(mg.ones(1))


# ---------------------------------------------------------------------- what both modes took


PREDICTED = Prediction(10_000.0, 6_000.0)


def run(experience: Experience, took_us: Prediction, steps: int) -> list[Choice]:
    """So many backwards of a graph that takes so long in each mode."""
    made = []
    for _ in range(steps):
        choice = experience.choose(PREDICTED, has_workers=True)
        experience.note(mode_of(choice), getattr(took_us, choice.mode), choice)
        made.append(choice)
    return made


def mode_of(choice: Choice) -> Mode:
    return "process" if choice.mode == "process" else "local"


@pytest.mark.parametrize(
    "took", [Prediction(10_000.0, 14_000.0), Prediction(10_000.0, 6_000.0), Prediction(1e4, 9e3)]
)
def test_the_faster_mode_is_found_whatever_was_predicted(took: Prediction) -> None:
    faster = "local" if took.local < took.process else "process"
    made = run(Experience(), took, 50)[4:]
    assert all(choice.mode == faster or choice.is_trial for choice in made)
    lost_us = sum(getattr(took, choice.mode) - min(took[:2]) for choice in made)
    assert lost_us <= 0.05 * 50 * min(took[:2])


def test_the_first_backward_of_a_mode_does_not_count() -> None:
    experience = Experience()
    choice = experience.choose(PREDICTED, has_workers=True)
    assert choice.mode == "process"
    experience.note("process", 500_000.0, choice)
    assert experience.choose(PREDICTED, has_workers=True).mode == "process"


def test_what_takes_longer_here_than_its_rules_would_in_workers_too() -> None:
    """Many short Nodes: the executor costs more than they do."""
    experience, chained = Experience(), Prediction(10_000.0, 10_700.0)
    for _ in range(3):
        choice = experience.choose(chained, has_workers=False)
        assert choice.mode == "local"
        experience.note("local", 30_000.0, choice)


def test_one_interruption_does_not_change_the_mode() -> None:
    experience = Experience()
    run(experience, PREDICTED, 5)
    choice = experience.choose(PREDICTED, has_workers=True)
    experience.note("process", 200_000.0, choice)
    assert experience.choose(PREDICTED, has_workers=False).mode == "process"


def test_what_has_become_slower_is_left_and_what_has_become_faster_is_found() -> None:
    experience = Experience()
    run(experience, PREDICTED, 50)
    made = run(experience, Prediction(10_000.0, 30_000.0), 20)
    assert [choice.mode for choice in made[SAMPLES:]].count("process") == 0
    made = run(experience, PREDICTED, 2000)
    assert {choice.mode for choice in made[-20:] if not choice.is_trial} == {"process"}


def test_trials_cost_no_more_than_their_share() -> None:
    took = Prediction(10_000.0, 40_000.0)
    made = run(Experience(), took, 3000)
    trials = [choice for choice in made if choice.is_trial]
    assert len(trials) > 5
    spent_us = sum(getattr(took, choice.mode) for choice in made)
    assert len(trials) * 30_000.0 <= TRIAL_SHARE * spent_us


def test_no_workers_are_started_for_a_trial() -> None:
    experience, slower = Experience(), Prediction(10_000.0, 11_000.0)
    for _ in range(200):
        choice = experience.choose(slower, has_workers=False)
        assert choice.mode == "local"
        experience.note("local", 10_000.0, choice)
    assert experience.choose(slower, has_workers=True).is_trial


def test_a_close_call_is_tried_in_a_graph_that_comes_again() -> None:
    close, experience = Prediction(10_000.0, 9_500.0), Experience()
    modes = []
    for _ in range(SAMPLES + 2):
        choice = experience.choose(close, has_workers=False)
        modes.append(choice.mode)
        experience.note(mode_of(choice), 10_000.0, choice)
    assert modes[: RECENT + 2] == [*["local"] * (RECENT + 1), "process"]


def test_what_is_predicted_while_costs_are_learned_does_not_count() -> None:
    """Otherwise a time that was long beside a prediction that was short would be long for ever."""
    experience = Experience()
    for predicted in (Prediction(100.0, 60.0), PREDICTED, PREDICTED):
        choice = Choice("process", "", predicted)
        experience.note("process", 6_000.0, choice)
    choice = experience.choose(Prediction(30_000.0, 20_000.0), has_workers=False)
    assert "workers would take about 6 ms" in choice.reason


def test_of_other_shapes_the_ratio_counts() -> None:
    experience = Experience()
    for _ in range(3):
        experience.note("process", 12_000.0, Choice("process", "", PREDICTED, shapes=1))
    choice = experience.choose(Prediction(100_000.0, 60_000.0), has_workers=False, shapes=2)
    assert "workers would take about 120 ms" in choice.reason


def test_a_mode_that_is_far_slower_is_not_tried_soon() -> None:
    """With many cores one backward in this process may take as long as dozens in workers."""
    predicted = Prediction(100_000.0, 10_000.0)
    experience = Experience()
    for _ in range(40):
        choice = experience.choose(predicted, has_workers=True)
        assert (choice.mode, choice.is_trial) == ("process", False)
        experience.note("process", 11_000.0, choice)


def test_a_mode_that_is_clearly_slower_is_measured_once() -> None:
    """16 branches of 20 ms: each further measurement takes as long as two backwards in workers."""
    predicted, experience = Prediction(320_000.0, 175_000.0), Experience()
    took = Prediction(320_000.0, 180_000.0)
    modes = []
    for _ in range(20):
        choice = experience.choose(predicted, has_workers=True)
        modes.append(choice.mode)
        experience.note(mode_of(choice), getattr(took, choice.mode), choice)
    assert modes.count("local") == 2  # the first one does not count
    assert modes.index("local") == 2


@pytest.mark.parametrize("first", ["local", "process"])
def test_a_change_of_load_changes_the_mode(first: Mode) -> None:
    """Another program takes processors, and lets them go later."""
    other: Mode = "process" if first == "local" else "local"
    experience = Experience()

    def modes(first_us: float, other_us: float, steps: int) -> str:
        times = {first: first_us, other: other_us}
        made = run(experience, Prediction(times["local"], times["process"]), steps)
        return "".join("f" if choice.mode == first else "o" for choice in made)

    assert modes(10_000.0, 13_000.0, 30).endswith("fffff")
    busy = modes(40_000.0, 30_000.0, 40)
    assert "fff" not in busy  # never three in a row that are worse than what is known
    assert busy.count("f") <= 5
    calm = modes(10_000.0, 30_000.0, 40)
    assert calm.index("f") <= 20  # the other mode was not that much better
    assert "o" not in calm[calm.index("f") + 3 :]


def test_the_other_mode_is_measured_in_the_fourth_step_however_long_this_one_takes() -> None:
    """A neural differential equation had stayed in workers for six steps of up to 2,329 ms; this
    process took 243."""
    experience, predicted = Experience(), Prediction(200_000.0, 120_000.0)
    experience.begin("local", 300_000.0)
    modes = []
    for took_us in (900_000.0, 700_000.0, 243_000.0, 243_000.0):
        choice = experience.choose(predicted, has_workers=True)
        modes.append(choice.mode)
        experience.note(mode_of(choice), took_us, choice)
    assert modes == ["process", "process", "local", "local"]


@pytest.mark.parametrize(("in_workers_us", "most_in_workers"), [(6_000.0, 50), (455_000.0, 1)])
def test_what_workers_import_does_not_count(in_workers_us: float, most_in_workers: int) -> None:
    """Their first time says nothing of the later ones, be they shorter than here or not."""
    experience = Experience()
    experience.begin("local", 12_000.0)
    experience.note("process", 455_000.0, experience.choose(PREDICTED, has_workers=True))
    made = run(experience, Prediction(10_000.0, in_workers_us), 50)
    in_workers = [choice.mode for choice in made].count("process")
    assert most_in_workers * 0.9 <= in_workers <= most_in_workers


def test_an_interrupted_time_does_not_keep_a_mode_away() -> None:
    """Two of three were interrupted: the third one says that it may be faster."""
    experience = Experience()
    run(experience, Prediction(10_000.0, 6_000.0), 20)
    for _ in range(2):
        experience.note("process", 18_000.0, Choice("process", "", PREDICTED))
    made = run(experience, Prediction(10_000.0, 6_000.0), 20)
    assert [choice.mode for choice in made].count("local") <= 3


def test_short_times_while_workers_start_are_not_forgotten() -> None:
    """On a busy machine the first time that counts may be twenty times as long."""
    experience = Experience()
    for _ in range(5):
        experience.begin("local", 4_000.0)
    times = {"process": [90_000.0, *[30_000.0] * 20], "local": [85_000.0, *[8_000.0] * 20]}
    modes = []
    for _ in range(12):
        choice = experience.choose(Prediction(4_000.0, 2_600.0), has_workers=True)
        modes.append(choice.mode)
        experience.note(mode_of(choice), times[choice.mode].pop(0), choice)
    assert modes[-5:] == ["local"] * 5


def test_workers_are_worth_their_start_when_as_much_has_been_lost_here() -> None:
    experience = Experience()
    assert experience.start_after_us == START_US / LOST_SHARE
    experience.begin("local", 0.25 * START_US)
    assert experience.start_after_us == (1 - 0.25 * LOST_SHARE) * START_US / LOST_SHARE
    saves = 0.4
    experience.choose(PREDICTED, has_workers=False)
    left_us = (1 - 0.25 * LOST_SHARE) * START_US
    assert experience.start_after_us == pytest.approx(left_us / saves)
    experience.begin("process", 200_000.0)
    experience.note("local", left_us / saves, Choice("local", "", PREDICTED))
    assert experience.start_after_us == pytest.approx(0.0)


def test_what_gains_little_starts_workers_late() -> None:
    little, much = Experience(), Experience()
    little.choose(Prediction(10_000.0, 9_000.0), has_workers=False)
    much.choose(Prediction(10_000.0, 5_000.0), has_workers=False)
    assert little.start_after_us == pytest.approx(5 * much.start_after_us)


def test_a_short_graph_ends_before_workers_are_worth_their_start() -> None:
    experience, enough_us = Experience(), START_US / LOST_SHARE
    assert not experience.ends_before_start()  # nobody knows how long it takes
    experience.begin("local", 0.3 * enough_us)
    assert experience.ends_before_start()
    experience.begin("local", 0.4 * enough_us)
    assert not experience.ends_before_start()


def test_a_graph_that_waits_for_no_workers_runs_from_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loop that could stop at each Node took 1.6 of 8 ms, before any worker was started."""
    monkeypatch.setattr(tuning, "START_US", 1e12)
    x = mg.ones(8, requires_grad=True)
    always = Choice("process", "", Prediction(1e6, 1.0))
    monkeypatch.setattr(Experience, "choose", lambda *_, **__: always)
    monkeypatch.setattr(preparation, "too_small", lambda *_: None)
    monkeypatch.setattr(preparation, "too_serial", lambda *_: None)
    stoppable = list[FrozenGraph]()
    until = execution.run_local_until

    def noted(frozen: FrozenGraph, stop: Any) -> Any:
        stoppable.append(frozen)
        return until(frozen, stop)

    monkeypatch.setattr(execution, "run_local_until", noted)
    with mg.Engine("auto", cpu_workers=2):
        for _ in range(5):
            (x * x).sum().backward()
    assert len(stoppable) == 1  # the first one, whose time nobody knew


def test_a_graph_that_runs_here_is_not_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while workers start, nor when costs have moved: of 33 ms of a step, 22 were for that."""
    placed = []
    monkeypatch.setattr(preparation, "place", lambda graph: (placed.append(graph), place(graph))[1])
    options = EngineOptions.checked("auto", 2, "none", None, 1, "worker", None, None)
    made, graph = Preparation(options), frozen(branches(8), 5_000.0)
    first = made.ready(graph, has_workers=False)
    assert (first.choice.mode, len(placed)) == ("process", 1)
    assert made.ready(graph, has_workers=False).choice.mode == "process"
    assert len(placed) == 1
    for mode, took_us in (("local", 40_000.0), ("process", 90_000.0)):
        for _ in range(RECENT):
            measured = first.choice._replace(mode=mode)
            made.note(first._replace(choice=measured), mode, took_us)  # type: ignore[arg-type]
    nodes = [node._replace(cost_us=2 * node.cost_us) for node in graph.spec.nodes]
    moved = graph._replace(spec=graph.spec._replace(nodes=tuple(nodes)))
    assert made.ready(moved, has_workers=True).choice.mode == "local"
    assert len(placed) == 1


#: What costs are predicted in the first steps, in relation to what is learned.
LEARNING = (0.02, 1.0, 1.3, 0.4, 0.9)


def loss_in_a_loop(seed: int, took: Prediction, predicted: Prediction) -> float:
    """How much longer than the better mode 50 steps took, from the fifth on.

    Times vary by 15 %, and one of 20 is interrupted. The workers are ready after the first step,
    and each mode takes three times as long when it runs for the first time.
    """
    random, experience = Random(seed), Experience()
    totals, has_run = dict.fromkeys(("auto", "local", "process"), 0.0), set()
    for step in range(50):
        factor = LEARNING[step] if step < len(LEARNING) else 1.0
        times = {
            mode: getattr(took, mode) * random.lognormvariate(0.0, 0.15)
            + 2 * min(took[:2]) * (random.random() < 0.05)
            for mode in ("local", "process")
        }
        guessed = Prediction(predicted.local * factor, predicted.process * factor)
        choice = experience.choose(guessed, has_workers=step > 0)
        mode = mode_of(choice)
        if mode == "process" and step == 0:
            mode = "local"
            experience.begin(mode)
        else:
            times[mode] *= 1.0 if mode in has_run else 3.0
            experience.note(mode, times[mode], choice)
        has_run.add(mode)
        if step >= 4:
            totals["auto"] += times[mode]
            for each in ("local", "process"):
                totals[each] += times[each]
    return totals["auto"] / min(totals["local"], totals["process"]) - 1.0


@pytest.mark.parametrize(
    ("took", "predicted"),
    [
        pytest.param((10, 6), (10, 6), id="workers are faster"),
        pytest.param((10, 14), (10, 6), id="workers are slower than predicted"),
        pytest.param((10, 9.5), (10, 6), id="it is close"),
        pytest.param((10, 6), (10, 9), id="workers are faster than predicted"),
        pytest.param((10, 8), (20, 9), id="costs look longer in workers"),
        pytest.param((10, 12), (20, 9), id="and this process is faster"),
        pytest.param((10, 1), (10, 1.2), id="many cores"),
        pytest.param((10, 30), (10, 11), id="workers are of no use"),
    ],
)
def test_a_loop_takes_hardly_longer_than_in_the_better_mode(
    took: tuple[float, float], predicted: tuple[float, float]
) -> None:
    scaled = [Prediction(1e3 * local, 1e3 * process) for local, process in (took, predicted)]
    losses = [loss_in_a_loop(seed, *scaled) for seed in range(100)]
    assert sum(losses) / len(losses) <= 0.05
    assert sorted(losses)[90] <= 0.15


def test_it_is_kept_when_costs_and_shapes_change() -> None:
    graph = frozen(branches(4), 10.0)
    nodes = [node._replace(cost_us=7.0, input_nbytes=(8,)) for node in graph.spec.nodes]
    known = structure_of(graph.spec)
    assert structure_of(graph.spec._replace(nodes=tuple(nodes))) == known
    assert structure_of(frozen(branches(5)).spec) != known


def test_of_structures_that_are_not_used_nothing_is_kept() -> None:
    experiences = Experiences(most=64)
    first = experiences.of(0)
    for key in range(1, 64):
        experiences.of(key)
    assert experiences.of(0) is first
    for key in range(64, 128):
        experiences.of(key)
    assert experiences.of(0) is not first
