"""What ``scripts/bench cores`` says follows from its samples; its contenders compute the same."""

from __future__ import annotations

from functools import partial

import pytest

from benchmarks.cores.measurement import (
    BARE,
    LOCAL,
    TORCH,
    WORKERS,
    Measured,
    Resources,
    Used,
    counts_up_to,
    measure_program,
    resources,
    row_of,
)
from benchmarks.cores.page import page
from benchmarks.cores.programs import Loops, Program
from benchmarks.loads import ALONE
from benchmarks.rounds import CaseResult, Effort
from benchmarks.scaling.networks import Mixture, mixture, simulators
from benchmarks.scaling.validation import Check
from benchmarks.workloads import gil_branches

QUICK = Effort(rounds=1, warm_up_rounds=1)


@pytest.mark.parametrize(
    ("cores", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (16, [1, 2, 4, 8, 16])]
)
def test_the_numbers_of_workers(cores: int, counts: list[int]) -> None:
    assert counts_up_to(cores) == counts


def test_the_page_shows_ratios_load_and_errors() -> None:
    samples = {
        row_of(LOCAL): [100.0, 100.0, 120.0],
        row_of(WORKERS, 1): [100.0, 125.0, 120.0],
        row_of(WORKERS, 2): [50.0, 50.0, 60.0],
        row_of(TORCH, 1): [100.0, 100.0, 90.0],
        row_of(BARE, 2): [50.0, 40.0, 60.0],
    }
    times = CaseResult("gil_branches", "ms", (row_of(LOCAL),), (), samples, fault="it took 90 ms")
    check = Check("gil_branches", 16, 50_000.0, (0.0, 0.0), 45_000.0, 51_000.0, 0.0, 0.0)
    used = {2: [Used(0.01, 0.05), Used(0.02, 0.05)]}
    text = page(
        {"processor": "a fast one"},
        {"gil_branches": Measured(times, used, {2: check})},
        {2: Resources(0.5, 0.001, 96_000_000)},
        [1, 2],
    )
    assert "| processor | a fast one |" in text
    assert "**Not what its name says: it took 90 ms.**" in text
    one = "| 1 | 120 ms | 1.00 (0.80 to 1.00) | 100 ms | 0.80 (0.75 to 1.00) | - | - | - |"
    assert one in text
    two = "| 2 | 50.0 ms | 2.00 (2.00 to 2.00) | 100 ms | 2.00 (1.50 to 2.00) | 50.0 ms |"
    assert f"{two} 1.00 (0.80 to 1.00) | 30.0% |" in text
    assert "| 2 | 16 | 50.0 | 45.0 | -10% | 51.0 | +2% |" in text
    assert "| 2 | 0.50 | 0.10% | 96 |" in text


@pytest.mark.process
@pytest.mark.slow
def test_workers_and_bare_processes_run_the_branches() -> None:
    program = Program(
        "tiny",
        "few loops",
        lambda library: gil_branches.program(library, 50, elements=16),
        lambda: Loops(gil_branches.BRANCHES, 50, 1e6),
    )
    found = measure_program(program, [1, 2], QUICK, lambda sample: sample())
    rows = {row_of(LOCAL), *(row_of(kind, count) for kind in (WORKERS, BARE) for count in (1, 2))}
    assert rows | {ALONE} <= set(found.times.samples)
    assert "by the name of the case it is" in found.times.fault
    assert all(len(found.coordinator[count]) == 1 for count in (1, 2))
    assert all(0.0 < used.busy_s < 60.0 for times in found.coordinator.values() for used in times)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("network", ["mixture", "simulators"])
def test_the_networks_compute_the_same_in_torch_and_in_workers(network: str) -> None:
    makes = {
        "mixture": partial(mixture, shape=Mixture(4, 8, 16, 32)),
        "simulators": partial(simulators, loops=1),
    }
    program = Program(network, "small", makes[network])
    found = measure_program(program, [2], QUICK, lambda sample: sample())  # it compares gradients
    assert found.times.fault == ""
    assert row_of(WORKERS, 2) in found.times.samples


@pytest.mark.process
@pytest.mark.slow
def test_an_engine_is_watched() -> None:
    found = resources(2)
    assert found.start_s > 0.0
    assert 0.0 <= found.idle < 2.0
    assert 10e6 < found.nbytes < 10e9
