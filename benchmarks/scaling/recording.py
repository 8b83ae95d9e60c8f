"""record(): a network's backward graph as mpgrad freezes it, and the times of its Nodes here.

The Nodes run in `local` mode, one after another; the profiler reports their times. The planner uses
the costs that the cost model has learned from them, as in an engine.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from statistics import linear_regression
from time import perf_counter
from typing import Any, NamedTuple

import mpgrad as mg
from benchmarks.scaling.costs import ClientCosts
from benchmarks.scaling.networks import Network
from mpgrad.autograd.frozen_graphs import costs
from mpgrad.autograd.frozen_graphs.freeze import freeze
from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
from mpgrad.engine.graph_submission import GraphSubmission
from mpgrad.engine.placement import place
from mpgrad.engine.preparation import PreparedGraph
from mpgrad.recording.dispatch.operator_node import OperatorNode
from mpgrad.recording.graph.node import Node
from mpgrad.recording.tensors.tensor import gradient_edge
from mpgrad.scheduler.graph_spec import GraphSpec
from mpgrad.scheduler.plan import plan

#: Backwards before the timed ones: in the first ones every page of the results is new, and a matrix
#: product takes up to ten times as long.
WARM_UP = 2
#: Timed backwards; each Node counts with its shortest time. All measurements here are the least of
#: several, because this machine changes its speed by a factor of 1.8 from one second to the next
#: (``docs/profiles.md``), and a mean of both speeds describes no machine.
ROUNDS = 5
#: Workers of the plan whose packing is timed; more workers make at most twice the tasks.
PACKED_FOR = 16


class Recording(NamedTuple):
    """A graph and its figures; all sequences have one entry per Node of ``spec``."""

    name: str
    about: str
    #: ``cost_us`` has the planner's costs.
    spec: GraphSpec
    #: The measured time of each Node in microseconds.
    took_us: tuple[float, ...]
    #: Floating-point operations of its matrix products, and bytes that it reads and writes.
    flops: tuple[float, ...]
    nbytes: tuple[float, ...]
    client: ClientCosts

    @property
    def work_us(self) -> float:
        """The time of the rules in one process."""
        return sum(self.took_us)


def record(network: Network, rounds: int = ROUNDS) -> Recording:
    """Run ``network`` forward once and backward ``rounds`` times, after some that do not count."""
    recording = _recorded(network, rounds)
    gc.collect()
    return recording


def _recorded(network: Network, rounds: int) -> Recording:
    with mg.Engine(mode="local"):
        loss = network.loss()
        for _ in range(WARM_UP):
            _node_times(loss)
        runs = [_node_times(loss) for _ in range(rounds)]
    frozen = freeze_loss(loss)
    took = [0.0] * len(frozen.nodes)
    ran = [index for index in frozen.spec.order if frozen.runs[index]]
    for index, times in zip(ran, zip(*runs, strict=True), strict=True):
        took[index] = min(times)
    return Recording(
        network.name,
        network.about,
        frozen.spec,
        tuple(took),
        tuple(map(_flops, frozen.nodes)),
        tuple(map(_nbytes, frozen.nodes)),
        _client_costs(frozen, rounds, _walk_us(loss, rounds)),
    )


def _node_times(loss: Any) -> list[float]:
    """Microseconds of each Node that ran, in the order of execution."""
    with mg.profiler.profile() as profile:
        loss.backward(retain_graph=True)
    return [event.time_range.elapsed_us() for event in profile.events() if event.sequence_nr >= 0]


def freeze_loss(loss: Any) -> FrozenGraph:
    """The graph behind ``loss``, as ``backward(retain_graph=True)`` freezes it."""
    seed = mg.ones_like(loss).numpy()
    return freeze([gradient_edge(loss)], [seed], keep_graph=True, cost=costs.estimate)


def _client_costs(frozen: FrozenGraph, rounds: int, walk_us: float) -> ClientCosts:
    """Pack each task of a plan alone, and fit a straight line to the times."""
    placed = place(frozen)
    frozen = placed.frozen
    graph = PreparedGraph(frozen.spec, plan(frozen.spec, workers=PACKED_FOR))
    tasks = [task for task, spec in enumerate(graph.plan.tasks) if not spec.on_client]
    series = []
    for _ in range(1 + rounds):
        submission = GraphSubmission(frozen, graph, placed.code, placed.captured)
        series.append([_seconds_to_pack(submission, task) for task in tasks])
        submission.close()
    took_us = [min(times) * 1e6 for times in zip(*series[1:], strict=True)]
    counts = [len(graph.plan.groups[task]) for task in tasks]
    if len(set(counts)) == 1:
        return ClientCosts(0.0, sum(took_us) / sum(counts), walk_us)
    node_us, task_us = linear_regression(counts, took_us)
    return ClientCosts(max(task_us, 0.0), max(node_us, 0.0), walk_us)


def _walk_us(loss: Any, rounds: int) -> float:
    """Microseconds to freeze the graph behind ``loss`` again."""
    took = []
    for _ in range(rounds):
        start = perf_counter()
        freeze_loss(loss)
        took.append(perf_counter() - start)
    return min(took) * 1e6


def _seconds_to_pack(submission: GraphSubmission, task: int) -> float:
    start = perf_counter()
    submission.programs(range(task, task + 1))
    return perf_counter() - start


# ----------------------------------------------------------------------- for other machines


def _flops(node: Node) -> float:
    """2 x (elements of the result) x (length of the sum) for each gradient of a matrix product."""
    if not isinstance(node, OperatorNode):
        return 0.0
    result = _elements(node.input_metadata[0].shape)
    shapes = [info.shape for info in node.input_info if info is not None and len(info.shape) >= 2]
    wanted = sum(edge is not None for edge in node.next_edges[:2])
    if node.operator.name in ("matmul", "linear"):
        return 2.0 * result * shapes[0][-1] * wanted
    if node.operator.name == "conv2d":
        return 2.0 * result * _elements(shapes[-1][1:]) * wanted
    return 0.0


def _nbytes(node: Node) -> float:
    """Gradients in and out, and the operator's inputs, each once."""
    arrived = sum(_elements(meta.shape) * meta.dtype.itemsize for meta in node.input_metadata)
    if not isinstance(node, OperatorNode):
        return float(arrived)
    inputs = [info for info in node.input_info if info is not None]
    return float(arrived + 2 * sum(4 * _elements(info.shape) for info in inputs))


def _elements(shape: Sequence[int]) -> int:
    return math.prod(shape)
