"""The dtypes under PyTorch's names.

It is a separate module because ``import mpgrad``, which has ``mpgrad.float32``, must not load
NumPy.
"""

from __future__ import annotations

import numpy as np

from mpgrad.base.dtype import DType

float16 = half = DType(np.float16)
float32 = float = DType(np.float32)
float64 = double = DType(np.float64)
complex64 = cfloat = DType(np.complex64)
complex128 = cdouble = DType(np.complex128)
uint8 = DType(np.uint8)
uint16 = DType(np.uint16)
uint32 = DType(np.uint32)
uint64 = DType(np.uint64)
int8 = DType(np.int8)
int16 = short = DType(np.int16)
int32 = int = DType(np.int32)
int64 = long = DType(np.int64)
bool = DType(np.bool_)
