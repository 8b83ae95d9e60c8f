"""Size among tuples and lists."""

from __future__ import annotations

import pytest

import mpgrad as mg


def test_a_size_extends_a_list() -> None:
    lengths = [1]
    lengths += mg.ones(2, 3).shape
    assert lengths == [1, 2, 3]


def test_a_tuple_and_a_size_make_a_size() -> None:
    before: tuple[int, ...] = (1,)
    joined = before + mg.ones(2, 3).shape
    assert (type(joined), joined) == (mg.Size, (1, 2, 3))
    with pytest.raises(TypeError):
        list(before) + mg.ones(2, 3).shape  # type: ignore[operator]
