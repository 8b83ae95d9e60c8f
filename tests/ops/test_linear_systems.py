"""What linear algebra refuses, and how it says so."""

from __future__ import annotations

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
        (lambda: mg.fft.rfft(mg.ones(2) * 1j), "expects a real input"),
        (lambda: mg.fft.fft(mg.ones(2), 0), r"Invalid number of data points \(0\)"),
        (lambda: mg.fft.fft(mg.ones(2), norm="half"), "Invalid normalization mode"),
    ],
)
def test_misuse_is_named(compute, said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        compute()
