"""What linear algebra refuses, and how it says so; systems whose batches broadcast."""

from __future__ import annotations

import numpy as np
import pytest

import mpgrad as mg


@pytest.mark.parametrize(
    "compute",
    [
        lambda: mg.linalg.inv(mg.zeros(2, 2)),
        lambda: mg.linalg.solve(mg.zeros(2, 2), mg.ones(2)),
        lambda: mg.linalg.cholesky(-mg.eye(2)),
    ],
)
def test_a_matrix_that_cannot_be_is_a_linalg_error(compute) -> None:
    with pytest.raises(mg.linalg.LinAlgError, match="linalg_"):
        compute()


@pytest.mark.parametrize(
    ("compute", "said"),
    [
        (lambda: mg.linalg.qr(mg.ones(2, 2), mode="full"), "unrecognized mode 'full'"),
        (lambda: mg.linalg.eigh(mg.ones(2, 3)), "must be batches of square matrices"),
        (lambda: mg.linalg.eigh(mg.ones(2, 2), UPLO="X"), "'L' or 'U', but got X"),
        (lambda: mg.linalg.svd(mg.ones(2)), "at least 2 dimensions"),
        (lambda: mg.linalg.cross(mg.ones(2), mg.ones(2)), "must have length 3"),
        (lambda: mg.linalg.lu_factor(mg.zeros(2, 2)), "division by zero"),
        # LAPACK would write behind the end of its arrays.
        (lambda: mg.linalg.ldl_solve(mg.eye(2), mg.tensor([9, 1]), mg.ones(2, 1)), "from 1 to 2"),
        (lambda: mg.linalg.ldl_solve(mg.eye(2), mg.tensor([0, 1]), mg.ones(2, 1)), "from 1 to 2"),
        (lambda: mg.fft.rfft(mg.ones(2) * 1j), "expects a real input"),
        (lambda: mg.fft.fft(mg.ones(2), 0), r"Invalid number of data points \(0\)"),
        (lambda: mg.fft.fft(mg.ones(2), norm="half"), "Invalid normalization mode"),
    ],
)
def test_misuse_is_named(compute, said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        compute()


def test_a_matrix_is_solved_for_each_triangle_of_a_batch() -> None:
    # It has the shape of a batch of vectors, which solve() would take it for.
    triangles = np.tril(np.arange(1.0, 28.0).reshape(3, 3, 3))
    right = np.arange(9.0).reshape(3, 3)
    found = mg.linalg.solve_triangular(mg.tensor(triangles), mg.tensor(right), upper=False)
    expected = [np.linalg.solve(triangle, right) for triangle in triangles]
    np.testing.assert_allclose(found.numpy(), expected)
    turned = mg.linalg.solve_triangular(
        mg.tensor(triangles), mg.tensor(right), upper=False, left=False
    )
    np.testing.assert_allclose(
        turned.numpy() @ triangles, np.broadcast_to(right, (3, 3, 3)), atol=1e-12
    )
