"""A cluster for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ray.clusters import two_nodes


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster of two nodes."""
    with two_nodes() as nodes:
        yield nodes.address
