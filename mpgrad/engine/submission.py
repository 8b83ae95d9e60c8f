"""Submission: one planned graph as the messages that hand it to the coordinator.

A task that all others wait for is run right here if it is next to nothing (``Plan.opens_alone``).
The rest goes in pieces, so that the workers begin while it is still being packed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from mpgrad.autograd.frozen_graph import FrozenGraph
from mpgrad.autograd.running.collector import collector_held
from mpgrad.engine.blas import blas_limit
from mpgrad.engine.client_worker import ClientWorker
from mpgrad.engine.handover import Handover
from mpgrad.engine.prepared import PreparedGraph
from mpgrad.handles import GradientRef
from mpgrad.scheduler.chunks import chunk_ends
from mpgrad.scheduler.events import GraphExtended, GraphSubmitted
from mpgrad.scheduler.plan_tables import NodeTaskSpec, Seed


class Submission:
    """What a session sends for one backward.

    Args:
        frozen: the graph.
        graph: its plan.
        code: by node index, the code of each Function that a worker runs.
        handover: keeps what is packed.
    """

    def __init__(
        self, frozen: FrozenGraph, graph: PreparedGraph, code: dict[int, Any], handover: Handover
    ) -> None:
        self._frozen, self._graph, self._code = frozen, graph, code
        self._planned = graph.plan
        self._handover = handover
        #: Where each message ends, as a number of tasks.
        self._ends: list[int] = []

    def begin(
        self,
        peer: str,
        graph: int,
        depth: int,
        client: ClientWorker,
        *,
        workers: int,
        blas_threads: int,
    ) -> GraphSubmitted:
        """The first message, with as many tasks as let the workers begin."""
        planned = self._planned
        seeds = list(zip(planned.seeds, self._frozen.seeds, strict=True))
        opened = self._open(client, seeds, blas_threads)
        done = int(opened is not None)
        gradients = opened or []
        gradients += [
            (*where, self._handover.gradient(seed)) for where, seed in seeds if where[0] >= done
        ]
        self._ends = chunk_ends(planned, workers, done)
        return GraphSubmitted(
            peer, graph, depth, self._packed(done, self._ends[0], done), tuple(gradients),
            len(self._frozen.sinks), len(self._ends) == 1, done,
        )  # fmt: skip

    def _open(
        self, client: ClientWorker, seeds: list[tuple[Seed, Any]], blas_threads: int
    ) -> list[tuple[int, int, int, GradientRef]] | None:
        """Run task 0 here if that is better; what it gives, as seeds of the rest."""
        if not (self._planned.opens_alone and client.may_run_ahead(0)):
            return None
        inputs = [(slot, seed) for (task, slot, _), seed in seeds if task == 0]
        outputs = self._planned.tasks[0].outputs
        with blas_limit(blas_threads):
            refs = client.run_ahead(0, inputs, len(outputs))
        if refs is None:
            return None
        return [
            (output.task, output.slot, output.place, ref)
            for output, ref in zip(outputs, refs, strict=True)
        ]

    def rest(self, peer: str, graph: int) -> Iterator[GraphExtended]:
        """The other tasks, in growing messages."""
        for start, end in pairwise(self._ends):
            yield GraphExtended(peer, graph, self._packed(start, end), end == self._ends[-1])

    @collector_held()
    def _packed(self, start: int, stop: int, done: int = 0) -> tuple[NodeTaskSpec, ...]:
        """The tables of tasks ``start`` to ``stop``, before them those of the ``done`` ones."""
        tasks = self._planned.tasks[start:stop]
        payloads = self._handover.programs(
            self._frozen, self._graph, range(start, stop), self._code
        )
        return self._planned.tasks[:done] + tuple(
            task._replace(payload=payload) for task, payload in zip(tasks, payloads, strict=True)
        )
