"""What holds for the tests of the benchmarks."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True)
def old_objects_are_not_searched_again() -> None:
    """As for all tests, but anew for each: a measurement ends with a ``gc.unfreeze()``."""
    gc.freeze()
