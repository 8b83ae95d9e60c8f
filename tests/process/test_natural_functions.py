"""Natural Functions run in workers as first written, with the bits of ``local``."""

from __future__ import annotations

import pytest

import mpgrad as mg
from tests.process.natural_kinds import ON_CTX, READS, count_functions, program, runs

pytestmark = pytest.mark.process

#: What each process has for itself, and what has no copy.
CLIENT = {"environment", "clock of the zone", "Generator", "lock", "SuperLU"}


@pytest.mark.filterwarnings("ignore::mpgrad.errors.PerformanceWarning")
@pytest.mark.parametrize("place", ["by name", "on ctx"])
def test_where_they_run(place: str) -> None:
    pytest.importorskip("scipy")
    count_functions()
    kinds = READS if place == "by name" else ON_CTX
    expected = {name: "client" if name in CLIENT else "worker" for name in kinds}
    modules, bits, places = {}, {}, {}
    with mg.Engine("local"):
        for name, kind in kinds.items():
            mg.manual_seed(0)
            bits[name], _ = runs(program(kind), 3)
            mg.manual_seed(0)
            modules[name] = program(kind)
    with mg.Engine("process", cpu_workers=2):
        for name, module in modules.items():
            assert runs(module, 3)[0] == bits[name], name
            places[name] = "worker" if runs(module, 1)[1] == 2 else "client"
    assert places == expected
    assert (len(kinds), list(places.values()).count("worker")) == (
        (53, 49) if place == "by name" else (43, 41)
    )
