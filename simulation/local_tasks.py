"""LocalTasks: the tasks of one graph that its caller runs itself, as ``engine.local_tasks``: the
first one before it submits the graph, and the next while workers run the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from mpgrad.scheduler.graph_spec import ON_CPU
from mpgrad.scheduler.plan_tables import CAPTURE, OutputSpec, Plan
from simulation.path_counts import TracedGraph, Value, add, run_members
from simulation.task_values import RuleRaised


class LocalTasks:
    """What a caller decides to run itself, and what that gives.

    The real client is more selective, see ``Plan.opens_alone`` and ``Plan.local_share``.

    Args:
        graph, planned: the graph and its plan.
        rng: draws which of the possible tasks these are.

    Attributes:
        has_run: the number of tasks that have run; 0 or 1.
        meanwhile: the task that runs while the workers run others; None: none.
        results: the results of the backward that it has given, by number.
        has_failed: whether it has raised.
    """

    def __init__(self, graph: TracedGraph, planned: Plan, rng: Random) -> None:
        self._graph, self._planned = graph, planned
        self.has_run = int(self._may_run_ahead() and rng.random() < 0.7)
        self._ahead = self._run(0, lambda node: None) if self.has_run else []
        may = self._may_run_meanwhile(self.has_run)
        self.meanwhile = self.has_run if may and rng.random() < 0.5 else None
        self.results: dict[int, Value | None] = {}
        self.has_failed = False

    @property
    def count(self) -> int:
        """The number of first tasks that no worker runs."""
        return self.has_run + (self.meanwhile is not None)

    @property
    def is_awaited(self) -> bool:
        """Whether other tasks wait for what comes meanwhile."""
        if self.meanwhile is None:
            return False
        return any(out.task != CAPTURE for out in self._planned.tasks[self.meanwhile].outputs)

    def _may_run_ahead(self) -> bool:
        """Whether task 0 waits for nothing but seeds, and its rules raise nothing."""
        members, raising = self._planned.groups[0], self._graph.raising
        return self._is_at_hand(0) and all(member.node not in raising for member in members)

    def _may_run_meanwhile(self, task: int) -> bool:
        """Whether a task waits for nothing but seeds and what runs ahead."""
        if task >= len(self._planned.tasks) or self._planned.groups[task][0].piece_of is not None:
            return False
        return self._is_at_hand(task) and not self._planned.joins[task]

    def _is_at_hand(self, task: int) -> bool:
        spec = self._planned.tasks[task]
        here = sum(at == task for at, _, _ in self._planned.seeds)
        here += sum(
            out.task == task for first in self._planned.tasks[:task] for out in first.outputs
        )
        is_call = bool(self._graph.making)
        is_for_cpu = not spec.on_client and spec.device == ON_CPU
        return is_for_cpu and not is_call and spec.dependencies == here

    def given_ahead(self) -> Iterator[tuple[OutputSpec, Value | None]]:
        """What the task that ran ahead gives to tasks of workers and to the caller."""
        if self.has_run:
            for output, value in zip(self._planned.tasks[0].outputs, self._ahead, strict=True):
                if output.task == CAPTURE or output.task >= self.count:
                    yield output, value

    def run_meanwhile(self) -> Iterator[tuple[OutputSpec, Value | None]]:
        """What the other one gives to tasks of workers; ``results`` get the rest.

        Raises:
            RuleRaised: a rule of it raises.
        """
        assert self.meanwhile is not None
        nodes = [member.node for member in self._planned.groups[self.meanwhile]]

        def on_node(node: int) -> None:
            if node in self._graph.raising:
                raise RuleRaised(b"", nodes.index(node))

        values = self._run(self.meanwhile, on_node)
        for output, value in zip(self._planned.tasks[self.meanwhile].outputs, values, strict=True):
            if output.task == CAPTURE:
                self.results[output.slot] = value
            else:
                yield output, value

    def _run(self, task: int, on_node: Callable[[int], None]) -> list[Value | None]:
        graph, planned = self._graph, self._planned
        arrived = [
            (slot, place, value)
            for (at, slot, place), value in zip(planned.seeds, graph.seeds, strict=True)
            if at == task
        ]
        if task:
            arrived += [
                (output.slot, output.place, value)
                for output, value in zip(planned.tasks[0].outputs, self._ahead, strict=True)
                if output.task == task
            ]
        sums: list[Value | None] = [None] * len(planned.tasks[task].places)
        for slot, _, value in sorted(arrived, key=lambda one: one[:2]):
            sums[slot] = add(sums[slot], value)
        outputs = planned.tasks[task].outputs
        members, slots = planned.groups[task], planned.slots[task]
        return run_members(graph, members, slots, sums, len(outputs), on_node)
