"""DoomedWorker: a worker that dies at its kill points (see ``kill_points``)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.autograd.running.node_loop import NodeStep
from mpgrad.base.handles import Block, GradientRef
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.shm.status_board import StatusBoard
from mpgrad.wire.endpoint import Endpoint
from mpgrad.wire.programs import CallRule, DerivativeRule
from mpgrad.workers.calls import CallRunner
from mpgrad.workers.task import Publication, Report, TaskRunner
from mpgrad.workers.worker import Reply, Worker
from mpgrad.workers.worker_memory import WorkerMemory
from mpgrad.workers.worker_parts import ProcessExecutor
from tests.process.kill_points import KillPoint, points_of, strike


class _Doom:
    """The kill points of a worker, one per backward."""

    def __init__(self, points: list[KillPoint | None]) -> None:
        self._points = points
        #: The task that runs, and the point that it may meet.
        self._task: tuple[int, int, int] | None = None
        self._point: KillPoint | None = None

    def begin(self, task: tuple[int, int, int]) -> None:
        """A task (graph, number, attempt) begins."""
        self._task, self._point = task, self.of(task)

    def of(self, task: tuple[int, int, int]) -> KillPoint | None:
        """Where the worker has to die in ``task``: in the first attempt only."""
        graph, number, attempt = task
        if attempt != 1 or graph >= len(self._points):
            return None
        point = self._points[graph]
        return point if point is not None and point.nth == number + 1 else None

    def passes(self, phase: str) -> None:
        """The running task comes to ``phase``."""
        if self._point is not None and self._point.phase == phase:
            strike(self._point)


class DoomedWorker(Worker):
    """The same loop, with a look at the kill points wherever a task gets a step further."""

    def __init__(
        self,
        endpoint: Endpoint,
        peer: str,
        slot: int,
        board: StatusBoard,
        executor: ProcessExecutor,
    ) -> None:
        super().__init__(endpoint, peer, slot, board, executor)
        points = points_of("worker")
        self._doom = _Doom(points)
        executor.runner.publication = functools.partial(_DoomedPublication, self._doom)
        executor.runner.calls = _DoomedCalls(self._doom, executor._memory, slot, executor.runner)
        #: Where it dies once the replies that it holds have been sent.
        self._last: KillPoint | None = None
        for point in points:
            if point is not None and (point.phase, peer) == ("joining", f"w{point.nth - 1}.1"):
                strike(point)

    def _perform(self, instructions: list[Any]) -> do.DispatchNodeTask | None:
        for reply in instructions:
            if isinstance(reply, ev.NodeTaskDone | ev.NodeTaskFailed):
                point = self._doom.of((reply.graph, reply.task, reply.attempt))
                if point is not None and point.phase == "after-reply":
                    self._last = point
        return super()._perform(instructions)

    def _flush(self) -> None:
        super()._flush()
        if self._last is not None:
            point, self._last = self._last, None
            strike(point)

    def _execute(self, dispatch: do.DispatchNodeTask) -> Reply:
        self._doom.begin((dispatch.graph, dispatch.task, dispatch.attempt))
        self._doom.passes("received")
        reply = super()._execute(dispatch)
        self._doom.passes("before-reply")
        return reply


class _DoomedPublication(Publication):
    """Sees the task sum, run and publish. One that only passes gradients on runs no rule."""

    def __init__(
        self, doom: _Doom, memory: WorkerMemory, dispatch: do.DispatchNodeTask, report: Report
    ) -> None:
        super().__init__(memory, dispatch, report)
        self._doom = doom

    def begin(self, step: NodeStep) -> None:
        self._doom.passes("summed")
        super().begin(step)

    def settle(self, step: NodeStep, grads: list[Any]) -> None:
        super().settle(step, grads)
        self._doom.passes("ran")

    def emit(self, output: int, array: np.ndarray[Any, Any] | None) -> None:
        self._doom.passes("summed")
        self._doom.passes("ran")
        super().emit(output, array)

    def outputs(self) -> Any:
        self._doom.passes("published")
        return super().outputs()


class _DoomedCalls(CallRunner):
    """Sees a call begin, run and publish."""

    def __init__(self, doom: _Doom, memory: WorkerMemory, slot: int, runner: TaskRunner) -> None:
        super().__init__(memory, slot, runner.branch_limit, runner.note_branches)
        self._doom = doom

    def run(
        self, rule: CallRule | DerivativeRule, blocks: Sequence[Block | None]
    ) -> tuple[tuple[GradientRef, ...], int]:
        self._doom.passes("summed")
        found = super().run(rule, blocks)
        self._doom.passes("published")
        return found

    def _write(self, *args: Any) -> GradientRef:
        self._doom.passes("ran")
        return super()._write(*args)
