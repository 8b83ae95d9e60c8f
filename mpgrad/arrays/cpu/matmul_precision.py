"""The precision of products of float32 matrices on GPUs: PyTorch's ``backends.cuda.matmul``."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

#: PyTorch's name of a precision -> CuPy's name of the type that cuBLAS computes in. (CuPy 14 has a
#: name for bfloat16 factors, too, but then computes in float32.)
_COMPUTE_TYPES = {
    "highest": "COMPUTE_TYPE_DEFAULT",
    "high": "COMPUTE_TYPE_TF32",
    "medium": "COMPUTE_TYPE_TF32",
}

#: cuBLAS's ``CUBLAS_DEFAULT_MATH`` and ``CUBLAS_TF32_TENSOR_OP_MATH``.
DEFAULT_MATH, TF32_MATH = 0, 3

#: In the order of the numbers by which processes name them.
PRECISIONS = tuple(_COMPUTE_TYPES)


class MatmulPrecision:
    """One setting for all GPUs of this process; an engine's workers get it with each backward.

    TF32 keeps 10 bits of each factor's mantissa; sums stay in float32.
    """

    def __init__(self) -> None:
        self._chosen = "highest"
        #: The array modules that it applies to.
        self._modules: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def allow_tf32(self) -> bool:
        """Whether float32 factors may be rounded to TF32."""
        return self._chosen != "highest"

    @allow_tf32.setter
    def allow_tf32(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise RuntimeError(f"allow_tf32 must be a bool, but got {type(value).__name__}")
        self.choose("high" if value else "highest")

    def choose(self, precision: str) -> None:
        """Set it to ``"highest"`` (float32), ``"high"`` (TF32) or ``"medium"`` (here TF32, too).

        Raises:
            RuntimeError: it is another value.
        """
        if precision not in _COMPUTE_TYPES:
            raise RuntimeError(
                f"{precision} is not one of 'highest', 'high', or 'medium' to set the precision of "
                "float32 matrix products"
            )
        self._chosen = precision
        for arrays in self._modules:
            self._apply(arrays)

    @property
    def chosen(self) -> str:
        """``"highest"``, ``"high"`` or ``"medium"``."""
        return self._chosen

    def serve(self, arrays: Any) -> None:
        """Also apply to the array module ``arrays``."""
        self._modules.add(arrays)
        if self._chosen != "highest":
            self._apply(arrays)

    def prepare(self, arrays: Any) -> None:
        """Set the precision in the current thread's cuBLAS: ``_apply`` sets it for products of two
        matrices, and CuPy multiplies batches by other routines."""
        mode = TF32_MATH if self.allow_tf32 else DEFAULT_MATH
        arrays.cuda.cublas.setMathMode(arrays.cuda.get_cublas_handle(), mode)

    def _apply(self, arrays: Any) -> None:
        # CuPy's only public setting is CUPY_TF32, which it reads once, before the first product.
        routines = arrays._core._routines_linalg
        compute_type = getattr(routines, _COMPUTE_TYPES[self._chosen])
        for dtype in (np.float32, np.complex64):
            routines.set_compute_type(np.dtype(dtype), compute_type)


matmul = MatmulPrecision()


def set_float32_matmul_precision(precision: str) -> None:
    """Set the precision of float32 matrix products on GPUs; see :meth:`MatmulPrecision.choose`.

    Raises:
        RuntimeError: ``precision`` is not ``"highest"``, ``"high"`` or ``"medium"``.
    """
    matmul.choose(precision)


def get_float32_matmul_precision() -> str:
    """``"highest"``, ``"high"`` or ``"medium"``."""
    return matmul.chosen
