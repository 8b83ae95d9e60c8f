"""memory: the largest size of both arenas, compared with the memory that must be alive."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from benchmarks.fresh import call
from benchmarks.rounds import Case, Contender, Target

ABOUT = """\
Four training steps in a new interpreter, `process` mode. *Arenas* is the sum of the peaks of the
client's arena (tensors, saved arrays, programs; forward included) and of the engine's (gradients),
although they need not be at the same moment. *Alive* is counted from the recorded graph, not from
any allocator: parameters and batch, saved arrays until their last node has run, gradients from
their first contribution until the node that takes them has run, leaves' gradients to the end; the
most of it at a time when one thread runs the nodes in serial order."""

ARENAS = "mpgrad process, arenas"
ALIVE = "alive"
_PROGRAMS = (
    "numpy_branches, 8 x 4 layers",
    "mlp_chain, 8 layers, 1024 wide",
    "resnet18, 32 x 32, batch 32",
)


def cases(quick: bool) -> Generator[Case, None, None]:
    """One case per program. Sizes hardly vary: two rounds show whether they do at all."""
    for program in _PROGRAMS:
        found: list[dict[str, int]] = []
        yield Case(
            program,
            [
                Contender(ARENAS, partial(_figure, program, found, "peak_bytes")),
                Contender(ALIVE, partial(_figure, program, found, "live_bytes")),
            ],
            (ALIVE,),
            1 if quick else 2,
            "MiB",
            2.0**-20,
            (Target(ARENAS, ALIVE, at_most=1.25),),
            warm_up_rounds=0,
            quantity="bytes",
        )


def _figure(program: str, found: list[dict[str, int]], name: str) -> float:
    """One figure of a run that gives both: the first request in a round runs it."""
    if not found or name not in found[-1]:
        found.append(call("probes.arena_peak.arena_peak", program))
    return float(found[-1].pop(name))
