"""Products in parts: the parts cover the result, and are the same wherever they are computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpgrad.tensor_methods  # noqa: F401  (registers every operator)
from mpgrad.arrays.cpu import column_parts
from mpgrad.arrays.cpu.column_parts import PARTS_MAX, UNIT, columns_of, count_parts, join, shape_of
from mpgrad.arrays.cpu.cpu_backend import CpuBackend
from mpgrad.recording.graph.registry import OPERATORS
from mpgrad.scheduler.sum_places import WIDTH_LARGE

XP = CpuBackend(np.empty)
DTYPES = (np.float32, np.float64, np.complex64)


def draw(*shape: int, dtype: Any, seed: int = 0) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(seed).standard_normal(shape)
    return (values + 1j * values[::-1] if np.dtype(dtype).kind == "c" else values).astype(dtype)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut what a test can compute in a moment."""
    monkeypatch.setattr(column_parts, "PART_FLOPS", 1 << 18)


@pytest.mark.parametrize("columns", [64, 65, 127, 500, 512, 768, 1000, 4096])
def test_the_parts_cover_all_columns_once_and_are_about_as_wide(columns: int) -> None:
    for parts in range(1, min(columns // UNIT, PARTS_MAX) + 1):
        found = [columns_of((part, part + 1), parts, columns) for part in range(parts)]
        assert [c for where in found for c in range(columns)[where]] == [*range(columns)]
        widths = [where.stop - where.start for where in found]
        assert max(widths) - min(widths) <= 2 * UNIT - 1
        assert min(widths) > 0
        shapes = [shape_of((3, columns), (at, at + 1), parts) for at in range(parts)]
        assert shapes == [(3, width) for width in widths]
        assert columns_of((0, parts), parts, columns) == slice(0, columns)


def test_only_large_products_are_cut_and_never_into_more_than_one_task_adds_up() -> None:
    assert count_parts((256, 512), 512) == 1
    assert count_parts((256, 1024), 1024) == 4
    assert count_parts((2, 128, 1024), 1024) == 4
    assert count_parts((1 << 20, 1024), 127) == 1
    assert count_parts((1 << 20, 1024), 1 << 20) == PARTS_MAX <= WIDTH_LARGE


def test_parts_are_joined_in_their_order() -> None:
    whole = draw(3, 5, 300, dtype=np.float32)
    parts = [(0, 1), (1, 3), (3, 4)]
    pieces = [whole[..., columns_of(where, 4, 300)].copy() for where in parts]
    np.testing.assert_array_equal(join(pieces, parts, 4, np.empty_like(whole)), whole)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [(33,), (2, 17)], ids=str)
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("name", ["matmul", "linear"])
def test_parts_have_the_bits_of_the_whole(
    name: str, rows: tuple[int, ...], dtype: Any, is_transposed: bool
) -> None:
    grad = draw(*rows, 150, dtype=dtype)
    shape = (201, 150) if (name == "matmul") != is_transposed else (150, 201)
    other = draw(*shape, dtype=dtype, seed=1)
    other = other.T if is_transposed else other
    saved = (
        {"b": other, "a_shape": (*rows, 201), "b_shape": other.shape}
        if name == "matmul"
        else {"weight": other, "input_shape": (*rows, 201)}
    )
    rule, needs = OPERATORS[name], (True, False, False)
    whole = rule.backward(XP, [grad], dict(saved), needs)[0]
    count = count_parts(grad.shape, 201)
    assert count == 3
    for parts in ([(0, 1), (1, 2), (2, 3)], [(0, 1), (1, 3)], [(0, 2), (2, 3)], [(0, 3)]):
        pieces = [rule.backward(XP, [grad], dict(saved), needs, at)[0] for at in parts]
        assert [piece.shape for piece in pieces] == [shape_of(whole.shape, at, 3) for at in parts]
        assert all(piece.flags.c_contiguous for piece in pieces)
        assert join(pieces, parts, 3, np.empty_like(whole)).tobytes() == whole.tobytes()
    right = np.conj(other).T if name == "matmul" else np.conj(other)
    np.testing.assert_allclose(whole, grad @ right, rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("small_parts")
def test_a_batch_of_matrices_on_the_right_is_cut_as_well() -> None:
    grad, b = draw(3, 40, 50, dtype=np.float64), draw(3, 200, 50, dtype=np.float64, seed=1)
    saved = {"b": b, "a_shape": (3, 40, 200)}
    rule = OPERATORS["matmul"]
    whole = rule.backward(XP, [grad], dict(saved), (True, False))[0]
    parts = [(0, 1), (1, 3)]
    pieces = [rule.backward(XP, [grad], dict(saved), (True, False), at)[0] for at in parts]
    assert join(pieces, parts, 3, np.empty_like(whole)).tobytes() == whole.tobytes()
    np.testing.assert_allclose(whole, grad @ np.swapaxes(b, 1, 2), rtol=1e-12)
