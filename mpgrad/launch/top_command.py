"""``mpgrad top``: what the engines of this user do, once or again and again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from mpgrad.launch.engine_processes import (
    EngineUse,
    ProcessUse,
    gpus_in_use,
    running_engines,
    used_clusters,
)
from mpgrad.scheduler.graph_spec import ON_CPU

#: Seconds between two looks, over which the use of CPUs is measured.
INTERVAL_S = 1.0
_FIRST_INTERVAL_S = 0.2
_MIB = 2**20
_COLUMNS = "  {:<12}{:>8}  {:>5}  {:>7}  {:>7}  {:>5}  {}"


def main(*, once: bool, as_json: bool) -> int:
    """Show the engines; without ``once`` until Ctrl-C.

    Args:
        once: look once.
        as_json: print a JSON document for each look.

    Returns:
        The exit status: 2 where the live view lacks rich.
    """
    before = _Look()
    time.sleep(_FIRST_INTERVAL_S)
    look = _Look()
    if once or as_json:
        while True:
            print(json.dumps(look.figures(before)) if as_json else look.text(before), flush=True)
            if once:
                return 0
            time.sleep(INTERVAL_S)
            before, look = look, _Look()
    try:
        from rich.live import Live
        from rich.text import Text
    except ImportError:
        words = "the live view needs rich: pip install 'mpgrad[top]'; --once needs nothing"
        print(f"mpgrad top: {words}", file=sys.stderr)
        return 2
    try:
        # Text: the brackets of a path are no markup.
        with Live(Text(look.text(before)), auto_refresh=False) as live:
            while True:
                time.sleep(INTERVAL_S)
                before, look = look, _Look()
                live.update(Text(look.text(before)), refresh=True)
    except KeyboardInterrupt:
        return 0


class _Look:
    """All engines at one moment."""

    def __init__(self) -> None:
        self.engines = running_engines()
        self.gpus = gpus_in_use(self.engines)
        self.clusters = used_clusters()
        self._at = time.monotonic()
        self._used = {
            process.pid: process.cpu_seconds
            for engine in self.engines
            for process in _processes(engine)
        }

    def figures(self, before: _Look) -> dict[str, Any]:
        """Everything, for programs; shares of a CPU are measured since ``before``."""
        return {
            "engines": [self._figures_of(engine, before) for engine in self.engines],
            "gpus": [gpu._asdict() for gpu in self.gpus],
            "clusters": [
                {
                    "client": cluster.client.pid,
                    "program": cluster.program,
                    "hosts": [vars(host) for host in cluster.hosts],
                }
                for cluster in self.clusters
            ],
        }

    def _figures_of(self, engine: EngineUse, before: _Look) -> dict[str, Any]:
        def process(of: ProcessUse) -> dict[str, Any]:
            cpu = self._cpu(of.pid, before)
            return {"pid": of.pid, "cpu": cpu, "resident_bytes": of.resident_bytes}

        return {
            "client": {**process(engine.client), "program": engine.program},
            "coordinator": process(engine.coordinator),
            "workers": [
                {
                    **process(worker.process),
                    "device": _device(worker.device),
                    "held": worker.held,
                    "branches": worker.branches[0],
                    "branch_bytes": worker.branches[1],
                    "running": None
                    if worker.running is None
                    else dict(zip(("graph", "task", "attempt"), worker.running, strict=True)),
                }
                for worker in engine.workers
            ],
            "queues": [
                {**queue._asdict(), "device": _device(queue.device)} for queue in engine.queues
            ],
            **engine.figures._asdict(),
        }

    def _cpu(self, pid: int, before: _Look) -> float:
        """Which share of a CPU a process has used since then."""
        spent = self._used[pid] - before._used.get(pid, self._used[pid])
        return round(spent / max(self._at - before._at, 1e-9), 2)

    def text(self, before: _Look) -> str:
        """The same for people."""
        if not self.engines and not self.clusters:
            return "no engine runs (of this user)"
        lines = [
            f"cuda:{gpu.number}: {gpu.busy:.0%} busy, {gpu.used_bytes / _MIB:,.0f} of "
            f"{gpu.total_bytes / _MIB:,.0f} MiB"
            for gpu in self.gpus
        ]
        parts = [self._lines(engine, before) for engine in self.engines]
        parts += [
            [
                f"hosts of {cluster.client.pid}: {_printable(cluster.program)[:90]}",
                *[f"  {_printable(host.name)}: {host.in_words()}" for host in cluster.hosts],
            ]
            for cluster in self.clusters
        ]
        return "\n\n".join("\n".join(part) for part in [*parts, *([lines] if lines else [])])

    def _lines(self, engine: EngineUse, before: _Look) -> list[str]:
        figures = engine.figures
        used, limit = figures.arena_used / _MIB, figures.arena_limit / _MIB
        waiting = "; ".join(
            f"for {_device(queue.device)}: {queue.urgent} urgent, {queue.task} others"
            for queue in engine.queues
        )
        lines = [
            f"engine of {engine.client.pid}: {_printable(engine.program)[:90]}",
            f"  {figures.graphs} {'backward pass' if figures.graphs == 1 else 'backward passes'}, "
            f"tasks: {figures.ready} ready, {figures.dispatched} with a process, "
            f"{figures.remaining} not done; "
            f"arena {used:.1f} of {limit:.0f} MiB",
            f"  waiting {waiting}",
            _COLUMNS.format("process", "pid", "CPU", "MiB", "device", "tasks", "runs"),
            self._row("client", engine.client, before),
            self._row("coordinator", engine.coordinator, before),
        ]
        for slot, worker in enumerate(engine.workers):
            more = _device(worker.device), worker.held, _words(worker.running)
            row = self._row(f"worker {slot}", worker.process, before, *more)
            count, nbytes = worker.branches
            held = f"; {count} branches of {nbytes / _MIB:.1f} MiB" if count else ""
            lines.append(f"{row}{held}")
        return lines

    def _row(self, name: str, process: ProcessUse, before: _Look, *more: object) -> str:
        cpu, mib = self._cpu(process.pid, before), process.resident_bytes / _MIB
        figures = (name, process.pid, f"{cpu:.0%}", f"{mib:.1f}", *(more or ("", "", "")))
        return _COLUMNS.format(*figures).rstrip()


def _processes(engine: EngineUse) -> Sequence[ProcessUse]:
    return [engine.client, engine.coordinator, *[worker.process for worker in engine.workers]]


def _words(running: tuple[int, int, int] | None) -> str:
    if running is None:
        return "-"
    graph, task, attempt = running
    return f"task {task} of graph {graph}" + (f", attempt {attempt}" if attempt > 1 else "")


def _printable(text: str) -> str:
    """``text`` with escapes in place of what would move the cursor or change colours."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _device(number: int) -> str:
    return "cpu" if number == ON_CPU else f"cuda:{number}"
