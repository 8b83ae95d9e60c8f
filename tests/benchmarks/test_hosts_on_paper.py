"""``scripts/simulate hosts`` against the formulas for a network that takes no time."""

from __future__ import annotations

import pytest

from benchmarks.scaling.hosts import (
    BACKWARD_MS,
    BYTES,
    PARTS,
    data_parallel_share,
    halving_ms,
    pipeline_share,
    ring_ms,
)


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_a_pipeline_without_delay_has_the_known_gaps(stages: int) -> None:
    parts = PARTS * stages
    # Of 1F1B, and with the weights' gradients, a third of the work, in the gaps (ZB-H1).
    assert pipeline_share(stages, 0.0, splits=False) == pytest.approx(parts / (parts + stages - 1))
    expected = 3 * parts / (3 * parts + stages - 1)
    assert pipeline_share(stages, 0.0, splits=True) == pytest.approx(expected)
    assert pipeline_share(stages, 5.0, splits=True) < expected


def test_what_averaging_costs() -> None:
    assert data_parallel_share(4, lambda size, hosts: 0.0) == 1.0
    # As slow as this, all of it waits but the time until the first bucket is there.
    share = data_parallel_share(4, lambda size, hosts: size)
    assert share == pytest.approx(BACKWARD_MS / (BYTES + BACKWARD_MS * 2**20 / BYTES))
    assert halving_ms(1e6, 1024) < ring_ms(1e6, 1024)
    assert halving_ms(1e6, 2) == ring_ms(1e6, 2)
