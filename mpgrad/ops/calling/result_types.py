"""Questions about dtypes: the dtype of a result, and possible conversions."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpgrad.base.dtype import DTYPES, DType
from mpgrad.ops.calling import promotion
from mpgrad.recording.tensors.tensor import Tensor


def result_type(tensor1: Any, tensor2: Any) -> DType:
    """The dtype of an elementwise result of two Tensors or Python numbers."""
    values = (promotion.as_operand(tensor1), promotion.as_operand(tensor2))
    return DTYPES[promotion.result_dtype(*values)]


def promote_types(type1: Any, type2: Any) -> DType:
    """The smallest dtype that holds the numbers of both (float32 for int64 and float32)."""
    return DTYPES[promotion.promote_types(*_dtypes("promote_types", type1, type2))]


def can_cast(from_: Any, to: Any) -> bool:
    """Whether a result of dtype ``from_`` may be written in place into a tensor of dtype ``to``."""
    return promotion.can_cast(*_dtypes("can_cast", from_, to))


def _dtypes(name: str, *values: Any) -> list[np.dtype[Any]]:
    """The dtypes that are meant.

    Raises:
        TypeError: one is a Tensor, or something else that is none.
    """
    for value in values:
        if value is None or isinstance(value, Tensor | np.ndarray):
            raise TypeError(f"{name}(): expected a dtype, but got {type(value).__name__}")
    return [np.dtype(value) for value in values]


def is_floating_point(input: Tensor) -> bool:
    """Whether the dtype of ``input`` is a floating one."""
    return bool(input._array.dtype.kind == "f")


def is_signed(input: Tensor) -> bool:
    """Whether the dtype of ``input`` has negative numbers."""
    return input.dtype.is_signed
