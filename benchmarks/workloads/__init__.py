"""The workloads, by name.

A workload is a generator of cases: what a case needs (engines, processes) lives while the generator
stands at its ``yield`` and ends with it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

from benchmarks.rounds import Case
from benchmarks.workloads import (
    both_passes,
    gil_branches,
    memory,
    networks,
    overhead,
    perceptrons,
    scale,
    startup,
    transport,
)


class Workload(NamedTuple):
    """``cases(quick)`` yields what is to be measured; ``about`` says what it is, in Markdown."""

    name: str
    about: str
    cases: Callable[[bool], Generator[Case, None, None]]


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("gil_branches", gil_branches.ABOUT, gil_branches.cases),
        Workload("both_passes", both_passes.ABOUT, both_passes.cases),
        Workload("numpy_branches", perceptrons.ABOUT_BRANCHES, perceptrons.branches),
        Workload("mlp_chain", perceptrons.ABOUT_CHAIN, perceptrons.chain),
        Workload("resnet18", networks.ABOUT_RESNET, networks.resnet),
        Workload("digits", networks.ABOUT_DIGITS, networks.digits),
        Workload("overhead", overhead.ABOUT, overhead.cases),
        Workload("scale", scale.ABOUT, scale.cases),
        Workload("memory", memory.ABOUT, memory.cases),
        Workload("transport", transport.ABOUT, transport.cases),
        Workload("startup", startup.ABOUT, startup.cases),
    )
}
