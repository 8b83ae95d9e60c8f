"""simulate(): a graph's backward on a simulated machine."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.scaling.clock import Clock, Cores
from benchmarks.scaling.costs import ClientCosts, Costs
from benchmarks.scaling.processes import ClientProcess, CoordinatorProcess
from benchmarks.scaling.task_times import Bound, TaskTimes, Work, bound
from mpgrad.scheduler.graph_spec import GraphSpec
from mpgrad.scheduler.plan import plan
from mpgrad.scheduler.plan_tables import Plan

#: Backwards of a training loop: the first one, when every page is new, and a much later one.
BACKWARDS = 2
#: The same if the coordinator's core is timed (the first run is slower and does not count), and
#: the number of runs.
TIMED_BACKWARDS, TIMINGS = 3, 3


class Outcome(NamedTuple):
    """One backward late in a training loop."""

    workers: int
    tasks: int
    bound: Bound
    makespan_us: float
    #: The first backward, when every page is new to every process.
    first_us: float
    #: Share of the makespan in which the coordinator was busy, and its time per task.
    coordinator_load: float
    coordinator_us_per_task: float
    #: Share of the makespan in which workers computed, on average.
    worker_load: float
    #: Measured microseconds of the coordinator's core per event.
    core_us: Mapping[str, float]

    @property
    def speed_up(self) -> float:
        """Relative to one process that only runs the rules."""
        return self.bound.work_us / self.makespan_us

    @property
    def share_of_bound(self) -> float:
        """1 is a perfect schedule with free messages."""
        return self.bound.makespan_us(self.workers) / self.makespan_us


def simulate(
    spec: GraphSpec,
    work: Work,
    costs: Costs,
    workers: int,
    *,
    client: ClientCosts,
    planned: Plan | None = None,
    backwards: int = BACKWARDS,
    cores: int | None = None,
) -> Outcome:
    """Run ``backwards`` backwards of ``spec`` on ``workers`` workers.

    Args:
        spec: with the planner's costs.
        work: the real times of the Nodes.
        costs: of messages and processes.
        workers: the number of workers.
        client: the client's times for this graph.
        planned: another plan than the engine's.
        backwards: the number of backwards, the last of which counts.
        cores: processors that all processes share; default: each has its own.
    """
    planned = plan(spec, workers=workers) if planned is None else planned
    times = TaskTimes(spec, planned, work)
    clock = Clock(costs, Cores(cores))
    coordinator = CoordinatorProcess(clock, workers, times)

    def warm_up() -> None:
        coordinator.busy_us = 0.0
        for worker in coordinator.workers:
            worker.is_warm, worker.computing_us = True, 0.0
        if len(session.took_us) == 1:
            coordinator.seconds.clear()
            coordinator.events.clear()

    session = ClientProcess(
        coordinator, planned, client=client, backwards=backwards, after_each=warm_up
    )
    clock.at(0.0, session.begin, session.turn)
    while clock.step():
        pass
    if len(session.took_us) != backwards:
        raise RuntimeError("the simulated backward never ended")
    total, dispatched = session.took_us[-1], len(planned.tasks)
    return Outcome(
        workers,
        len(planned.tasks),
        bound(spec, work),
        session.took_us[-1],
        session.took_us[0],
        coordinator.busy_us / total,
        coordinator.busy_us / dispatched,
        sum(worker.computing_us for worker in coordinator.workers) / workers / total,
        {
            name: coordinator.seconds[name] / count * 1e6
            for name, count in coordinator.events.items()
        },
    )


def simulate_measured(
    spec: GraphSpec,
    work: Work,
    costs: Costs,
    workers: int,
    *,
    client: ClientCosts,
    planned: Plan | None = None,
    cores: int | None = None,
) -> Outcome:
    """As :func:`simulate`, with the time of the coordinator's core for this very graph.

    Earlier runs measure the core's time per event; the smallest counts, see ``recording``.
    """
    planned = plan(spec, workers=workers) if planned is None else planned
    core_us: dict[str, float] = {}
    # A full collection here walks the recorded models, which no coordinator has.
    gc.collect()
    gc.disable()
    try:
        for _ in range(TIMINGS):
            timed = simulate(
                spec,
                work,
                costs,
                workers,
                client=client,
                planned=planned,
                cores=cores,
                backwards=TIMED_BACKWARDS,
            )
            for event, microseconds in timed.core_us.items():
                core_us[event] = min(microseconds, core_us.get(event, microseconds))
    finally:
        gc.enable()
    measured = costs._replace(core_us=core_us)
    return simulate(spec, work, measured, workers, client=client, planned=planned, cores=cores)
