"""The dtypes under PyTorch's names; each is the NumPy dtype itself, so that ``==`` and ``is`` hold.

A module of its own, because ``mpgrad.float32`` must be there and ``import mpgrad`` must not load
NumPy.
"""

from __future__ import annotations

import numpy as np

float16 = half = np.dtype(np.float16)
float32 = float = np.dtype(np.float32)
float64 = double = np.dtype(np.float64)
complex64 = cfloat = np.dtype(np.complex64)
complex128 = cdouble = np.dtype(np.complex128)
uint8 = np.dtype(np.uint8)
int8 = np.dtype(np.int8)
int16 = short = np.dtype(np.int16)
int32 = int = np.dtype(np.int32)
int64 = long = np.dtype(np.int64)
bool = np.dtype(np.bool_)
