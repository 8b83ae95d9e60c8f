"""The rules for assignments to ``.grad`` and ``.grad_dtype``, with the messages of PyTorch 2.13."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpgrad.recording.tensors.of_pytorch import kind_of, mend

#: The default of ``grad_dtype``: the tensor's own dtype, whatever that is.
OWN_DTYPE: Any = "own dtype"


def check_assigned_grad(owner: Any, value: Any, kind: type[Any]) -> None:
    """Raise unless ``value`` may become ``owner.grad``.

    Args:
        owner: the Tensor whose ``.grad`` is set.
        value: the assigned value; not None.
        kind: Tensor.

    Raises:
        TypeError: ``value`` is not a Tensor.
        RuntimeError: it is ``owner`` itself, or has another shape or dtype.
    """
    if not isinstance(value, kind):
        raise TypeError(
            f"assigned grad expected to be a Tensor or None but got grad of type "
            f"{kind_of(value)}{mend(value)}"
        )
    if value is owner:
        raise RuntimeError("can't assign Variable as its own grad")
    if value.shape != owner.shape:
        raise RuntimeError(
            f"attempting to assign a gradient of size '{list(value.shape)}' to a tensor of size "
            f"'{list(owner.shape)}'. Please ensure that the gradient and the tensor are the same "
            "size"
        )
    if value.device != owner.device:
        raise RuntimeError(
            f"attempting to assign a gradient with device '{value.device}' to a tensor with device "
            f"'{owner.device}'. Please ensure that the gradient and the tensor are on the same "
            "device"
        )
    wanted = wanted_dtype(owner)
    if wanted is not None and value.dtype != wanted:
        raise RuntimeError(
            f"attempting to assign a gradient with dtype '{value.dtype}' to a tensor with "
            f"grad_dtype '{wanted}'. The gradient must match the tensor's grad_dtype (defaults to "
            "the tensor's dtype). You can set the tensor's grad_dtype attribute with a specific "
            "dtype, or None to allow any dtype."
        )


def wanted_dtype(owner: Any) -> np.dtype[Any] | None:
    """The dtype that ``owner.grad`` must have; None: any."""
    chosen = owner._grad_dtype
    return owner.dtype if chosen is OWN_DTYPE else chosen


def checked_grad_dtype(value: Any, existing: Any) -> np.dtype[Any] | None:
    """``value`` as a ``grad_dtype`` for a leaf whose ``.grad`` is ``existing``.

    Raises:
        RuntimeError: it is no dtype that a gradient can have, or differs from the existing one.
    """
    if value is None:
        return None
    try:
        dtype = np.dtype(value)
    except TypeError:
        raise RuntimeError(
            f"grad_dtype must be a dtype or None, but got {type(value).__name__}"
        ) from None
    if dtype.kind not in "fc":
        raise RuntimeError(f"grad_dtype must be a floating or complex dtype, but got {dtype}")
    if existing is not None and existing.dtype != dtype:
        raise RuntimeError(
            f"Cannot set grad_dtype to '{dtype}' because there is already a gradient with dtype "
            f"'{existing.dtype}'. Please clear the gradient (.grad = None) before changing "
            "grad_dtype, or ensure the new grad_dtype matches the existing gradient's dtype."
        )
    return dtype
