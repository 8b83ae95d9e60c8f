"""The programs that run with one worker, two, four and so on."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

from benchmarks.loads import loops_for
from benchmarks.perceptron_arrays import Perceptrons
from benchmarks.runners import ForwardPass
from benchmarks.scaling.networks import ENVIRONMENTS, STEP_MS, STEPS, Mixture, mixture, simulators
from benchmarks.workloads import gil_branches, perceptrons

_BRANCH_MS = 20.0
#: Counted once: all contenders run the same loops.
_loops_for = cache(loops_for)


class Loops(NamedTuple):
    """The Python that bare processes run.

    Attributes:
        branches: how many of them.
        each: the loops of each.
        milliseconds: of all of them one after another, by the name of the program.
    """

    branches: int
    each: int
    milliseconds: float


class Program(NamedTuple):
    """One program.

    Attributes:
        name: of its table.
        about: in a few words.
        make: its forward pass, with the names of ``mpgrad`` or of ``torch``.
        loops: the loops of its backward, if that is Python, which torch runs on one thread.
    """

    name: str
    about: str
    make: Callable[[Any], ForwardPass]
    loops: Callable[[], Loops] | None = None


def _branches(library: Any) -> ForwardPass:
    return gil_branches.program(library, _loops_for(_BRANCH_MS), elements=16)


PROGRAMS = (
    Program(
        "gil_branches",
        "16 branches of 20 ms of Python",
        _branches,
        lambda: Loops(
            gil_branches.BRANCHES, _loops_for(_BRANCH_MS), gil_branches.BRANCHES * _BRANCH_MS
        ),
    ),
    Program(
        "numpy_branches",
        "8 perceptrons of 4 layers, 512 wide",
        partial(perceptrons.program, Perceptrons(8, 4, 512)),
    ),
    Program(
        "mlp_chain",
        "one perceptron of 8 layers, 1024 wide",
        partial(perceptrons.program, Perceptrons(1, 8, 1024)),
    ),
    Program(
        "mixture",
        "64 experts, all of them for each of 128 samples",
        lambda library: mixture(library, Mixture()),
    ),
    Program(
        "simulators",
        f"{ENVIRONMENTS} environments of {STEPS} steps of 0.5 to 1.5 ms of Python",
        lambda library: simulators(library, _loops_for(STEP_MS)),
        lambda: Loops(ENVIRONMENTS, STEPS * _loops_for(STEP_MS), ENVIRONMENTS * STEPS * STEP_MS),
    ),
)
