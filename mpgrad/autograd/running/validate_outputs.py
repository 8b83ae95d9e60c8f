"""validate_output(): give a rule's gradients the form that the edges promise.

The name and the messages are those of PyTorch's engine. Every gradient that crosses an edge is a
C-contiguous array of the recorded shape and dtype. The memory layout can change the bits of a sum
or a matrix product, so it must not depend on where a Node runs or what it is fused with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import (
    CUDA,
    cuda_namespace,
    device_of,
    is_on_gpu,
    moved,
    on,
    zeros,
)
from mpgrad.base.device import CPU
from mpgrad.errors import add_note
from mpgrad.recording.graph.node import InputMetadata

#: A note for NumPy's error, which only says that an array is read-only.
COPY_FIRST = (
    "a gradient may be shared with other Nodes: copy it before you change it, with "
    "grad.clone() or numpy.array(grad)"
)


def with_zeros(grads: Sequence[Any], expected: Sequence[InputMetadata], xp: Any) -> list[Any]:
    """The inputs of a rule, with zeros for undefined gradients."""
    return [
        _zeros(xp, meta) if grad is None else grad
        for grad, meta in zip(grads, expected, strict=True)
    ]


def _zeros(xp: Any, meta: InputMetadata) -> Any:
    if meta.device is CPU:
        return xp.zeros(meta.shape, meta.dtype)
    return zeros(meta.shape, meta.dtype, meta.device)


def require_number(name: str, outputs: Sequence[Any], wanted: int) -> None:
    """Check that a rule returned as many gradients as it has outputs.

    Raises:
        RuntimeError: it did not; the message names both numbers.
    """
    if len(outputs) != wanted:
        raise RuntimeError(
            f"Function {name} returned an invalid number of gradients - expected {wanted}, but "
            f"got {len(outputs)}"
        )


def add_notes(
    error: BaseException,
    name: str,
    inputs: Sequence[InputMetadata],
    outputs: Sequence[InputMetadata | None],
    is_user_code: bool,
) -> None:
    """Add notes to ``error``: the Node that raised it, and the shapes of its inputs and outputs."""
    add_note(error, f"in the backward graph at {described(name, inputs, outputs)}")
    if is_user_code and "read-only" in str(error):
        add_note(error, COPY_FIRST)


def described(
    name: str, inputs: Sequence[InputMetadata], outputs: Sequence[InputMetadata | None]
) -> str:
    """A Node's name with its inputs and outputs."""
    flows = [
        ", ".join("-" if meta is None else f"{meta.dtype}{list(meta.shape)}" for meta in metas)
        for metas in (inputs, outputs)
    ]
    return f"{name}({flows[0]}) -> ({flows[1]})"


def validate_output(name: str, index: int, grad: Any, expected: InputMetadata, xp: Any) -> Any:
    """``grad`` with the shape and dtype of ``expected``, C-contiguous.

    Args:
        name: the Node's name for messages; empty for a seed.
        index: the number of the output.
        grad: an array.
        expected: the metadata of the edge.
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
    """As ``validate_output``, if the gradient or its target is on a GPU."""
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
        # Formulas return the real part for real inputs of complex operations; a Function must, too.
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
