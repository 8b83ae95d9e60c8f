"""The programs of examples/both_passes as loops and as maps: what one line has gained of the law.

    python -m benchmarks.probes.ten_programs [ROUNDS [PROGRAM ...]]

Each program runs from its data to its last step: as first written (a loop in
``Engine("local")``), and with ``parallel_map`` in ``local``, ``process`` and ``auto`` with two
workers, in turns, after two rounds that do not count. ``p`` is the part of the time that is in the
items, forward and backward, in ``local``; the rest is ``s = 1 - p``. The law is
``1 / (s + p / 2)``. Medians of the ratios in a round.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import mpgrad as mg
from mpgrad.profiler import profile

PROGRAMS = Path(__file__).resolve().parents[2] / "examples" / "both_passes"
#: From here on a program compares the modes itself, with engines of its own.
COMPARES = '\nfor mode in ("local", "process"):'
ROUNDS, WARM_ROUNDS = 5, 2
LOOP, LOCAL, PROCESS, AUTO = "loop", "local", "process", "auto"
MODES = (LOOP, LOCAL, PROCESS, AUTO)
_MAP = mg.parallel_map


def loop(
    fn: Callable[..., Any], *iterables: Any, shared: Any = (), out: str = "list"
) -> list[Any] | Any:
    """``parallel_map`` as a plain loop."""
    args, kwargs = ((), shared) if isinstance(shared, dict) else (shared, {})
    found = [fn(*item, *args, **kwargs) for item in zip(*iterables, strict=True)]
    return found if out == "list" else sum(found[1:], found[0])


def seconds(code: CodeType, mode: str, engines: dict[str, mg.Engine]) -> float:
    """How long the program takes, from its first line to its last."""
    mg.set_engine(engines[LOCAL if mode == LOOP else mode])
    mg.parallel_map = loop if mode == LOOP else _MAP  # type: ignore[assignment]
    started = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, {"__name__": "__main__"})
    return time.perf_counter() - started


def part_and_item_ms(code: CodeType, engines: dict[str, mg.Engine]) -> tuple[float, float]:
    """``p``, and the milliseconds of an item in both passes."""
    counts = []

    def counting(fn: Any, *iterables: Any, **options: Any) -> Any:
        items = list(zip(*iterables, strict=True))
        counts.append(len(items))
        return _MAP(fn, *zip(*items, strict=True), **options)

    mg.set_engine(engines[LOCAL])
    mg.parallel_map = counting
    started = time.perf_counter()
    with profile() as prof, contextlib.redirect_stdout(io.StringIO()):
        exec(code, {"__name__": "__main__"})
    took_us = (time.perf_counter() - started) * 1e6
    inside_us = sum(
        row.cpu_time_total
        for row in prof.key_averages()
        if row.key.startswith("parallel_map(") or row.key == "ForkBackward"
    )
    return inside_us / took_us, inside_us / 1e3 / max(sum(counts), 1)


def measure(name: str, rounds: int, engines: dict[str, mg.Engine]) -> None:
    """Print the row of one program."""
    program, _, _ = (PROGRAMS / f"{name}.py").read_text().partition(COMPARES)
    code = compile(program, f"<{name}>", "exec")
    times: list[dict[str, float]] = []
    for number in range(WARM_ROUNDS + rounds):
        found = {mode: seconds(code, mode, engines) for mode in MODES}
        if number >= WARM_ROUNDS:
            times.append(found)
    part, item_ms = part_and_item_ms(code, engines)
    law = 1 / (1 - part + part / 2)
    gains = {mode: statistics.median(one[LOOP] / one[mode] for one in times) for mode in MODES[1:]}
    print(
        f"{name:14}{item_ms:9.1f}{part:7.2f}{law:7.2f}"
        + "".join(f"{gains[mode]:9.2f}" for mode in MODES[1:])
        + f"{gains[PROCESS] / law:9.2f}{statistics.median(one[LOOP] for one in times) * 1e3:10.0f}",
        flush=True,
    )


def main(arguments: list[str]) -> None:
    rounds = int(arguments[0]) if arguments else ROUNDS
    names = arguments[1:] or sorted(path.stem for path in PROGRAMS.glob("*.py"))
    sys.argv[1:] = []
    print(
        f"{'program':14}{'item ms':>9}{'p':>7}{'law':>7}{'local':>9}{'process':>9}{'auto':>9}"
        f"{'of law':>9}{'loop ms':>10}"
    )
    engines = {
        LOCAL: mg.Engine("local"),
        PROCESS: mg.Engine("process", cpu_workers=2),
        AUTO: mg.Engine("auto", cpu_workers=2),
    }
    try:
        for name in names:
            measure(name, rounds, engines)
    finally:
        mg.parallel_map = _MAP
        mg.set_engine(None)
        for engine in engines.values():
            engine.close()


if __name__ == "__main__":
    main(sys.argv[1:])
