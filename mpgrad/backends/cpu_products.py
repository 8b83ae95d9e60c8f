"""Matrix products on NumPy: the same BLAS routine for the same operands, wherever they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpgrad.backends.cpu_choices import LARGE_BYTES, may_share_memory

if TYPE_CHECKING:
    from mpgrad.backends.cpu import CpuBackend

Array = np.ndarray[Any, Any]


def matmul(xp: CpuBackend, a: Array, b: Array) -> Array:
    """The product of matrices or of batches of them, which broadcast."""
    a, b = _blas_layout(a), _blas_layout(b)
    if may_share_memory(a, b):
        # NumPy multiplies an array with its own transpose by another BLAS routine (syrk) with other
        # bits. Whether two operands share memory depends on where the rule runs.
        b = b.copy(order="K")
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] * b.shape[1] * a.itemsize < LARGE_BYTES:
        if a.ndim > 2 and b.ndim > 1 and a.dtype == b.dtype and a.dtype.kind in "fc":
            batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
            return np.matmul(a, b, out=xp._place((*batch, a.shape[-2], b.shape[-1]), a.dtype))
        product = np.matmul(a, b)
        return product if type(product) is np.ndarray else np.asarray(product)
    out = xp.empty((a.shape[0], b.shape[1]), np.result_type(a, b))
    return np.matmul(a, b, out=out)


def _blas_layout(x: Array) -> Array:
    """``x``, copied if neither of its last two axes is contiguous (NumPy would not use BLAS)."""
    steps = x.strides
    if len(steps) < 2 or x.itemsize == steps[-1] or x.itemsize == steps[-2]:
        return x
    return np.ascontiguousarray(x)
