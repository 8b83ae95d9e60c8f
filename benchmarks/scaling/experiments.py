"""The experiments: networks on CPU workers and GPUs, and the limit of the coordinator."""

from __future__ import annotations

from benchmarks.scaling.calibration import calibrate
from benchmarks.scaling.costs import H100, ClientCosts, Costs
from benchmarks.scaling.networks import Network
from benchmarks.scaling.recording import Recording, record
from benchmarks.scaling.simulation import Outcome, simulate_measured
from benchmarks.scaling.task_times import Work, cpu_work, gpu_work
from mpgrad.scheduler.graph_spec import GraphSpec, NodeSpec, serial_order
from mpgrad.scheduler.plan import plan

CPU_WORKERS = (2, 4, 8, 16, 32, 64)
GPU_WORKERS = (1, 2, 4, 8)
#: A GPU gets this many times the recorded images or tokens.
GPU_BATCH = 32
#: The lengths of the tasks for the coordinator's limit, and their number.
TASK_US = (200.0, 1000.0, 5000.0)
TASKS_PER_WORKER = 40


def cpu_outcomes(recording: Recording, costs: Costs) -> list[Outcome]:
    """One backward on each number of CPU workers."""
    work = cpu_work(recording, costs.add_us_per_mb)
    return [
        simulate_measured(recording.spec, work, costs, workers, client=recording.client)
        for workers in CPU_WORKERS
    ]


def repeated_shares(network: Network, workers: int, count: int) -> list[float]:
    """Shares of the bound, each with a new calibration and recording."""
    shares = []
    for _ in range(count):
        costs, recording = calibrate(), record(network)
        work = cpu_work(recording, costs.add_us_per_mb)
        found = simulate_measured(recording.spec, work, costs, workers, client=recording.client)
        shares.append(found.share_of_bound)
    return shares


def gpu_outcomes(recording: Recording, costs: Costs, batch: int) -> list[Outcome]:
    """One backward on each number of GPUs; the planner knows their times."""
    work = gpu_work(recording, H100, batch)
    parameters = {target[0] for target in recording.spec.captures}
    nodes = tuple(
        node._replace(
            cost_us=took,
            input_nbytes=tuple(
                nbytes * (1 if index in parameters else batch) for nbytes in node.input_nbytes
            ),
        )
        for index, (node, took) in enumerate(zip(recording.spec.nodes, work.rule_us, strict=True))
    )
    link = costs.worker._replace(
        fetch_us_per_mb=(1 << 20) / H100.link_bytes_per_us, touch_us_per_mb=0.0
    )
    return [
        simulate_measured(
            recording.spec._replace(nodes=nodes),
            work,
            costs._replace(worker=link),
            workers,
            client=recording.client,
        )
        for workers in GPU_WORKERS
    ]


def saturation_outcomes(costs: Costs) -> dict[tuple[float, bool], list[Outcome]]:
    """Independent Nodes: each one a task, the worst case for the coordinator; and as planned."""
    return {
        (task_us, fuse): [_flood(task_us, workers, costs, fuse) for workers in CPU_WORKERS]
        for task_us in TASK_US
        for fuse in (False, True)
    }


def _flood(task_us: float, workers: int, costs: Costs, fuse: bool) -> Outcome:
    spec, work = branches(workers * TASKS_PER_WORKER, task_us)
    planned = plan(spec, fuse=fuse, workers=workers)
    return simulate_measured(
        spec, work, costs, workers, client=ClientCosts(0.0, 0.0, 0.0), planned=planned
    )


def branches(count: int, task_us: float, nbytes: int = 64) -> tuple[GraphSpec, Work]:
    """One Node that feeds ``count`` others of ``task_us``, each with its own leaf."""
    root = NodeSpec("root", 2, tuple((1 + at, 0) for at in range(count)), (nbytes,), 10.0)
    rules = [
        NodeSpec("branch", 1, ((1 + count + at, 0),), (nbytes,), task_us) for at in range(count)
    ]
    leaves = [NodeSpec("leaf", 0, (), (nbytes,), 0.0, is_sink=True) for _ in range(count)]
    nodes = (root, *rules, *leaves)
    captures = tuple((1 + count + at, 0) for at in range(count))
    spec = GraphSpec(nodes, ((0, 0),), captures, serial_order(nodes, ((0, 0),)))
    return spec, Work(tuple(node.cost_us for node in nodes), 0.0)
