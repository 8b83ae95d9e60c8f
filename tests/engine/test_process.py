"""The client's side of ``process`` mode that needs no process."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mpgrad.engine import process


@pytest.mark.parametrize("count", [0, 1, process.SMALL_GRAPH, process.SMALL_GRAPH + 1, 77, 100_000])
def test_the_tables_are_cut_without_gap_or_overlap(count: int) -> None:
    pieces = process._pieces(count)
    assert pieces[0][0] == 0
    assert pieces[-1][1] == count
    assert all(before[1] == after[0] for before, after in pairwise(pieces))
    assert max(stop - start for start, stop in pieces) <= process.TASKS_PER_MESSAGE


def test_a_small_graph_is_one_message_and_the_root_of_a_large_one_goes_first() -> None:
    assert process._pieces(process.SMALL_GRAPH) == [(0, process.SMALL_GRAPH)]
    assert process._pieces(20)[:3] == [(0, 1), (1, 3), (3, 7)]
