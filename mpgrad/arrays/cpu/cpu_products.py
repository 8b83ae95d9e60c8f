"""Matrix products on NumPy: the same BLAS routine for the same operands, wherever they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpgrad.arrays.cpu.cpu_choices import LARGE_BYTES, may_share_memory

if TYPE_CHECKING:
    from mpgrad.arrays.cpu.cpu_backend import CpuBackend

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
            return product(a, b, xp._place((*batch, a.shape[-2], b.shape[-1]), a.dtype))
        found = product(a, b)
        return found if type(found) is np.ndarray else np.asarray(found)
    out = xp.empty((a.shape[0], b.shape[1]), np.result_type(a, b))
    return product(a, b, out)


def product(a: Array, b: Array, out: Array | None = None) -> Array:
    """``np.matmul``, which does not warn of invalid values where BLAS may say so without one."""
    if not warns_at_random(a, b):
        return np.matmul(a, b, out=out)
    with np.errstate(invalid="ignore"):
        return np.matmul(a, b, out=out)


def warns_at_random(a: Array, b: Array) -> bool:
    """Whether the product is one of a ``float32`` vector.

    OpenBLAS reads past a vector of five elements on CPUs with AVX-512. What stands there on the
    stack does not change the product, but may be a signalling NaN, and then NumPy warns.
    """
    if a.dtype != np.float32 and b.dtype != np.float32:
        return False
    return a.ndim == 1 or b.ndim == 1 or a.shape[-2] == 1 or b.shape[-1] == 1


def cpu_features() -> frozenset[str]:
    """NumPy's names of this CPU's instructions, as far as it looks for them."""
    compiled: Any = getattr(getattr(np, "_core", None), "_multiarray_umath", None)
    found = getattr(compiled, "__cpu_features__", {})
    return frozenset(name for name, is_there in found.items() if is_there)


def _blas_layout(x: Array) -> Array:
    """``x``, copied if neither of its last two axes is contiguous (NumPy would not use BLAS)."""
    steps = x.strides
    if len(steps) < 2 or x.itemsize == steps[-1] or x.itemsize == steps[-2]:
        return x
    return np.ascontiguousarray(x)
