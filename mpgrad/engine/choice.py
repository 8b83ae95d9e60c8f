"""choose(): where ``auto`` executes a graph: ``process`` only if that is clearly faster."""

from __future__ import annotations

from typing import NamedTuple

from mpgrad.autograd.frozen_graph import FrozenGraph
from mpgrad.scheduler.plan_tables import Plan

#: Graphs with less work than this are never worth a message, in microseconds.
WORTH_A_LOOK_US = 2_000.0
#: How much better the prediction for ``process`` must be.
MARGIN = 1.2
#: Weight of the newest backward in what a mode takes; how many must have run in workers.
NEWEST, SEEN_MIN = 0.3, 3
#: Workers that were slower than predicted are tried again once in so many backwards.
TRY_AGAIN_EVERY = 64

#: What a question to the coordinator takes where the costs below hold, in microseconds.
ROUND_TRIP_US = 93.0
#: A start-up on a busy machine shall not decide for a whole run.
SCALE_MIN, SCALE_MAX = 0.5, 4.0


class HandoverCost(NamedTuple):
    """What messages take, in microseconds; the defaults were measured once, on two cores."""

    #: Submitting and waking up, once per backward (``scripts/bench transport`` gave it for a Node).
    submit_us: float = 580.0
    #: Handing one task over and hearing of its end while the workers are busy: an estimate from the
    #: 75 us that ``scripts/bench overhead`` gave for short tasks, which share messages.
    task_us: float = 120.0

    @classmethod
    def measured(cls, round_trip_us: float) -> HandoverCost:
        """On a machine where a question to the coordinator takes so long."""
        scale = min(max(round_trip_us / ROUND_TRIP_US, SCALE_MIN), SCALE_MAX)
        return cls(*[scale * cost for cost in cls()])


class Choice(NamedTuple):
    """``local`` or ``process``, and why."""

    mode: str
    reason: str


def too_small(frozen: FrozenGraph, workers: int) -> Choice | None:
    """``local`` where that can be said without a plan; else None."""
    work_us = sum([spec.cost_us for spec in frozen.spec.nodes])
    if work_us < WORTH_A_LOOK_US:
        return Choice("local", f"only {work_us:.0f} us of work")
    if workers < 2:
        return Choice("local", "one CPU worker would not be faster than this process")
    return None


def choose(planned: Plan, workers: int, cost: HandoverCost | None = None) -> Choice:
    """Compare the predicted makespans of both modes.

    A Function that was never measured counts as expensive. Where the workers are not up yet, the
    engine runs such a graph locally while they start, and so measures it.

    Args:
        planned: the plan of the placed graph.
        workers: how many there are.
        cost: what messages take.
    """
    predicted = predict_process_us(planned, workers, cost or HandoverCost())
    here = f"this process {planned.work_us:.0f} us"
    if predicted * MARGIN >= planned.work_us:
        return Choice("local", f"workers would take about {predicted:.0f} us, {here}")
    return Choice("process", f"workers take about {predicted:.0f} us, {here}")


def gpus_of(frozen: FrozenGraph) -> list[int]:
    """The GPUs on which gradients of ``frozen`` lie, each once."""
    found = {
        meta.device.index: None
        for node in frozen.nodes
        for meta in node.input_metadata
        if meta.device.index is not None
    }
    return list(found)


class Experience:
    """What the backwards of one graph took in each mode, by the clock; overrules a prediction."""

    def __init__(self) -> None:
        self._took_us: dict[str, float] = {}
        self._seen: dict[str, int] = {}
        self._overruled = 0

    def note(self, mode: str, microseconds: float) -> None:
        """One more backward, all of it but freezing and committing."""
        seen = self._seen[mode] = self._seen.get(mode, 0) + 1
        if seen <= 2:  # much is made in the first one that serves all others
            self._took_us[mode] = microseconds
        else:
            self._took_us[mode] += NEWEST * (microseconds - self._took_us[mode])

    def correct(self, choice: Choice, work_us: float) -> Choice:
        """``choice``, or ``local`` where workers were predicted to be faster and were not.

        They are tried again now and then: what slowed them down may have passed.

        Args:
            choice: what was predicted.
            work_us: what this process would take, if it has not run the graph yet.
        """
        if choice.mode != "process" or self._seen.get("process", 0) < SEEN_MIN:
            return choice
        local_us, process_us = self._took_us.get("local", work_us), self._took_us["process"]
        if process_us <= local_us:
            return choice
        self._overruled += 1
        if self._overruled % TRY_AGAIN_EVERY == 0:
            return choice
        return Choice("local", f"workers took {process_us:.0f} us, this process {local_us:.0f} us")


def predict_process_us(planned: Plan, workers: int, cost: HandoverCost) -> float:
    """Predicted makespan: the critical path, an even share of the work, or what the client has to
    run, one task after another; and the messages.

    Graham's bound for list scheduling (Graham, "Bounds for certain multiprocessing anomalies",
    1966) says that the order can cost at most twice this; with many tasks it is close.
    """
    share = planned.work_us / workers + len(planned.tasks) * cost.task_us / workers
    client = sum([task.cost_us for task in planned.tasks if task.on_client])
    return cost.submit_us + max(planned.critical_path_us + cost.task_us, share, client)
