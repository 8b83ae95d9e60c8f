"""What comparing what Functions read costs a backward: for ``explain``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from time import perf_counter
from typing import Any

from mpgrad.autograd.function import Function
from mpgrad.base.duration_text import duration
from mpgrad.calls.custom_functions.attributes import look_at
from mpgrad.calls.custom_functions.contents import fingerprint
from mpgrad.calls.custom_functions.run_on import compared_of
from mpgrad.engine.placement import Placed

#: The share of a backward from which on it is told.
SHARE = 0.05
#: The shortest of so many runs counts.
_RUNS = 3
_BY_NAME = (
    "Give arrays to apply() as tensors, or set what backward needs on ctx as arrays and numbers: "
    "those are not compared."
)
_ON_CTX = "Set arrays and numbers on ctx in place of it: those are not compared."


def dear_comparisons(placed: Placed, work_us: float) -> list[str]:
    """A line for each Function whose comparing takes more than a twentieth of a backward that takes
    ``work_us`` microseconds in all."""
    nodes: Any = placed.frozen.nodes
    found: defaultdict[tuple[type[Function], tuple[type, ...]], list[int]] = defaultdict(list)
    for at, code in placed.code.items():
        found[nodes[at].function, code.held].append(at)
    lines = []
    for (function, held), members in found.items():
        # Here once, and on a worker after each run; what is on ctx there before and after it.
        times = {
            label: _time(compare) * (1 + len(members))
            for label, compare in compared_of(function, held)
        }
        for at in members:
            attributes = vars(nodes[at].ctx)
            for name in look_at(attributes).compared if function.run_on is None else ():
                label = f"`ctx.{name}`"
                took = 2 * _time(lambda: fingerprint([attributes[name]]))  # noqa: B023
                times[label] = times.get(label, 0.0) + took
        total = sum(times.values())
        if total <= SHARE * work_us:
            continue
        dearest = max(times, key=times.__getitem__)
        lines.append(
            f"{function.__qualname__}: comparing what it reads takes {duration(total)} of "
            f"{duration(work_us)} of work, most of it {dearest}. "
            f"{_ON_CTX if dearest.startswith('`ctx.') else _BY_NAME}"
        )
    return lines


def _time(compare: Callable[[], object]) -> float:
    """Of one comparison, in microseconds."""
    times = []
    for _ in range(_RUNS):
        started = perf_counter()
        compare()
        times.append(perf_counter() - started)
    return min(times) * 1e6
