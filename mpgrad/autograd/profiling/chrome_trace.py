"""trace_of(): a profile as JSON of Chromium's "Trace Event Format", which Perfetto reads.

Rows: the threads of the calling process, the workers, and in the coordinator's process the time
that tasks were ready and had to wait. Times are in microseconds.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from mpgrad.autograd.profiling.backward_run import BackwardRun
from mpgrad.autograd.profiling.function_events import FunctionEvent
from mpgrad.autograd.profiling.ranges import ANNOTATION, ENGINE, FUNCTION, NODE, OPERATOR, Recording

Entry: TypeAlias = dict[str, Any]

_CATEGORIES = {
    ANNOTATION: "user_annotation",
    ENGINE: "engine",
    FUNCTION: "cpu_op",
    NODE: "cpu_op",
    OPERATOR: "cpu_op",
}
#: Stands for the process of a worker or coordinator whose number is not known.
_UNKNOWN = 1_000_000_000


def trace_of(recording: Recording, events: Sequence[FunctionEvent]) -> dict[str, Any]:
    """The whole file."""
    trace = _Trace(recording)
    entries = [
        *trace.names(events),
        *map(trace.range_of, events),
        *trace.forward_arrows(events),
        *trace.node_arrows(events),
    ]
    for run in recording.backwards:
        entries += [*trace.tasks(run), *trace.counters(run)]
    return {"traceEvents": entries, "displayTimeUnit": "ms"}


class _Trace:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._client = os.getpid()
        self._coordinator = recording.coordinator_pid or _UNKNOWN
        self._arrows = 0

    def _us(self, seconds: float) -> float:
        return (seconds - self._recording.origin) * 1e6

    def _row(self, thread: int, worker: int | None) -> Entry:
        """Which process and thread a range belongs to."""
        if worker is None or worker < 0:
            return {"pid": self._client, "tid": thread}
        number = self._recording.worker_pids.get(worker, _UNKNOWN + 1 + worker)
        return {"pid": number, "tid": number}

    # ------------------------------------------------------------------ rows

    def names(self, events: Sequence[FunctionEvent]) -> Iterator[Entry]:
        """What processes and threads are called, and their order."""
        yield from self._process(self._client, "client", 0)
        if any(run.plan is not None for run in self._recording.backwards):
            yield from self._process(self._coordinator, "coordinator", 1)
        for thread in dict.fromkeys(event.thread for event in events if event.worker is None):
            name = "main thread" if thread == self._client else f"thread {thread}"
            yield from self._named("thread_name", self._row(thread, None), name)
        for worker in sorted({event.worker for event in events if event.worker is not None}):
            row = self._row(0, worker)
            name = self._recording.worker_names.get(worker, f"worker {worker}")
            yield from self._process(row["pid"], name, 2 + worker)
            yield from self._named("thread_name", row, name)

    def _process(self, number: int, name: str, order: int) -> Iterator[Entry]:
        row = {"pid": number, "tid": number}
        yield from self._named("process_name", row, f"mpgrad {name}")
        yield {"ph": "M", "name": "process_sort_index", **row, "args": {"sort_index": order}}

    def _named(self, kind: str, row: Entry, name: str) -> Iterator[Entry]:
        yield {"ph": "M", "name": kind, **row, "args": {"name": name}}

    # ------------------------------------------------------------------ ranges

    def range_of(self, event: FunctionEvent) -> Entry:
        """One range with all that is known of it."""
        args: Entry = {
            "Sequence number": event.sequence_nr,
            "Input Dims": [list(shape) for shape in event.input_shapes],
        }
        if event.cpu_memory_usage:
            args["Bytes"] = event.cpu_memory_usage
        if event.backward is not None:
            args["backward"] = event.backward
        if event.task is not None:
            args |= {"task": event.task, "attempt": event.attempt}
        return {
            "ph": "X",
            "cat": _CATEGORIES.get(event.kind, event.kind),
            "name": event.name,
            **self._row(event.thread, event.worker),
            "ts": event.time_range.start,
            "dur": event.time_range.elapsed_us(),
            "args": args,
        }

    def tasks(self, run: BackwardRun) -> Iterator[Entry]:
        """The NodeTasks of a backward around their Nodes, and before them the time in a queue."""
        for run_of_task, ready in run.queued():
            waited = max(run_of_task.started - ready, 0.0)
            spec = run.plan.tasks[run_of_task.task] if run.plan is not None else None
            given = sum(output.nbytes for output in spec.outputs) if spec is not None else 0
            args = {
                "backward": run.number,
                "task": run_of_task.task,
                "attempt": run_of_task.attempt,
                "Queue wait (us)": waited * 1e6,
                "Output bytes": given,
            }
            name = f"task {run_of_task.task}"
            if run_of_task.worker >= 0:
                yield {
                    "ph": "X",
                    "cat": "task",
                    "name": name,
                    **self._row(0, run_of_task.worker),
                    "ts": self._us(run_of_task.started),
                    "dur": (run_of_task.ended - run_of_task.started) * 1e6,
                    "args": args,
                }
            if waited > 0.0:
                where = {"pid": self._coordinator, "tid": self._coordinator, "cat": "queue"}
                label = {"name": "task waits", "id": f"{run.number}.{run_of_task.task}"}
                yield {"ph": "b", **where, **label, "ts": self._us(ready), "args": args}
                yield {"ph": "e", **where, **label, "ts": self._us(run_of_task.started)}

    # ------------------------------------------------------------------ arrows

    def forward_arrows(self, events: Sequence[FunctionEvent]) -> Iterator[Entry]:
        """From each operator and Function to the Node that it recorded."""
        recorded: dict[int, FunctionEvent] = {}
        for event in events:
            if event.kind in (OPERATOR, FUNCTION) and event.sequence_nr >= 0:
                recorded[event.sequence_nr] = event
            elif event.kind == NODE and event.sequence_nr in recorded:
                source = recorded[event.sequence_nr]
                yield from self._arrow("fwdbwd", source.time_range.start, source, event)

    def node_arrows(self, events: Sequence[FunctionEvent]) -> Iterator[Entry]:
        """From each Node to those that its gradients flow to."""
        ran: defaultdict[tuple[int, int], list[FunctionEvent]] = defaultdict(list)
        for event in events:
            if event.kind == NODE and event.backward is not None and event.node is not None:
                ran[event.backward, event.node].append(event)
        for (backward, node), sources in ran.items():
            edges = self._recording.backwards[backward].spec.nodes[node].edges
            targets = dict.fromkeys(edge[0] for edge in edges if edge is not None)
            for number in targets:
                for target in ran.get((backward, number), [])[:1]:
                    for source in sources:
                        yield from self._arrow("gradient", source.time_range.end, source, target)

    def _arrow(
        self, name: str, leaves: float, source: FunctionEvent, target: FunctionEvent
    ) -> Iterator[Entry]:
        self._arrows += 1
        label = {"cat": name, "name": name, "id": self._arrows}
        # An arrow binds to the range around its end: its very last moment is not inside any more.
        leaves = min(leaves, source.time_range.end - 0.001)
        yield {"ph": "s", **label, **self._row(source.thread, source.worker), "ts": leaves}
        row, arrives = self._row(target.thread, target.worker), target.time_range.start
        yield {"ph": "f", "bp": "e", **label, **row, "ts": max(arrives, leaves)}

    # ------------------------------------------------------------------ counters

    def counters(self, run: BackwardRun) -> Iterator[Entry]:
        """Tasks that are ready, tasks that are not done, and bytes of gradients between tasks."""
        if run.plan is None:
            return
        queued = run.queued()
        changes = [(run.started, 0, len(queued))]
        for item in queued:
            changes.append((item.ready, 1, 0))
            changes.append((item.run.started, -1, 0))
            changes.append((item.run.ended, 0, -1))
        row = {"ph": "C", "pid": self._coordinator, "tid": self._coordinator}
        ready = outstanding = 0
        for when, more_ready, more_outstanding in sorted(changes):
            ready, outstanding = ready + more_ready, outstanding + more_outstanding
            at = {**row, "ts": self._us(when)}
            yield {**at, "name": "ready tasks", "args": {"tasks": ready}}
            yield {**at, "name": "outstanding tasks", "args": {"tasks": outstanding}}
        for when, nbytes in run.gradient_bytes():
            at = {**row, "ts": self._us(when)}
            yield {**at, "name": "gradients between tasks", "args": {"bytes": nbytes}}
