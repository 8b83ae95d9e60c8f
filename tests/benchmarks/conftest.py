"""What holds for the tests of the benchmarks."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

#: They take a twentieth of the time of all tests; whoever changes something else need not wait.
LONG = ("test_auto.py", "test_both_passes.py", "test_cores.py", "test_probes.py", "test_scaling.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name in LONG:
            item.add_marker(pytest.mark.long)


@pytest.fixture(autouse=True)
def old_objects_are_not_searched_again() -> None:
    """As for all tests, but anew for each: a measurement ends with a ``gc.unfreeze()``."""
    gc.freeze()
