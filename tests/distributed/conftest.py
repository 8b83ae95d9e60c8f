"""Marks the tests that start ranks: ``scripts/test -m hosts`` runs them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of this folder, those that start processes."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("process"):
            item.add_marker(pytest.mark.hosts)
