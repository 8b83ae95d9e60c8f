"""``mpgrad top``: what the engines of this user do, once or again and again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from mpgrad.launch.engine_processes import EngineUse, ProcessUse, running_engines

#: Seconds between two looks, over which the use of CPUs is measured.
INTERVAL_S = 1.0
_FIRST_INTERVAL_S = 0.2
_MIB = 2**20


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
    except ImportError:
        words = "the live view needs rich: pip install 'mpgrad[top]'; --once needs nothing"
        print(f"mpgrad top: {words}", file=sys.stderr)
        return 2
    try:
        with Live(look.text(before), auto_refresh=False) as live:
            while True:
                time.sleep(INTERVAL_S)
                before, look = look, _Look()
                live.update(look.text(before), refresh=True)
    except KeyboardInterrupt:
        return 0


class _Look:
    """All engines at one moment."""

    def __init__(self) -> None:
        self.engines = running_engines()
        self._at = time.monotonic()
        self._used = {
            process.pid: process.cpu_seconds
            for engine in self.engines
            for process in _processes(engine)
        }

    def figures(self, before: _Look) -> dict[str, Any]:
        """Everything, for programs; shares of a CPU are measured since ``before``."""
        return {"engines": [self._figures_of(engine, before) for engine in self.engines]}

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
                    "running": None
                    if worker.running is None
                    else dict(zip(("graph", "task", "attempt"), worker.running, strict=True)),
                }
                for worker in engine.workers
            ],
            **engine.figures._asdict(),
        }

    def _cpu(self, pid: int, before: _Look) -> float:
        """Which share of a CPU a process has used since then."""
        spent = self._used[pid] - before._used.get(pid, self._used[pid])
        return round(spent / max(self._at - before._at, 1e-9), 2)

    def text(self, before: _Look) -> str:
        """The same for people."""
        if not self.engines:
            return "no engine runs (of this user)"
        return "\n\n".join("\n".join(self._lines(engine, before)) for engine in self.engines)

    def _lines(self, engine: EngineUse, before: _Look) -> list[str]:
        figures = engine.figures
        used, limit = figures.arena_used / _MIB, figures.arena_limit / _MIB
        lines = [
            f"engine of {engine.client.pid}: {engine.program[:90]}",
            f"  {figures.graphs} backward passes, tasks: {figures.ready} ready, "
            f"{figures.dispatched} with a process, {figures.remaining} not done; "
            f"arena {used:.1f} of {limit:.0f} MiB",
            f"  {'process':<12}{'pid':>8}  {'CPU':>5}  {'MiB':>7}  runs",
        ]
        named = [("client", engine.client, ""), ("coordinator", engine.coordinator, "")]
        named += [
            (f"worker {slot}", worker.process, _words(worker.running))
            for slot, worker in enumerate(engine.workers)
        ]
        for name, process, running in named:
            cpu, mib = self._cpu(process.pid, before), process.resident_bytes / _MIB
            lines.append(f"  {name:<12}{process.pid:>8}  {cpu:>5.0%}  {mib:>7.1f}  {running}")
        return lines


def _processes(engine: EngineUse) -> Sequence[ProcessUse]:
    return [engine.client, engine.coordinator, *[worker.process for worker in engine.workers]]


def _words(running: tuple[int, int, int] | None) -> str:
    if running is None:
        return "-"
    graph, task, attempt = running
    return f"task {task} of graph {graph}" + (f", attempt {attempt}" if attempt > 1 else "")
