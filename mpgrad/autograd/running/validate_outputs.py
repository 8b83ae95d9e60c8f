"""validate_output(): bring a rule's gradients into the form that the edges promise.

The name and the messages are those of PyTorch's engine. Every gradient that crosses an edge is a
C-contiguous array of the recorded shape and dtype: memory layout can change the bits of a sum or a
matrix product, so it may depend neither on where a Node runs nor on what it is fused with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.base.device import CPU
from mpgrad.devices.device_arrays import (
    CUDA,
    cuda_namespace,
    device_of,
    is_on_gpu,
    moved,
    on,
    zeros,
)
from mpgrad.errors import add_note
from mpgrad.graph.node import InputMetadata

#: Beside NumPy's error, which says only that an array is read-only.
COPY_FIRST = (
    "what backward gets may belong to others, too: copy it before you change it, with "
    "grad.clone() or numpy.array(grad)"
)


def with_zeros(grads: Sequence[Any], expected: Sequence[InputMetadata], xp: Any) -> list[Any]:
    """What flows into a rule, with zeros where nothing has."""
    return [
        _zeros(xp, meta) if grad is None else grad
        for grad, meta in zip(grads, expected, strict=True)
    ]


def _zeros(xp: Any, meta: InputMetadata) -> Any:
    if meta.device is CPU:
        return xp.zeros(meta.shape, meta.dtype)
    return zeros(meta.shape, meta.dtype, meta.device)


def require_number(name: str, outputs: Sequence[Any], wanted: int) -> None:
    """Raise where a rule gave another number of gradients than it has outputs.

    Raises:
        RuntimeError: names both.
    """
    if len(outputs) != wanted:
        raise RuntimeError(
            f"Function {name} returned an invalid number of gradients - expected {wanted}, but "
            f"got {len(outputs)}"
        )


def add_notes(
    error: Exception,
    name: str,
    inputs: Sequence[InputMetadata],
    outputs: Sequence[InputMetadata | None],
    is_user_code: bool,
) -> None:
    """Tell in ``error`` which Node raised it, and the shapes that flow in and out."""
    add_note(error, f"in the backward graph at {described(name, inputs, outputs)}")
    if is_user_code and "read-only" in str(error):
        add_note(error, COPY_FIRST)


def described(
    name: str, inputs: Sequence[InputMetadata], outputs: Sequence[InputMetadata | None]
) -> str:
    """A Node's name, and what flows in and out."""
    flows = [
        ", ".join("-" if meta is None else f"{meta.dtype}{list(meta.shape)}" for meta in metas)
        for metas in (inputs, outputs)
    ]
    return f"{name}({flows[0]}) -> ({flows[1]})"


def validate_output(name: str, index: int, grad: Any, expected: InputMetadata, xp: Any) -> Any:
    """``grad`` with the shape and dtype of ``expected``, C-contiguous.

    Args:
        name: of the Node, for messages; empty for a seed.
        index: which of its outputs.
        grad: an array.
        expected: what the edge promises.
        xp: the namespace of ``grad``.

    Raises:
        RuntimeError: the shape cannot be summed back, the dtype is of another kind, or it lies on
            another device (a gradient without dimensions is moved).
    """
    if (
        type(grad) is np.ndarray
        and grad.shape == expected.shape
        and grad.dtype is expected.dtype
        and grad.flags.c_contiguous
        and expected.device is CPU
    ):
        return grad  # nearly always
    if CUDA.in_use and (is_on_gpu(grad) or expected.device is not CPU):
        return _validated_on_gpu(name, index, grad, expected)
    if type(grad) is not np.ndarray:
        grad = xp.asarray(grad)
    return _validated(name, index, grad, expected, xp)


def _validated_on_gpu(name: str, index: int, grad: Any, expected: InputMetadata) -> Any:
    """As ``validate_output``, where the gradient or its place is on a GPU."""
    if not is_on_gpu(grad):
        grad = np.asarray(grad)
    if device_of(grad) != expected.device:
        if grad.ndim:
            raise RuntimeError(
                f"{_who(name)}an invalid gradient at index {index} - expected device "
                f"{expected.device} but got {device_of(grad)}"
            )
        grad = moved(grad, expected.device)
    with on(expected.device):
        xp = np if expected.device is CPU else cuda_namespace()
        return _validated(name, index, grad, expected, xp)


def _validated(name: str, index: int, grad: Any, expected: InputMetadata, xp: Any) -> Any:
    if grad.shape != expected.shape:
        if not _can_sum_to(grad.shape, expected.shape):
            raise RuntimeError(
                f"{_who(name)}an invalid gradient at index {index} - got {list(grad.shape)} but "
                f"expected shape compatible with {list(expected.shape)}"
            )
        grad = xp.sum_to(grad, expected.shape)
    if grad.dtype != expected.dtype:
        # Formulas give real inputs of complex operations the real part; a Function has to say so.
        if grad.dtype.kind not in ("fciub" if expected.dtype.kind == "c" else "fiub"):
            raise RuntimeError(
                f"{_who(name)}an invalid gradient at index {index} - expected dtype "
                f"{expected.dtype} but got {grad.dtype}"
            )
        grad = grad.astype(expected.dtype)
    return grad if grad.flags.c_contiguous else xp.ascontiguousarray(grad)


def _who(name: str) -> str:
    return f"Function {name} returned " if name else "got "


def _can_sum_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether ``target`` broadcasts to ``shape``."""
    if len(target) > len(shape):
        return False
    return all(
        wanted in (1, got) for got, wanted in zip(reversed(shape), reversed(target), strict=False)
    )
