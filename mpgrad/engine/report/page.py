"""write_report(): a profile as one HTML file that needs no network."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from mpgrad.autograd.profiling.averages import Averages
from mpgrad.autograd.profiling.function_events import events_of
from mpgrad.autograd.profiling.ranges import Recording
from mpgrad.base.duration_text import duration
from mpgrad.engine.graph_picture import BOXES_MAX, Box, GraphPicture
from mpgrad.engine.report.advice import advice_for
from mpgrad.engine.report.analysis import BackwardFigures, Step, figures_of, shares_of, step_of

#: Ranges that the timeline shows: of more the longest.
RANGES_MAX = 20_000
#: Rows of the table.
ROWS_MAX = 30


def write_report(recording: Recording, path: str) -> None:
    """Write the page about ``recording`` to ``path``."""
    figures = figures_of(recording)
    shares = shares_of(recording)
    step = step_of(recording, figures, shares)
    advice = advice_for(figures, shares, step)
    longest = max(figures, key=lambda one: one.took, default=None)
    data = {
        "ranges": _ranges(recording),
        "rows": _rows(recording),
        "backwards": [_row_of(one, recording) for one in figures],
        "shares": {name: 1e3 * value for name, value in shares._asdict().items()},
        "memory": [
            [1e3 * (when - recording.origin), nbytes]
            for run in recording.backwards
            for when, nbytes in run.gradient_bytes()
        ],
    }
    template = resources.files("mpgrad.engine.report").joinpath("page.html").read_text("utf-8")
    filled = {
        "ADVICE": "".join(f"<li>{html.escape(text)}</li>" for text in advice),
        "TILES": _tiles(figures, step),
        "IDLE": _idle(figures),
        "GRAPH": "" if longest is None else picture_of(longest).to_svg(),
        "TABLE": _table(recording),
        # Inside a script element nothing may look like its end.
        "DATA": json.dumps(data).replace("<", "\\u003c"),
    }
    for name, text in filled.items():
        template = template.replace(f"<!--{name}-->", text, 1)
    with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(template)


def _ranges(recording: Recording) -> list[list[Any]]:
    found = sorted(recording.ranges, key=lambda one: one.started - one.ended)[:RANGES_MAX]
    origin = recording.origin
    rows = [
        [one.kind, one.name, _row_name(one.worker, one.thread), 1e3 * (one.started - origin),
         1e3 * (one.ended - one.started), one.backward, one.task]
        for one in found
    ]  # fmt: skip
    for run in recording.backwards:
        rows += [
            ["task", f"task {task.task}", _row_name(task.worker, 0), 1e3 * (task.started - origin),
             1e3 * (task.ended - task.started), run.number, task.task]
            for task in run.tasks
            if task.worker >= 0
        ]  # fmt: skip
    return sorted(rows, key=lambda row: (row[3], -row[4]))


def _row_name(worker: int, thread: int) -> str:
    return f"worker {worker}" if worker >= 0 else f"thread {thread}"


def _rows(recording: Recording) -> list[str]:
    """The rows of the timeline: the calling threads, and all workers, idle ones too."""
    threads = dict.fromkeys(f"thread {one.thread}" for one in recording.ranges if one.worker < 0)
    count = max(
        (run.workers for run in recording.backwards if run.plan is not None),
        default=0,
    )
    count = max([count, *[one.worker + 1 for one in recording.ranges]])
    return [*threads, *(f"worker {slot}" for slot in range(count))]


def _row_of(one: BackwardFigures, recording: Recording) -> dict[str, Any]:
    return {
        "number": one.run.number,
        "mode": one.run.mode,
        "why": one.run.why,
        "start": 1e3 * (one.run.started - recording.origin),
        "took": 1e3 * one.took,
        "work": 1e3 * one.work,
        "chain": 1e3 * one.chain,
        "nodes": len(one.run.spec.nodes),
        "tasks": len(one.run.tasks),
    }


def _tiles(figures: Sequence[BackwardFigures], step: Step) -> str:
    took, work = sum(one.took for one in figures), sum(one.work for one in figures)
    chain = sum(one.chain for one in figures)
    workers = max((one.run.workers for one in figures if one.run.plan is not None), default=1)
    tiles = [
        (
            "backward passes",
            str(len(figures)),
            f"{sum(one.run.mode == 'process' for one in figures)} in workers",
        ),
        ("time in them", duration(1e6 * took), f"{duration(1e6 * work)} of rules"),
        ("speed-up reached", f"{work / took if took else 1:.2f}x", "against the rules one by one"),
        ("bound by workers", f"{workers}.00x", "one task each at a time"),
        (
            "bound by the longest chain",
            f"{work / chain if chain else 1:.2f}x",
            f"{duration(1e6 * chain)}, whatever the number of workers",
        ),
        (
            "bound of the whole step",
            f"{step.limit(step.workers):.2f}x",
            f"1 / (s + p / {step.workers}), p = {step.share:.0%}; reached: {step.reached:.2f}x",
        ),
    ]
    return "".join(
        f'<div class="tile"><b>{html.escape(value)}</b><span>{html.escape(name)}</span>'
        f"<small>{html.escape(note)}</small></div>"
        for name, value, note in tiles
    )


def _idle(figures: Sequence[BackwardFigures]) -> str:
    """Bars: what the workers did in all backward passes together."""
    inside = [one for one in figures if one.run.plan is not None]
    room = sum(one.took * one.run.workers for one in inside)
    if not room:
        return "<p>No backward ran in workers.</p>"
    spent = {"in tasks": sum(one.busy for one in inside)}
    for one in inside:
        for cause, seconds in one.idle.items():
            spent[cause] = spent.get(cause, 0.0) + seconds
    spent["any of these without a free core"] = sum(one.run.core_wait for one in inside)
    return "".join(
        f'<div class="bar"><span>{html.escape(cause)}</span>'
        f'<i style="width:{min(300 * seconds / room, 300):.1f}px"></i>'
        f"<em>{100 * seconds / room:.0f} %</em></div>"
        for cause, seconds in spent.items()
    )


def picture_of(one: BackwardFigures) -> GraphPicture:
    """The Nodes of a backward with its longest chain; of a large graph that chain alone."""
    spec, path = one.run.spec, one.path
    shown = list(range(len(spec.nodes))) if len(spec.nodes) <= BOXES_MAX else path[:BOXES_MAX]
    place = {node: at for at, node in enumerate(shown)}
    workers: dict[int, str] = {}
    if one.run.plan is not None:
        ran = {run.task: run.worker for run in one.run.tasks}
        for node, task in enumerate(one.run.plan.task_of):
            slot = ran.get(task, -1)
            workers[node] = f"worker {slot}" if slot >= 0 else "this process"
    boxes = []
    for node in shown:
        where = workers.get(node, "this process")
        kind = "captured" if spec.nodes[node].is_sink else "worker"
        if where == "this process" and one.run.plan is not None and kind == "worker":
            kind = "client"
        boxes.append(Box(spec.nodes[node].name, where, kind, one.run.on_client.get(node, where)))
    edges = [
        (place[node], place[edge[0]])
        for node in shown
        for edge in spec.nodes[node].edges
        if edge is not None and edge[0] in place
    ]
    return GraphPicture(
        boxes, list(dict.fromkeys(edges)), [place[node] for node in path if node in place]
    )


def _table(recording: Recording) -> str:
    averages = Averages.of(events_of(recording.ranges, recording.origin))
    rows = sorted(averages, key=lambda row: -row.self_cpu_time_total)
    total = averages.total_average().self_cpu_time_total or 1.0
    lines = [
        f"<tr><td>{html.escape(row.key)}</td><td>{row.self_cpu_time_total / 1e3:.3f}</td>"
        f"<td>{100 * row.self_cpu_time_total / total:.1f}</td><td>{row.cpu_time_total / 1e3:.3f}"
        f"</td><td>{row.count}</td><td>{', '.join(map(str, sorted(row.workers))) or '-'}</td></tr>"
        for row in rows[:ROWS_MAX]
    ]
    return "".join(lines)
