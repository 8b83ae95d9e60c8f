"""Marks the tests that start ranks: ``scripts/test -m hosts`` runs them.

`distributed` is changed only where it has a fault. So those that take long run with ``-m long``.
"""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of this folder, those that start processes."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("process"):
            item.add_marker(pytest.mark.hosts)
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.long)
