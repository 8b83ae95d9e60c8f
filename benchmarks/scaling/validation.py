"""validate(): the simulation of a few workers, compared with measured times.

Client, coordinator and workers share its
cores, which is simulated, and the cores share caches and memory, which is not. So each graph is
simulated twice: with the times of its Nodes when one core works alone, as on the rest of the page,
and with those that the workers themselves reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import mpgrad as mg
from benchmarks.gil_work import branch_input
from benchmarks.loads import loops_for
from benchmarks.perceptron_arrays import Perceptrons
from benchmarks.scaling.costs import Costs
from benchmarks.scaling.networks import Mixture, Network, mixture
from benchmarks.scaling.recording import Recording, freeze_loss, record
from benchmarks.scaling.simulation import simulate_measured
from benchmarks.scaling.task_times import Work
from benchmarks.workloads.gil_branches import MpgradBranch
from benchmarks.workloads.perceptrons import program
from mpgrad.base import machine
from mpgrad.scheduler.plan import plan

#: The most for a machine with two cores.
WORKERS = 2


class Backwards(NamedTuple):
    """Numbers of backwards.

    Attributes:
        warm_up: those before, in which the engine learns the costs of the Nodes.
        timed: those that are timed.
        reported: those in which the workers report their Nodes.
    """

    warm_up: int = 20
    timed: int = 15
    reported: int = 5


class Check(NamedTuple):
    """One graph; from its tables to its gradients, in microseconds."""

    name: str
    tasks: int
    measured_us: float
    #: By the clock, first and third quartile.
    spread_us: tuple[float, float]
    #: Predicted with the Nodes' times on a core that works alone, and with those of the workers.
    alone_us: float
    reported_us: float
    #: Work of the Nodes, in the same two ways.
    work_alone_us: float
    work_reported_us: float


def validate(costs: Costs) -> list[Check]:
    """Run and simulate each of the networks with two workers."""
    return [
        check(record(Network(name, name, forward)), forward, costs, WORKERS, Backwards())
        for name, forward in ((name, make()) for name, make in _NETWORKS.items())
    ]


def check(
    recording: Recording,
    forward: Callable[[], Any],
    costs: Costs,
    workers: int,
    backwards: Backwards,
) -> Check:
    """Run and simulate a network, given as it was recorded and as its forward pass."""
    with mg.Engine("process", cpu_workers=workers) as engine:
        for _ in range(backwards.warm_up):
            engine.execute(freeze_loss(forward()))
        seconds = [_seconds(engine, forward()) for _ in range(backwards.timed)]
        reported = _reported(engine, forward, backwards.reported)
        spec = freeze_loss(forward()).spec
    planned = plan(spec, workers=workers)
    predicted = [
        simulate_measured(
            spec,
            Work(took, costs.add_us_per_mb),
            costs,
            workers,
            client=recording.client,
            planned=planned,
            cores=machine.available_cpus(),
        ).makespan_us
        for took in (recording.took_us, reported)
    ]
    ordered = sorted(second * 1e6 for second in seconds)
    quartiles = ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
    return Check(
        recording.name,
        len(planned.tasks),
        median(ordered),
        quartiles,
        predicted[0],
        predicted[1],
        sum(recording.took_us),
        sum(reported),
    )


def _seconds(engine: mg.Engine, loss: Any) -> float:
    frozen = freeze_loss(loss)
    start = perf_counter()
    engine.execute(frozen)
    return perf_counter() - start


def _reported(engine: mg.Engine, forward: Callable[[], Any], count: int) -> tuple[float, ...]:
    """Microseconds of each Node as reported by the workers; for a Node in two halves the sum."""
    series: list[list[float]] = []
    for _ in range(count):
        frozen = freeze_loss(forward())
        took: defaultdict[int, float] = defaultdict(float)
        with mg.profiler.profile() as profile:
            engine.execute(frozen)
        for event in profile.events():
            took[event.sequence_nr] += event.time_range.elapsed_us()
        series.append(
            [
                took[node.sequence_nr] if runs else 0.0
                for node, runs in zip(frozen.nodes, frozen.runs, strict=True)
            ]
        )
    return tuple(median(times) for times in zip(*series, strict=True))


# ----------------------------------------------------------------------- the networks


def _perceptrons(shape: Perceptrons) -> Callable[[], Any]:
    return program(shape, mg).forward


def _gil_branches() -> Callable[[], Any]:
    loops = loops_for(2.0)
    leaves = [mg.tensor(branch_input(branch, 16), requires_grad=True) for branch in range(16)]
    return lambda: mg.stack([MpgradBranch.apply(leaf, loops) for leaf in leaves]).sum()


_NETWORKS: dict[str, Callable[[], Callable[[], Any]]] = {
    "numpy_branches": lambda: _perceptrons(Perceptrons(8, 4, 512)),
    "mlp_chain": lambda: _perceptrons(Perceptrons(1, 8, 512)),
    "mlp_chain, 1024 wide": lambda: _perceptrons(Perceptrons(1, 8, 1024)),
    "gil_branches, 2 ms": _gil_branches,
    "mixture, 16 experts": lambda: mixture(mg, Mixture(16, 128, 256, 1024)).forward,
}
