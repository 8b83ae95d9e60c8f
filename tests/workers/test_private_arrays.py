"""PrivateArrays, and the contents of arrays and matrices that it compares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.calls.custom_functions.attributes import pack_attributes
from mpgrad.calls.custom_functions.contents import KeptContent
from mpgrad.calls.custom_functions.loading import Loaded, load_attributes
from mpgrad.workers.private_arrays import PrivateArrays

ARRAYS = {
    "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "of one number": np.array(3.0),
    "with NaN": np.array([np.nan, 1.0]),
    "structured": np.ones(3, [("a", "i1"), ("b", "f8")]),
    "of truth values": np.array([True, False]),
    "big-endian": np.arange(3, dtype=">i4"),
    "large": np.arange(1 << 15, dtype=float),
    "of large items": np.zeros(1 << 14, "V24"),
    "large and of Fortran": np.asfortranarray(np.ones((1 << 8, 1 << 8))),
    "of times": np.array(["2020-01-01"], "M8[s]"),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_a_byte_that_differs(kind: str) -> None:
    array = ARRAYS[kind].copy("A")
    content = KeptContent.of(array, "a test")
    assert content.is_current()
    memory = array.ravel("K").view(np.uint8)
    memory[-1] ^= 1
    assert not content.is_current()
    memory[-1] ^= 1
    assert content.is_current()


def test_minus_zero_is_not_zero() -> None:
    array = np.zeros(2)
    content = KeptContent.of(array, "a test")
    array[0] = -0.0
    assert not content.is_current()


def on_ctx(matrix: Any) -> tuple[Any, PrivateArrays]:
    """A sparse matrix on a ctx, as a worker gets it."""
    memory: Any = None
    private = PrivateArrays(memory, Loaded(mg.Function, {}, (), [], [], b"", ""))
    data = pack_attributes({"matrix": matrix}, (), lambda buffer: None)
    return load_attributes(data, (), (), private.on_ctx)["matrix"], private


@pytest.fixture(params=["csr", "csc", "coo", "bsr", "dia"])
def matrix(request: pytest.FixtureRequest) -> Any:
    """One whose elements are not in order, where the format allows that."""
    sparse = pytest.importorskip("scipy.sparse")
    parts = np.array([1.0, 2.0, 4.0]), np.array([2, 0, 1]), np.array([0, 2, 2, 3])
    kind = {"csr": sparse.csr_matrix, "csc": sparse.csc_matrix}.get(request.param)
    if kind is not None:
        return kind(parts, shape=(3, 3))
    return sparse.csr_matrix(parts, shape=(3, 3)).asformat(request.param)


def test_a_sparse_matrix_that_is_read(matrix: Any) -> None:
    copy, private = on_ctx(matrix)
    assert (copy.sum(), copy.T.tocsr()[0, 0], (copy @ np.ones(3)).sum()) == (7.0, 2.0, 7.0)
    assert private.what_changed() == ""


def test_a_sparse_matrix_that_is_sorted(matrix: Any) -> None:
    copy, private = on_ctx(matrix)
    for name in ("sort_indices", "sum_duplicates"):
        getattr(copy, name, int)()
    assert private.what_changed() == ""


def test_a_sparse_matrix_that_is_changed(matrix: Any) -> None:
    copy, private = on_ctx(matrix)
    copy.data *= 2
    assert private.what_changed() == "a sparse matrix (on ctx)"
