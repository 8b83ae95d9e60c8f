"""Rows that are copied as items: whatever their layouts, what an assignment gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpgrad.arrays.cpu import cpu_windows
from mpgrad.arrays.cpu.cpu_windows import ROW_BYTES_MAX, copy_rows


def _check(target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
    expected = target.copy()
    expected[...] = source
    copy_rows(target, source)
    assert target.tobytes() == expected.tobytes()


def _numbers(*shape: int, dtype: str = "f4") -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", "c16"])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 16, 100, 600])
def test_rows_beside_rows_that_are_left_out(dtype: str, length: int) -> None:
    _check(np.zeros((5, 4, length), dtype), _numbers(5, 4, 2, length, dtype=dtype)[:, :, 1])
    _check(np.zeros((5, 4, 3, length), dtype)[:, :, 2], _numbers(5, 4, length, dtype=dtype))


@pytest.mark.parametrize("dtype", ["u1", "f4"])
def test_rows_whose_elements_do_not_lie_side_by_side(dtype: str) -> None:
    numbers = _numbers(6, 8, dtype=dtype)
    _check(np.zeros((8, 6), dtype), numbers.T)
    _check(np.zeros((6, 4), dtype), numbers[:, ::2])
    _check(np.zeros((6, 8), dtype), numbers[:, ::-1])
    _check(np.zeros((6, 8), dtype)[:, ::2], numbers[:, :4])
    _check(np.zeros((6, 8), dtype, "F"), numbers)


def test_one_row_for_all() -> None:
    _check(np.zeros((9, 5), "f4"), _numbers(5))
    _check(np.zeros((9, 3, 5), "f4"), np.broadcast_to(_numbers(5), (9, 3, 5)))
    _check(np.zeros((9, 5), "f4"), np.broadcast_to(_numbers(9, 1), (9, 5)))


def test_overlapping_windows() -> None:
    windows = np.lib.stride_tricks.sliding_window_view(_numbers(4, 10), 3, axis=1)
    _check(np.zeros(windows.shape, "f4"), windows)


def test_no_rows() -> None:
    _check(np.zeros((0, 4), "f4"), _numbers(0, 4))
    _check(np.zeros((4, 0), "f4"), _numbers(4, 0))


def test_items_are_kept_for_rows_up_to_the_limit_only() -> None:
    cpu_windows._item.cache_clear()
    copy_rows(np.zeros((2, ROW_BYTES_MAX + 1), "u1"), np.zeros((2, ROW_BYTES_MAX + 1), "u1"))
    assert cpu_windows._item.cache_info().currsize == 0
    copy_rows(np.zeros((2, ROW_BYTES_MAX), "u1"), np.zeros((2, ROW_BYTES_MAX), "u1"))
    assert cpu_windows._item.cache_info().currsize == 1
