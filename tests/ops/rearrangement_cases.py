"""Cases of rearrangements, quantiles, signs and sums for the table of operators."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tests.ops.matrix_cases import Entry

_AT = np.array([[0, 5], [3, 1]])


def _reduced(m: Any, x: Any, source: Any, how: str) -> Any:
    return m.scatter_reduce(x, 1, m.tensor(np.array([[0, 0], [2, 1]])), source, how)


ENTRIES: list[Entry] = [
    ("unfold windows", lambda m, x: x.unfold(1, 3, 2), ((2, 7),)),
    ("as_strided", lambda m, x: m.as_strided(x * 1, (2, 2, 2), (1, 2, 1), 1), ((3, 3),)),
    ("rot90", lambda m, x: m.rot90(x, 3, (0, 2)) * 2, ((2, 3, 2),)),
    ("block_diag", lambda m, a, b, c: m.block_diag(a, b, c), ((2, 1), (3,), ())),
    ("column_stack", lambda m, a, b: m.column_stack((a, b)), ((3,), (3, 2))),
    ("dstack", lambda m, a, b: m.dstack((a, b)), ((2, 3), (2, 3))),
    ("vsplit", lambda m, x: m.vsplit(x, 2)[1], ((4, 2),)),
    ("diagflat", lambda m, x: m.diagflat(x, 1), ((2, 2),)),
    ("msort", lambda m, x: m.msort(x), ((3, 2),)),
    ("select_scatter", lambda m, x, y: m.select_scatter(x, y, 1, -1), ((2, 3), (2,))),
    ("slice_scatter", lambda m, x, y: m.slice_scatter(x, y, 1, 1, 5, 2), ((2, 5), (2, 2))),
    ("diagonal_scatter", lambda m, x, y: m.diagonal_scatter(x, y, 1), ((3, 4), (3,))),
    ("put", lambda m, x, y: m.Tensor.put(x, m.tensor(_AT), y, True), ((2, 3), (2, 2))),
    ("sum_to_size", lambda m, x: x.sum_to_size(1, 3) * x, ((2, 3),)),
    ("quantile", lambda m, x: m.quantile(x, 0.3, 1, True), ((3, 4),)),
    ("quantile q", lambda m, x, q: m.quantile(x, q.abs() / 2, 0), ((5, 2), (3,))),
    ("nanquantile", lambda m, x: m.nanquantile(x, 0.8, interpolation="midpoint"), ((3, 4),)),
    ("nanmedian", lambda m, x: m.nanmedian(x, 1).values, ((3, 4),)),
    ("mode", lambda m, x: m.mode(x, 0).values, ((3, 2),)),
    ("cov", lambda m, x: m.cov(x, correction=0), ((3, 4),)),
    ("corrcoef", lambda m, x: m.corrcoef(x), ((3, 4),)),
    ("trapezoid", lambda m, y, x: m.trapezoid(y, x, dim=0), ((4, 2), (4,))),
    ("cumulative_trapezoid", lambda m, y: m.cumulative_trapezoid(y, dx=0.5), ((2, 4),)),
    ("fmod", lambda m, a, b: m.fmod(a * 3, b), ((3, 4), (4,))),
    ("copysign", lambda m, a, b: m.copysign(a, b) * b, ((3,), (2, 3))),
    ("nextafter", lambda m, a, b: m.nextafter(a, b) * a, ((3,), (2, 3))),
    ("frexp", lambda m, x: m.frexp(x).mantissa * x, ((2, 3),)),
    ("logcumsumexp", lambda m, x: m.logcumsumexp(x, 1), ((2, 4),)),
    *(
        (f"scatter_reduce {how}", functools.partial(_reduced, how=how), ((2, 3), (2, 2)))
        for how in ("sum", "prod", "mean", "amax", "amin")
    ),
    ("fmax", lambda m, a, b: m.fmax(a, b), ((3,), (2, 3))),
    ("fmin", lambda m, a, b: m.fmin(a, b), ((3,), (2, 3))),
    ("ldexp", lambda m, a, b: m.ldexp(a, b), ((3,), (2, 3))),
    ("addmv", lambda m, c, a, b: m.addmv(c, a, b, beta=2, alpha=0.5), ((2,), (2, 3), (3,))),
    ("addr", lambda m, c, a, b: m.addr(c, a, b, alpha=3), ((2, 3), (2,), (3,))),
    ("addbmm", lambda m, c, a, b: m.addbmm(c, a, b), ((2, 2), (3, 2, 3), (3, 3, 2))),
]
