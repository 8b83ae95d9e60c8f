"""The numbers of the graphs that this process submits."""

from __future__ import annotations

import itertools

_numbers = itertools.count(1)


def next_graph_number() -> int:
    """A number that no other graph of this process has."""
    return next(_numbers)
