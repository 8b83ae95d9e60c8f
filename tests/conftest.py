"""What holds for all tests."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def old_objects_are_not_searched_again() -> None:
    """Many tests collect garbage to see what is left. Some million objects of pytest and of the
    oracles are older than the test: to look through them takes longer than most tests."""
    gc.collect()
    gc.freeze()
